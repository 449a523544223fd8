"""The progress of a lost bookie's repair, from the same data as `magnetar recovery status` and `ls`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from magnetar.autorecovery.fragments import bookies_with_entries
from magnetar.autorecovery.status import Document, RecoveryStatus
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import NoSuchLedgerError
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.runtime.gather import gather_bounded
from magnetar.runtime.system import SystemRuntime
from magnetar.words import counted

_LOOK_S: Final = 0.25  # A small ledger is repaired in less than a second.
_ROWS_MAX: Final = 100
_READS_AT_ONCE: Final = 16


async def follow_repair(
    metadata: str, lost: str, name_of: Callable[[str], str], tell: Callable[[str], None], check: Callable[[], None]
) -> None:
    """Returns when no ledger has entries on the lost bookie, and no ledger is marked. The caller sets a time limit;
    `check` is called with each look, and may raise."""
    config, runtime = Config(metadata=MetadataConfig(url=metadata)), SystemRuntime()
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        status = RecoveryStatus(store, BookKeeperPaths())
        most, told = 0, ""
        while True:
            check()
            left = await _ledgers_on(client, BookieId(lost))
            found = await status.read()
            most = max(most, left)
            if not left and not found["marked_ledgers"]:
                break
            progress = _progress(found, await status.rows(_ROWS_MAX), lost, name_of)
            line = f"{left} of {counted(most, 'ledger')} still on {name_of(lost)}: {progress}"
            if line != told:
                tell(line)
                told = line
            await asyncio.sleep(_LOOK_S)
    tell(f"no ledger names {name_of(lost)} any more: {counted(most, 'ledger')} repaired, and no mark is left")


async def _ledgers_on(client: LedgerClient, bookie: BookieId) -> int:
    ids = [ledger_id async for ledger_id in client.list()]
    reads = [partial(_is_on, client, ledger_id, bookie) for ledger_id in ids]
    return sum(await gather_bounded(reads, _READS_AT_ONCE))


async def _is_on(client: LedgerClient, ledger_id: LedgerId, bookie: BookieId) -> bool:
    try:
        return bookie in bookies_with_entries(await client.metadata(ledger_id))
    except NoSuchLedgerError:
        return False


def _progress(found: Document, rows: list[Document], lost: str, name_of: Callable[[str], str]) -> str:
    if not found["marked_ledgers"]:
        if found["auditor"] is None:
            return "no bookie is the auditor"
        what = "marks them" if lost in found["lost"] else "waits for the end of the lost bookie's session"
        return f"{name_of(found['auditor'])}, the auditor, {what}"
    states = ", ".join(f"{count} {state}" for state, count in found["states"].items() if count)
    copied, wanted = (sum(row[key] for row in rows) for key in ("copied_entries", "entries_to_copy"))
    progress = f"; in progress: {copied:,} of {wanted:,} copies" if wanted else ""
    return (states or "the last mark is deleted") + progress
