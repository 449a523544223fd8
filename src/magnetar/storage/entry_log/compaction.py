"""Garbage collection deletes ledgers that the metadata no longer knows; compaction gives their room back, log by log.

Purpose:   a finished log of which no ledger is alive is removed. If less than the threshold of a log is alive, what
           the index refers to is copied into a new log first.
Invariant: nothing is deleted that the metadata knows. A ledger's metadata is made before its first entry. A ledger that
           the metadata knows stays, even if this bookie is in none of its ensembles: a copy of it may be in progress.
           Apache does the same unless it is configured to look for over-replicated ledgers.
           The index decides, extent by extent, what is copied. The ledger maps at the end of the logs only decide which
           logs to look at: a ledger counts as alive while the bookie has anything of it, which may be too much and is
           never too little. The log with the highest id is never removed, so no id is used twice, also after a restart.
Order:     garbage: local ledgers listed → metadata brought up to date → its ledgers listed → each that is missing there
           is asked for once more, directly → deleted. A ledger that is made during this is not in the first list, and
           one that the second list missed is found by the direct look.
           compaction: copied → new log synced → index refers to the new place, durably → old log removed → its name
           synced. A crash between any two leaves every entry where the index says it is. A ledger that is deleted
           during the copy stays deleted: the index is asked again under the lock that deletions take. A read that meant
           to use the removed log asks the index again (storage/reads.py).
Failure:   any error while looking for garbage keeps the ledger. Without a usable metadata session nothing is done.
           What can be read of a damaged log is moved; the log stays as long as the index refers to anything in it, is
           reported, and stops nothing else. A crash may leave a log without its map, which is scanned; a log without
           a header, which nothing refers to, is removed. A crash, or an index without room, may leave a copy that
           nothing refers to: it is removed with its ledgers, or by a later compaction.
Limits:    the survey reads each log twice, and only in rounds after which a ledger was deleted; it scans a log once
           per process.
Read next: magnetar/bookie/housekeeping.py, docs/entry-logs.md
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from magnetar.config.storage import StorageConfig
from magnetar.errors import (
    DiskError,
    LogDamagedError,
    MetadataError,
    StorageDamagedError,
    SyncFailedError,
    TombstonesFullError,
)
from magnetar.storage.entry_log.format import ENTRIES, Block, log_path
from magnetar.storage.entry_log.reader import Damage, frames_of
from magnetar.storage.entry_log.writer import EntryLogWriter, NewBlock
from magnetar.storage.frames import by_ledger
from magnetar.storage.index.extents import Extent, extents_of
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.storage.write_cache import SLICE_BYTES

_log = logging.getLogger(__name__)


class LedgerCatalogue(Protocol):
    """The cluster's metadata, as garbage collection sees it. A result that is in doubt is an error."""

    @property
    def is_usable(self) -> bool: ...

    async def refresh(self) -> None:
        """Brings the metadata up to date: later reads are not older than this call."""

    def list(self) -> AsyncIterator[int]: ...

    async def exists(self, ledger_id: int) -> bool: ...


@dataclass(slots=True)
class GarbageStatistics:
    rounds: int = 0
    rounds_given_up: int = 0
    """Rounds without a usable session, or in which the metadata could not be listed."""
    ledgers: int = 0
    """Here, at the last round."""
    deleted: int = 0
    spared: int = 0
    """Ledgers that were missing in the list, but found by the direct look."""
    doubtful: int = 0
    """Ledgers that were kept because the direct look, or the deletion, failed."""


