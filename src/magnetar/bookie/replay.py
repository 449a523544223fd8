"""Replay: puts the journal's records after the mark back into storage.

Order:     entries go to the write cache at once. Flags are gathered and applied when the journal has been read to its
           end: the old flags must come from the index, and replay does not wait. Nothing is served before both are
           done.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.journal.format import ExplicitLac, JournalRecord, RecordKind, decode_explicit_lac, decode_fence
from magnetar.storage.ledger_flags import EXPLICIT_LAC_BYTES_MAX, NO_FLAGS, LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.wire.bookkeeper.hot_path import parse_context

log = logging.getLogger(__name__)

Change = Callable[[LedgerFlags], LedgerFlags]


class Replay:
    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._changes: dict[int, list[Change]] = {}
        self._keys: dict[int, bytes] = {}
        self.records = 0
        self.entries = 0

    def deliver(self, record: JournalRecord) -> None:
        self.records += 1
        match record.kind:
            case RecordKind.ADDS:
                self._add(bytes(record.body), f"journal record {record.sequence}")
            case RecordKind.FENCE:
                fence = decode_fence(record.body)
                self._change(fence.ledger_id, fence.master_key, lambda flags: dataclasses.replace(flags, fenced=True))
            case RecordKind.EXPLICIT_LAC:
                lac = decode_explicit_lac(record.body)
                self._change(lac.ledger_id, lac.master_key, _lac_change(lac))

    def _add(self, chunk: bytes, where: str) -> None:
        run = scan_frames(chunk, where)
        self.entries += len(run.entry_ids)
        for ledger_id, a, b in by_ledger(run):
            self._storage.add_run(ledger_id, chunk, run.entry_ids[a:b], run.offsets[a:b], run.lengths[a:b])
        for context in run.contexts:
            ledger_id, master_key, _ = parse_context(context)
            self._keys.setdefault(ledger_id, master_key)

    def _change(self, ledger_id: int, master_key: bytes, change: Change) -> None:
        self._keys.setdefault(ledger_id, master_key)
        self._changes.setdefault(ledger_id, []).append(change)

    async def finish(self) -> None:
        for ledger_id, master_key in self._keys.items():
            known = await self._storage.get_flags(ledger_id) or NO_FLAGS
            changed = known if known.master_key is not None else dataclasses.replace(known, master_key=master_key)
            for change in self._changes.get(ledger_id, ()):
                changed = change(changed)
            if changed != known:
                self._storage.set_flags(ledger_id, changed)


def _lac_change(lac: ExplicitLac) -> Change:
    """Returns the change, or leaves an explicit LAC out that is too long for storage; the one before it stays.

    Earlier versions journaled any LAC, and then failed at every flush. To leave it out is safe: no client makes such a
    LAC, and without one, readers only wait for an entry that has the same LAC; they never see a missing entry. A cut
    one would be of no use, since its digest would be wrong.
    """
    if len(lac.body) <= EXPLICIT_LAC_BYTES_MAX:
        return lambda flags: dataclasses.replace(flags, explicit_lac=lac.body)
    log.warning("an explicit LAC is too long and left out", extra={"ledger": lac.ledger_id, "bytes": len(lac.body)})
    return lambda flags: flags
