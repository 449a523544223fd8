"""Rebuild: makes the location index anew from the entry logs.

Purpose:   the index gets every valid block of every log. Entries of deleted ledgers come back until the garbage
           collector drops them again. Flags come from the old index, as far as it can be read: logs have no fences.
Invariant: a rebuilt index must not answer "no" for what it could not read. A ledger whose flags cannot be read is put
           in limbo and fenced: this node may have promised something that it no longer knows. If synced bytes are
           damaged, or the old index refers to a missing log, or to entries that its log does not have in that place
           (then it is another file under that name), entries of any ledger may be missing: all are put in limbo.
Order:     the new index's mark is the caller's: the journal's own, as all below it is in the logs.
Failure:   one bad log stops nothing else. A crash leaves a torn end in the log that was flushed to, perhaps without a
           header, and such a log has no footer until it is compacted. Bit rot in its last block looks the same, and
           its journal was removed long ago. Only the old index can distinguish them: a mark moves after the index was
           written, so the journal still has whatever the index does not refer to. Without that index, or if it refers
           to anything there, a torn end is damage like any other.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from magnetar.errors import DiskError, IndexDamagedError, StorageDamagedError
from magnetar.storage.entry_log.format import ENTRIES, Block, log_path
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import Damage, EntryLogReader, frames_of
from magnetar.storage.frames import by_ledger, keys_of
from magnetar.storage.index.extents import Extent, extents_of
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.wire.bookkeeper.hot_path import AddRun

_BATCH_EXTENTS = 10_000


@dataclass(slots=True)
class RebuildReport:
    logs: int = 0
    entries: int = 0
    damage: list[Damage] = field(default_factory=list)
    """Places where entries may be missing."""
    torn_ends: list[Damage] = field(default_factory=list)
    """Torn ends to which the old index does not refer. The journal has these entries. (Or an earlier rebuild met damage
    there: then ledgers have been in limbo since.)"""
    unreadable_logs: dict[int, str] = field(default_factory=dict)
    """Missing ones too."""
    flags_lost: bool = False
    """Whether fences of ledgers without an entry may be forgotten: treat this node as one that lost a disk."""
    locations_lost: bool = False
    """Whether a torn end cannot be distinguished from a damaged one."""

    @property
    def may_miss_ledgers(self) -> bool:
        """Ledgers of which not even the id is known here: only the metadata shows which to fence and put in limbo."""
        return self.flags_lost or (self.locations_lost and self.may_miss_entries)

    @property
    def may_miss_entries(self) -> bool:
        return bool(self.unreadable_logs or self.damage)


async def rebuild_index(
    dirs: LedgerDirs, logs: EntryLogReader, new: LocationIndex, *, old: LocationIndex | None, mark: int | None
) -> RebuildReport:
    """Fills `new`, which is empty. Flags and mark are written last: an interrupted rebuild is not a usable index.

    `old` has everything up to the journal's mark; None if it does not exist.
    """
    report = RebuildReport()
    known = await _read_old(old, report)
    rebuild = _Rebuild(logs, new, known, report)
    for log_id in dirs.log_ids():
        try:
            await rebuild.add_log(log_id)
        except (StorageDamagedError, DiskError) as error:
            report.unreadable_logs[log_id] = str(error)
        report.logs += 1
    _note_missing(dirs, known, report)
    if old is not None and not report.locations_lost:
        await _note_other_blocks(old, new, report)
    last_log = max(known.log_ends, default=None)
    await new.apply(IndexBatch(flags=rebuild.flags(), mark=mark, last_log=last_log))
    return report


# --- the old index ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Old:
    """The readable part of the old index."""

    flags: dict[int, LedgerFlags] = field(default_factory=dict)
    ledgers: set[int] = field(default_factory=set)
    """Those with entries."""
    log_ends: dict[int, int] = field(default_factory=dict)
    """The end of the last block that it refers to, by log."""


async def _read_old(old: LocationIndex | None, report: RebuildReport) -> _Old:
    """Reads flags and locations separately: one may be damaged where the other is not."""
    known = _Old()
    if old is None:
        report.flags_lost = report.locations_lost = True
        return known
    try:
        async for page in old.flag_pages():
            known.flags.update(page)
    except (IndexDamagedError, DiskError):
        report.flags_lost = True
    try:
        await _read_locations(old, known)
    except (IndexDamagedError, DiskError):
        report.locations_lost = True
    return known


async def _read_locations(old: LocationIndex, known: _Old) -> None:
    """Reads all locations, which are few beside the logs: an unreadable one may be of the block in question."""
    async for extents in old.extent_pages():
        for extent in extents:
            known.ledgers.add(extent.ledger_id)
            log_id, offset, size = extent.place
            known.log_ends[log_id] = max(known.log_ends.get(log_id, 0), offset + size)


# --- the old one and the logs -----------------------------------------------------------------------------------------


def _note_missing(dirs: LedgerDirs, known: _Old, report: RebuildReport) -> None:
    for log_id in sorted(known.log_ends.keys() - set(dirs.log_ids())):
        report.unreadable_logs[log_id] = (
            f"{log_path(log_id)} is in none of the ledger directories, and the old index has entries in it: they are "
            "lost on this bookie"
        )


async def _note_other_blocks(old: LocationIndex, new: LocationIndex, report: RebuildReport) -> None:
    """Checks one extent for each log in which no other error was found."""
    noted = report.unreadable_logs.keys() | {damage.log_id for damage in report.damage}
    async for extents in old.extent_pages():
        doubtful = [extent for extent in extents if extent.place.log_id not in noted]
        for extent in await _absent(new, doubtful):
            log_id, offset, _ = extent.place
            noted.add(log_id)
            report.unreadable_logs[log_id] = (
                f"{log_path(log_id)} at {offset}: it lacks entries of ledger {extent.ledger_id} that the old index has "
                "there, so it is another log than the one it knew; they are lost on this bookie"
            )


async def _absent(new: LocationIndex, extents: list[Extent]) -> list[Extent]:
    try:
        present = await new.present(extents)
    except IndexDamagedError:  # One of them has other entries.
        present = [False] * len(extents)
    doubtful = [extent for extent, is_there in zip(extents, present, strict=True) if not is_there]
    return [extent for extent in doubtful if not await _has_all(new, extent)]


async def _has_all(new: LocationIndex, extent: Extent) -> bool:
    """Looks for each entry: blocks that compaction wrote may be cut into other extents when they are read again."""
    for entry_id in extent.ids:
        if all(found.place != extent.place for found in await new.find_all(extent.ledger_id, entry_id)):
            return False
    return True


# --- the new one ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rebuild:
    """Fills the index log by log, then returns the flags."""

    logs: EntryLogReader
    new: LocationIndex
    old: _Old
    report: RebuildReport
    master_keys: dict[int, bytes] = field(default_factory=dict)

    async def add_log(self, log_id: int) -> None:
        is_unreferenced = not self.report.locations_lost and self._old_end(log_id) == 0
        if is_unreferenced and not await self.logs.has_header(log_id):
            self.report.torn_ends.append(Damage(log_id, 0, await self.logs.size(log_id), is_tail=True))
            return
        extents: list[Extent] = []
        async for found in self.logs.scan(log_id):
            if isinstance(found, Damage):
                self._note_damage(found)
            elif found.kind == ENTRIES:
                extents.extend(self._read_block(found))
            if len(extents) >= _BATCH_EXTENTS:
                await self.new.apply(IndexBatch(extents=extents))
                extents = []
        if extents:
            await self.new.apply(IndexBatch(extents=extents))
        self._note_if_cut_off(log_id, await self.logs.size(log_id))

    def _read_block(self, block: Block) -> list[Extent]:
        run = frames_of(block)
        self.report.entries += len(run.entry_ids)
        for ledger_id, master_key in keys_of(run):
            self.master_keys.setdefault(ledger_id, master_key)
        return extents_of_block(block, run)

    def _note_damage(self, damage: Damage) -> None:
        is_torn = damage.is_tail and not self.report.locations_lost and self._old_end(damage.log_id) <= damage.offset
        (self.report.torn_ends if is_torn else self.report.damage).append(damage)

    def _note_if_cut_off(self, log_id: int, size: int) -> None:
        """Notes a log that ends between two blocks and looks whole: only the old index knows that it was longer."""
        end = self._old_end(log_id)
        if end > size:
            self.report.damage.append(Damage(log_id, size, end, is_tail=False))

    def _old_end(self, log_id: int) -> int:
        return self.old.log_ends.get(log_id, 0)

    def flags(self) -> dict[int, LedgerFlags]:
        """Returns the old flags, and flags for ledgers without any. If entries may be missing, so may a whole ledger:
        then ledgers that only the old index knows are in limbo, too."""
        flags = dict(self.old.flags)
        is_in_doubt = self.report.flags_lost or self.report.may_miss_entries
        ledgers = self.master_keys.keys() | (self.old.ledgers if is_in_doubt else set())
        for ledger_id in sorted(ledgers - flags.keys()):
            found = LedgerFlags(master_key=self.master_keys.get(ledger_id))
            flags[ledger_id] = _in_limbo(found) if is_in_doubt else found
        if self.report.may_miss_entries:
            flags = {ledger_id: _in_limbo(known) for ledger_id, known in flags.items()}
        return flags


def _in_limbo(flags: LedgerFlags) -> LedgerFlags:
    return flags if flags.deleted_at_ms is not None else dataclasses.replace(flags, limbo=True, fenced=True)


def extents_of_block(block: Block, run: AddRun) -> list[Extent]:
    """Returns the extents that the flush of this block put into the index."""
    found: list[Extent] = []
    for ledger_id, first, end in by_ledger(run):
        found.extend(extents_of(ledger_id, run.entry_ids[first:end], block.place))
    return found