class GarbageCollector:
    def __init__(
        self,
        storage: LedgerStorage,
        catalogue: LedgerCatalogue,
        forget: Callable[[int], None],
        ledgers_max: int,
    ) -> None:
        """`forget` is called in the turn of the loop in which the ledger is deleted."""
        self._storage = storage
        self._catalogue = catalogue
        self._forget = forget
        self._ledgers_max = ledgers_max
        self.statistics = GarbageStatistics()

    async def collect(self) -> int:
        """One round; returns how many ledgers were deleted. What is beyond the limit waits for the next one."""
        if not self._catalogue.is_usable:
            self.statistics.rounds_given_up += 1
            return 0
        here = await self._storage.list_remembered()
        self.statistics.ledgers = len(here)
        try:
            missing = await self._missing(here)
        except MetadataError as error:
            _log.warning("deleted ledgers cannot be found: %s", error)
            self.statistics.rounds_given_up += 1
            return 0
        deleted = await self._delete(missing)
        self.statistics.rounds += 1
        return deleted

    async def _missing(self, here: list[int]) -> list[int]:
        if not here:
            return []
        await self._catalogue.refresh()
        missing = dict.fromkeys(here)
        async for ledger_id in self._catalogue.list():
            missing.pop(ledger_id, None)
        return list(missing)

    async def _delete(self, missing: list[int]) -> int:
        deleted = 0
        for ledger_id in missing:
            if deleted >= self._ledgers_max or not self._catalogue.is_usable:
                break
            if not await self._is_gone(ledger_id):
                continue
            try:
                await self._storage.delete_ledger(ledger_id)
            except (TombstonesFullError, StorageDamagedError) as error:
                _log.warning("ledger %d is kept: %s", ledger_id, error)
                self.statistics.doubtful += 1
                continue  # The others can still go.
            self._forget(ledger_id)
            deleted += 1
            self.statistics.deleted += 1
        return deleted

    async def _is_gone(self, ledger_id: int) -> bool:
        try:
            exists = await self._catalogue.exists(ledger_id)
        except MetadataError as error:
            _log.warning("ledger %d is kept, its metadata cannot be read: %s", ledger_id, error)
            self.statistics.doubtful += 1
            return False
        if exists:
            self.statistics.spared += 1
        return not exists


_MOVES_MAX: Final = 10_000  # Extents that are copied and not yet in the index: what a log of many small ledgers costs.


class LogUsage(NamedTuple):
    log_id: int
    total_bytes: int
    """Bytes of entries in the log."""
    live_bytes: int
    is_finished: bool
    """Whether the ledger map is the writer's own, and complete."""

    def is_below(self, percent: int) -> bool:
        return self.live_bytes == 0 or self.live_bytes * 100 < self.total_bytes * percent


