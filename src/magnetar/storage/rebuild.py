"""Rebuild: the location index anew from the entry logs.

Entries:   every valid block of every log. Entries of ledgers that were deleted come back until the garbage collector
           drops them again.
Flags:     logs have no fences. They are taken over from the old index, as far as it can be read. A ledger whose flags
           cannot be had is put in limbo and fenced: this node may have promised something that it no longer knows.
Damage:    one bad log stops nothing else. If synced bytes are damaged, entries may be missing of any ledger, so all
           are put in limbo: a rebuilt index must not say "no" for what it could not read.
Lost logs: so it is if the old index refers to a log that is not there, or to entries that its log does not have in that
           place: then it is another file under that name.
Torn end:  a crash leaves one in the log that was flushed to, and every such log stays without a footer until it is
           compacted. Bit rot in its last block looks the same, and its journal is long gone. Only the old index can
           tell them apart: a mark moves after the index was written, so the journal still has whatever the index does
           not refer to. Without that index, or if it refers to anything there, a torn end is damage like any other.
           A log may be torn from its beginning on, header and all: it was begun by that flush.
Mark:      the new index's is what the caller says: the journal's own, as all below it is in the logs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
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
    """Where entries may be missing."""
    torn_ends: list[Damage] = field(default_factory=list)
    """Where nothing stands that the old index refers to: what a crash left of a flush. The journal has it. (Or a
    rebuild before this one met damage there: then ledgers are in limbo since.)"""
    unreadable_logs: dict[int, str] = field(default_factory=dict)
    """Those that are gone, too."""
    flags_lost: bool = False
    """Then ledgers fenced here without an entry are forgotten: treat this node as one that lost a disk."""
    locations_lost: bool = False
    """Then nobody can tell a torn end from a damaged one."""

    @property
    def may_miss_ledgers(self) -> bool:
        """Of which not even the name is known here: only the metadata can tell which to fence and put in limbo."""
        return self.flags_lost or (self.locations_lost and self.may_miss_entries)

    @property
    def may_miss_entries(self) -> bool:
        return bool(self.unreadable_logs or self.damage)


async def rebuild_index(
    dirs: LedgerDirs, logs: EntryLogReader, new: LocationIndex, *, old: LocationIndex | None, mark: int | None
) -> RebuildReport:
    """`new` is empty. Flags and mark are written last: an interrupted rebuild does not pass for a whole index.

    `old` has everything up to the journal's mark; None if there is no such index.
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
    """What could be read of the old index."""

    flags: dict[int, LedgerFlags] = field(default_factory=dict)
    ledgers: set[int] = field(default_factory=set)
    """Those with entries."""
    log_ends: dict[int, int] = field(default_factory=dict)
    """By log: where the last block ends that it refers to."""


async def _read_old(old: LocationIndex | None, report: RebuildReport) -> _Old:
    """Flags and locations by themselves: one may be damaged where the other is not."""
    known = _Old()
    if old is None:
        report.flags_lost = report.locations_lost = True
        return known
    try:
        await _read_flags(old, known)
    except (IndexDamagedError, DiskError):
        report.flags_lost = True
    try:
        await _read_locations(old, known)
    except (IndexDamagedError, DiskError):
        report.locations_lost = True
    return known


async def _read_flags(old: LocationIndex, known: _Old) -> None:
    first = 0
    while page := await old.all_flags(first):
        known.flags.update(page)
        first = page[-1][0] + 1


async def _read_locations(old: LocationIndex, known: _Old) -> None:
    """All of them, little as that is beside the logs: one that cannot be read may be of the block in question."""
    async for extents in _all_extents(old):
        for extent in extents:
            known.ledgers.add(extent.ledger_id)
            log_id, offset, size = extent.place
            known.log_ends[log_id] = max(known.log_ends.get(log_id, 0), offset + size)


async def _all_extents(index: LocationIndex) -> AsyncIterator[list[Extent]]:
    """Page by page."""
    ledger = 0
    while ledgers := await index.ledgers(ledger):
        for ledger_id in ledgers:
            first = 0
            while extents := await index.extents(ledger_id, first):
                yield extents
                first = extents[-1].ids[0] + 1
        ledger = ledgers[-1] + 1


# --- the old one and the logs -----------------------------------------------------------------------------------------


def _note_missing(dirs: LedgerDirs, known: _Old, report: RebuildReport) -> None:
    for log_id in sorted(known.log_ends.keys() - set(dirs.log_ids())):
        report.unreadable_logs[log_id] = (
            f"{log_path(log_id)} is in none of the ledger directories, and the old index has entries in it: they are "
            "lost on this bookie"
        )


async def _note_other_blocks(old: LocationIndex, new: LocationIndex, report: RebuildReport) -> None:
    """Once for each log in which nothing else was found wrong."""
    noted = report.unreadable_logs.keys() | {damage.log_id for damage in report.damage}
    async for extents in _all_extents(old):
        doubtful = [extent for extent in extents if extent.place.log_id not in noted]
        for extent in await _absent(new, doubtful):
            log_id, offset, _ = extent.place
            noted.add(log_id)
            report.unreadable_logs[log_id] = (
                f"{log_path(log_id)} at {offset}: it lacks entries of ledger {extent.ledger_id} that the old index has "
                "there, so it is another log than that one knew; they are lost on this bookie"
            )


async def _absent(new: LocationIndex, extents: list[Extent]) -> list[Extent]:
    try:
        present = await new.present(extents)
    except IndexDamagedError:  # One of them has other entries.
        present = [False] * len(extents)
    doubtful = [extent for extent, is_there in zip(extents, present, strict=True) if not is_there]
    return [extent for extent in doubtful if not await _has_all(new, extent)]


async def _has_all(new: LocationIndex, extent: Extent) -> bool:
    """Entry by entry: blocks that compaction wrote may be cut into other extents when they are read again."""
    for entry_id in extent.ids:
        if all(found.place != extent.place for found in await new.find_all(extent.ledger_id, entry_id)):
            return False
    return True


# --- the new one ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rebuild:
    """From logs to index, log by log; then the flags."""

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
        run = scan_frames(block.body, f"{log_path(block.place.log_id)} at {block.place.offset}")
        self.report.entries += len(run.entry_ids)
        _note_keys(run, self.master_keys)
        return extents_of_block(block, run)

    def _note_damage(self, damage: Damage) -> None:
        is_torn = damage.is_tail and not self.report.locations_lost and self._old_end(damage.log_id) <= damage.offset
        (self.report.torn_ends if is_torn else self.report.damage).append(damage)

    def _note_if_cut_off(self, log_id: int, size: int) -> None:
        """A log that ends between two blocks looks whole: only the old index knows that there was more."""
        end = self._old_end(log_id)
        if end > size:
            self.report.damage.append(Damage(log_id, size, end, is_tail=False))

    def _old_end(self, log_id: int) -> int:
        return self.old.log_ends.get(log_id, 0)

    def flags(self) -> dict[int, LedgerFlags]:
        """The old ones, and those of ledgers without any. If entries may be missing, a ledger's all may be: what only
        the old index knows is in limbo, too."""
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
    """What the flush that wrote this block put into the index for it."""
    found: list[Extent] = []
    for ledger_id, first, end in by_ledger(run):
        found.extend(extents_of(ledger_id, run.entry_ids[first:end], block.place))
    return found


def _note_keys(run: AddRun, master_keys: dict[int, bytes]) -> None:
    for context in run.contexts:
        ledger_id, master_key, _ = parse_context(context)
        master_keys.setdefault(ledger_id, master_key)
