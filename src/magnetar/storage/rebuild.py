"""Rebuild: the location index anew from the entry logs.

Entries:   every valid block of every log. Entries of ledgers that were deleted come back until the garbage collector
           drops them again.
Flags:     logs have no fences. They are taken over from the old index, as far as it can be read. A ledger whose flags
           cannot be had is put in limbo and fenced: this node may have promised something that it no longer knows.
Damage:    one bad log stops nothing else. If synced bytes are damaged, entries may be missing of any ledger, so all
           are put in limbo: a rebuilt index must not say "no" for what it could not read. The torn end of a log that
           was never finished is what a crash leaves; the journal still has what was in it.
Mark:      the new index's is what the caller says: the journal's own, as all below it is in the logs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from magnetar.errors import DiskError, IndexDamagedError, StorageDamagedError
from magnetar.storage.entry_log_format import ENTRIES, Block, log_path
from magnetar.storage.entry_log_reader import Damage, EntryLogReader
from magnetar.storage.extents import Extent, extents_of
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.ledger_dirs import LedgerDirs
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.location_index import IndexBatch, LocationIndex
from magnetar.wire.bookkeeper.hot_path import AddRun, parse_context

_BATCH_EXTENTS = 10_000


@dataclass(slots=True)
class RebuildReport:
    logs: int = 0
    entries: int = 0
    damage: list[Damage] = field(default_factory=list)
    unreadable_logs: dict[int, str] = field(default_factory=dict)
    flags_lost: bool = False
    """Then ledgers fenced here without an entry are forgotten: treat this node as one that lost a disk."""

    @property
    def may_miss_entries(self) -> bool:
        return bool(self.unreadable_logs) or any(not damage.is_tail for damage in self.damage)


async def rebuild_index(
    dirs: LedgerDirs, logs: EntryLogReader, new: LocationIndex, *, old: LocationIndex | None, mark: int | None
) -> RebuildReport:
    """`new` is empty. Flags and mark are written last: an interrupted rebuild does not pass for a whole index."""
    report = RebuildReport()
    flags = await _old_flags(old, report)
    master_keys: dict[int, bytes] = {}
    for log_id in dirs.log_ids():
        try:
            await _add_log(logs, log_id, new, report, master_keys)
        except (StorageDamagedError, DiskError) as error:
            report.unreadable_logs[log_id] = str(error)
        report.logs += 1
    await new.apply(IndexBatch(flags=_new_flags(flags, master_keys, report), mark=mark))
    return report


def _new_flags(
    old: dict[int, LedgerFlags], master_keys: dict[int, bytes], report: RebuildReport
) -> dict[int, LedgerFlags]:
    flags = dict(old)
    for ledger_id in sorted(master_keys):
        if ledger_id not in flags:
            found = LedgerFlags(master_key=master_keys[ledger_id])
            flags[ledger_id] = _in_limbo(found) if report.flags_lost else found
    if report.may_miss_entries:
        flags = {ledger_id: _in_limbo(known) for ledger_id, known in flags.items()}
    return flags


def _in_limbo(flags: LedgerFlags) -> LedgerFlags:
    return flags if flags.deleted_at_ms is not None else dataclasses.replace(flags, limbo=True, fenced=True)


async def _old_flags(old: LocationIndex | None, report: RebuildReport) -> dict[int, LedgerFlags]:
    if old is None:
        report.flags_lost = True
        return {}
    found: dict[int, LedgerFlags] = {}
    first = 0
    try:
        while page := await old.all_flags(first):
            found.update(page)
            first = page[-1][0] + 1
    except (IndexDamagedError, DiskError):
        report.flags_lost = True
    return found


async def _add_log(
    logs: EntryLogReader, log_id: int, index: LocationIndex, report: RebuildReport, master_keys: dict[int, bytes]
) -> None:
    extents: list[Extent] = []
    async for found in logs.scan(log_id):
        if isinstance(found, Damage):
            report.damage.append(found)
        elif found.kind == ENTRIES:
            run = scan_frames(found.body, f"{log_path(log_id)} at {found.place.offset}")
            extents.extend(extents_of_block(found, run))
            report.entries += len(run.entry_ids)
            _note_keys(run, master_keys)
        if len(extents) >= _BATCH_EXTENTS:
            await index.apply(IndexBatch(extents=extents))
            extents = []
    if extents:
        await index.apply(IndexBatch(extents=extents))


def extents_of_block(block: Block, run: AddRun) -> list[Extent]:
    """What the flush that wrote this block put into the index for it."""
    found: list[Extent] = []
    for ledger_id, first, end in by_ledger(run):
        found.extend(extents_of(ledger_id, run.entry_ids[first:end], block.place))
    return found


def _note_keys(run: AddRun, master_keys: dict[int, bytes]) -> None:
    for context in run.contexts:
        ledger_id, master_key, _ = parse_context(context)
        master_keys.setdefault(ledger_id, master_key)