class Survey:
    """Measures how much of each log is alive. The results are valid as long as no ledger is deleted."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._alive: frozenset[int] = frozenset()
        self._known: dict[int, LogUsage] = {}
        self._scanned: dict[int, dict[int, int]] = {}
        """Maps of logs that a crash left unfinished: few, and each cost a scan."""

    async def look(self, on_damage: Callable[[int, Exception], None]) -> list[LogUsage]:
        log_ids = await self._storage.settled_logs()  # First: what is in them is in the index, or deleted.
        alive = await self._alive_ledgers()
        if self._alive - alive:
            self._known.clear()
        self._alive = alive
        known: dict[int, LogUsage] = {}
        for log_id in log_ids:
            try:
                known[log_id] = self._known.get(log_id) or await self._usage(log_id)
            except (StorageDamagedError, DiskError) as error:
                on_damage(log_id, error)
        self._known = known
        self._scanned = {log_id: sizes for log_id, sizes in self._scanned.items() if log_id in known}
        return list(known.values())

    async def _alive_ledgers(self) -> frozenset[int]:
        found: list[int] = []
        while page := await self._storage.list_ledgers(found[-1] + 1 if found else 0):
            found += page
        return frozenset(found)

    async def _usage(self, log_id: int) -> LogUsage:
        logs = self._storage.logs
        sizes = self._scanned.get(log_id)
        is_finished = False
        if sizes is None:
            sizes = await logs.finished_map(log_id)
            is_finished = sizes is not None
        if sizes is None:
            sizes = self._scanned[log_id] = await logs.scanned_map(log_id)
        live = sum([size for ledger_id, size in sizes.items() if ledger_id in self._alive])
        return LogUsage(log_id, sum(sizes.values()), live, is_finished)


@dataclass(slots=True)
class CompactionStatistics:
    minor: int = 0
    major: int = 0
    put_off: int = 0
    """Logs that were due, but for which the disk had no room."""
    logs_rewritten: int = 0
    logs_removed: int = 0
    bytes_moved: int = 0
    bytes_freed: int = 0
    """Sizes of removed logs."""


class Compactor:
    """Removes dead logs and rewrites sparse ones. A storage has one at most, and it makes one `run` at a time."""

    def __init__(self, storage: LedgerStorage, config: StorageConfig, may_write: Callable[[], bool]) -> None:
        self._storage = storage
        self._config = config
        self._may_write = may_write
        self._throttle = Throttle(config.compaction_bytes_per_s)
        now = asyncio.get_running_loop().time()
        self._minor_at = now + config.minor_compaction_interval_ms / 1000
        self._major_at = now + config.major_compaction_interval_ms / 1000
        self._survey = Survey(storage)
        self.damaged: dict[int, str] = {}
        """Logs that cannot be removed because of damage, and the damage; until a restart, or until nothing of them is
        alive."""
        self._unremoved: dict[int, None] = {}
        """Logs that nothing refers to, and that could not be removed."""
        self.statistics = CompactionStatistics()

    async def run(self) -> None:
        """Removes dead logs, and compacts if that is due. Raises DiskFullError, or an error that ends the bookie."""
        for log_id in list(self._unremoved):
            await self._remove(log_id)
        unreadable: dict[int, Exception] = {}
        usages = await self._survey.look(unreadable.__setitem__)
        for log_id in sorted(unreadable.keys() - self.damaged.keys()):
            await self._judge(log_id, unreadable[log_id])
        for usage in usages:
            if usage.is_finished and usage.live_bytes == 0 and usage.log_id not in self._unremoved:
                await self._remove(usage.log_id)
        percent = self._due_percent()
        if percent is not None:
            await self.compact([usage for usage in usages if usage.is_below(percent)])

    def _due_percent(self) -> int | None:
        """Returns the threshold of the compaction that is due now. A major compaction includes a minor one."""
        now = asyncio.get_running_loop().time()
        config = self._config
        is_major = bool(config.major_compaction_threshold_percent) and now >= self._major_at
        is_minor = bool(config.minor_compaction_threshold_percent) and now >= self._minor_at
        if not (is_major or is_minor):
            return None
        if not self._may_write():
            self.statistics.put_off += 1
            return None
        self._minor_at = now + config.minor_compaction_interval_ms / 1000
        if not is_major:
            self.statistics.minor += 1
            return config.minor_compaction_threshold_percent
        self._major_at = now + config.major_compaction_interval_ms / 1000
        self.statistics.major += 1
        return config.major_compaction_threshold_percent

    async def compact(self, usages: list[LogUsage]) -> None:
        """Rewrites these logs, those with the least alive first: they free the most for what they cost."""
        there = set(self._storage.dirs.log_ids())
        wanted = [usage for usage in usages if usage.log_id in there and usage.log_id not in self.damaged]
        wanted.sort(key=lambda usage: (usage.live_bytes / max(1, usage.total_bytes), usage.log_id))
        writer = self._storage.new_writer()
        try:
            for usage in wanted:
                if not self._may_write():
                    self.statistics.put_off += 1
                    break
                await self._storage.check_reserve()  # Otherwise each try would leave a copy that the index cannot take.
                await self._rewrite(usage.log_id, writer)
        except SyncFailedError:
            raise
        except BaseException:
            await writer.abandon()
            raise
        finally:
            await writer.aclose()

    async def _rewrite(self, log_id: int, writer: EntryLogWriter) -> None:
        copy = LogCopy(self._storage, writer)
        try:
            damage = await self._copy_all(log_id, copy)
            if damage is not None and await self._is_referenced(log_id):
                raise LogDamagedError(
                    f"{log_path(log_id)}: entries are lost between {damage.offset} and {damage.end}; what can be read "
                    "of it was moved, and the log is kept"
                )
        except StorageDamagedError as error:
            self._note_damage(log_id, error)
            await copy.commit()
            return
        finally:
            self.statistics.bytes_moved += copy.bytes_moved
        self.statistics.logs_rewritten += 1
        await self._remove(log_id)

    async def _copy_all(self, log_id: int, copy: LogCopy) -> Damage | None:
        """Copies everything alive and updates the index. Returns the first damage that was met."""
        damage: Damage | None = None
        async with contextlib.aclosing(self._scan(log_id)) as blocks:
            async for found in blocks:
                if isinstance(found, Damage):
                    damage = damage or found
                    continue
                await self._throttle.wait(found.place.size)
                if found.kind == ENTRIES:
                    await copy.add(found)
        await copy.commit()
        return damage

    async def _scan(self, log_id: int) -> AsyncGenerator[Block | Damage, None]:
        """Yields the log's blocks. An error of reading concerns this log alone; one of writing does not."""
        try:
            async for found in self._storage.logs.scan(log_id):
                yield found
        except DiskError as error:
            raise LogDamagedError(f"it cannot be read: {error}") from error

    async def _judge(self, log_id: int, error: Exception) -> None:
        """Removes the log if a crash left it: its header is torn and nothing refers to it. Otherwise reports the
        damage."""
        if not await self._has_torn_header(log_id) or await self._is_referenced(log_id):
            self._note_damage(log_id, error)
            return
        _log.warning("%s had no header and nothing referred to it, as after a crash: removed", log_path(log_id))
        await self._remove(log_id)

    async def _has_torn_header(self, log_id: int) -> bool:
        try:
            return not await self._storage.logs.has_header(log_id)
        except DiskError:
            return False

    async def _is_referenced(self, log_id: int) -> bool:
        """Reads the whole index, which is done only for a damaged log, and once for each."""
        async for extents in self._storage.index.extent_pages():
            if any(extent.place.log_id == log_id for extent in extents):
                return True
        return False

    async def _remove(self, log_id: int) -> None:
        try:
            freed = await self._storage.remove_log(log_id)
        except SyncFailedError:
            raise
        except DiskError as error:
            self._note_damage(log_id, error)
            self._unremoved[log_id] = None  # The next round tries again.
            return
        self.damaged.pop(log_id, None)
        self._unremoved.pop(log_id, None)
        self.statistics.logs_removed += 1
        self.statistics.bytes_freed += freed

    def _note_damage(self, log_id: int, error: Exception) -> None:
        if log_id not in self.damaged:
            _log.error("%s is left as it is: %s", log_path(log_id), error)
        self.damaged[log_id] = str(error)


