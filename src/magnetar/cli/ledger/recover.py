"""`magnetar ledger recover` and `delete`: only these take a ledger from its writer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import typer

from magnetar.cli.ledger.options import Ids, Password, PasswordFile, WorkProgress, password_given, run_with_client
from magnetar.cli.open_store import Url, load_for_store
from magnetar.cli.options import AsJson, ConfigFile, Settings, Yes, confirm
from magnetar.cli.output import EXIT_FAILED, Listing, print_error
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.recovery.recovery import RecoveryProgress
from magnetar.runtime.gather import gather_bounded

_AT_ONCE_MAX: Final = 16  # Ledgers that one command works on at the same time.


def recover(
    ledger_ids: Ids,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Fence ledgers, so that their writers cannot continue, and close them. Acknowledged entries are kept."""
    given = password_given(password, password_file)

    async def command(client: LedgerClient) -> None:
        widths = {"ledger_id": 19, "last_entry_id": 13, "length": 14, "written_again": 13}
        listing = Listing("ledger", widths, as_json)
        done = 0

        async def one(ledger_id: int) -> None:
            nonlocal done
            written = 0

            def on_progress(step: RecoveryProgress) -> None:
                nonlocal written
                written = step.entries_confirmed
                progress.show(done, f"ledger {ledger_id}: entry {step.entry_id} found")

            closed = await client.recover(ledger_id, password=given, on_progress=on_progress)
            done += 1
            listing.row((ledger_id, closed.last_entry_id, closed.length, written))

        with WorkProgress("ledgers recovered", len(ledger_ids)) as progress:
            await _for_each(ledger_ids, one)

    run_with_client(command, load_for_store(metadata, config, settings))


def delete(
    ledger_ids: Ids,
    yes: Yes = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Delete ledgers permanently. Bookies free the disk space at their next garbage collection."""
    effective = load_for_store(metadata, config, settings)
    names = ", ".join(map(str, ledger_ids))
    confirm(f"Delete ledger {names}, and all its entries?", yes)

    async def command(client: LedgerClient) -> None:
        listing = Listing("ledger", {"ledger_id": 19, "deleted": 7}, as_json)

        async def one(ledger_id: int) -> None:
            await client.delete(ledger_id)
            listing.row((ledger_id, True))

        await _for_each(ledger_ids, one)

    run_with_client(command, effective)


async def _for_each(ledger_ids: list[int], one: Callable[[int], Awaitable[None]]) -> None:
    """Works on several at a time. The others are done even if one fails; the exit code reports it."""

    async def failure(ledger_id: int) -> MagnetarError | None:
        try:
            await one(ledger_id)
        except MagnetarError as error:
            return error
        return None

    distinct = dict.fromkeys(ledger_ids)
    outcomes = await gather_bounded([partial(failure, ledger_id) for ledger_id in distinct], _AT_ONCE_MAX)
    errors = [error for error in outcomes if error is not None]
    for error in errors:
        print_error(error)
    if errors:
        raise typer.Exit(EXIT_FAILED)