class LivePart(NamedTuple):
    """The part of a block that the index refers to, as a block of its own."""

    extents: list[Extent]
    block: NewBlock


@dataclass(slots=True)
class LogCopy:
    """Copies live parts of blocks into new logs, one new block for each old one."""

    storage: LedgerStorage
    writer: EntryLogWriter
    bytes_moved: int = 0
    _unwritten: list[LivePart] = field(default_factory=list)
    _unwritten_bytes: int = 0
    _moves: list[tuple[Extent, Extent]] = field(default_factory=list)
    """Old and new extents that are written and not yet in the index."""

    async def add(self, block: Block) -> None:
        part = await self._live_part(block)
        if part is None:
            return
        self._unwritten.append(part)
        self._unwritten_bytes += len(part.block.body)
        if self._unwritten_bytes >= SLICE_BYTES:
            await self._write()
        if len(self._moves) >= _MOVES_MAX:
            await self.commit()

    async def commit(self) -> None:
        """Makes the index refer to the copies, durably."""
        await self._write()
        if not self._moves:
            return
        await self.writer.sync()
        moves, self._moves = self._moves, []
        await self.storage.move(moves)

    async def _write(self) -> None:
        parts, self._unwritten = self._unwritten, []
        places = await self.writer.append([part.block for part in parts]) if parts else []
        for part, place in zip(parts, places, strict=True):
            self._moves += [(extent, extent._replace(place=place)) for extent in part.extents]
        self.bytes_moved += self._unwritten_bytes
        self._unwritten_bytes = 0

    async def _live_part(self, block: Block) -> LivePart | None:
        run = frames_of(block)
        bounds = [offset - run.offsets[0] for offset in run.offsets] + [len(block.body)]
        pieces: list[tuple[Extent, int, int]] = []
        for ledger_id, first, end in by_ledger(run):
            at = first
            for extent in extents_of(ledger_id, run.entry_ids[first:end], block.place):
                pieces.append((extent, bounds[at], bounds[at + len(extent.ids)]))
                at += len(extent.ids)
        present = await self.storage.index.present([extent for extent, _, _ in pieces])
        alive = [piece for piece, is_there in zip(pieces, present, strict=True) if is_there]
        if not alive:
            return None
        body = b"".join([block.body[begin:end] for _, begin, end in alive])
        ledgers = [(extent.ledger_id, end - begin) for extent, begin, end in alive]
        extents = [extent for extent, _, _ in alive]
        return LivePart(extents, NewBlock(body, sum([len(extent.ids) for extent in extents]), ledgers))


class Throttle:
    """Allows this many bytes per second on average: after a large request, the next one waits longer."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def wait(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        begin = max(now, self._free_at)
        self._free_at = begin + size / self._bytes_per_s
        await asyncio.sleep(begin - now)
