"""Compaction: room comes back from entry logs, whole logs at a time.

Dead:      a finished log of which no ledger is alive is removed as it is.
Rewritten: a log of which less than the threshold is alive: what the index refers to is copied into a new log.
Order:     copied → new log synced → index refers to the new place, durably → old log removed → its name synced. A crash
           between any two leaves every entry where the index says it is. A ledger deleted meanwhile stays deleted: the
           index is asked again under the lock that deletions take.
Alive:     decided twice. Which logs to rewrite: by the ledger maps of the logs (log_survey.py). What to copy: by the
           index, extent by extent.
Reads:     one that was on its way to a log that is gone asks the index again (reads.py).
Damage:    what can be read is moved; the log stays as long as the index refers to anything in it, is reported, and
           stops nothing else.
Torn:      a crash may leave a log without even its header. Nothing refers to it, and it goes.
Newest:    the log with the highest id is never removed, so no id is used twice, also after a restart.
Left over: a crash, or an index without room, may leave a copy that nothing refers to. It goes when its ledgers go, or
           with a later compaction.
Read next: log_survey.py, docs/entry-logs.md
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.config.storage import StorageConfig
from magnetar.errors import DiskError, LogDamagedError, StorageDamagedError, SyncFailedError
from magnetar.storage.entry_log_format import ENTRIES, Block, log_path
from magnetar.storage.entry_log_reader import Damage
from magnetar.storage.entry_log_writer import EntryLogWriter, NewBlock
from magnetar.storage.extents import Extent, extents_of
from magnetar.storage.flush import SLICE_BYTES
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.storage.log_survey import LogUsage, Survey

_log = logging.getLogger(__name__)

_MOVES_MAX: Final = 10_000  # Extents that are copied and not yet in the index: what a log of many small ledgers costs.


@dataclass(slots=True)
class CompactionStatistics:
    minor: int = 0
    major: int = 0
    put_off: int = 0
    """Due, but the disk had no room for it."""
    logs_rewritten: int = 0
    logs_removed: int = 0
    bytes_moved: int = 0
    bytes_freed: int = 0
    """Sizes of removed logs."""


class Compactor:
    """At most one per storage, and one `run` at a time."""

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
        """Logs that cannot be removed for it, and why; until a restart, or until nothing of them is alive."""
        self.statistics = CompactionStatistics()

    async def run(self) -> None:
        """Removes dead logs; compacts if that is due. DiskFullError, or what ends the bookie."""
        unreadable: dict[int, Exception] = {}
        usages = await self._survey.look(unreadable.__setitem__)
        for log_id in sorted(unreadable.keys() - self.damaged.keys()):
            await self._judge(log_id, unreadable[log_id])
        for usage in usages:
            if usage.is_finished and usage.live_bytes == 0:
                await self._remove(usage.log_id)
        percent = self._due_percent()
        if percent is not None:
            await self.compact([usage for usage in usages if usage.is_below(percent)])

    def _due_percent(self) -> int | None:
        """The threshold of what is due now. A major compaction does what a minor one would do."""
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
        """Rewrites these, those with the least alive first: they free the most for what they cost."""
        there = set(self._storage.dirs.log_ids())
        wanted = [usage for usage in usages if usage.log_id in there and usage.log_id not in self.damaged]
        wanted.sort(key=lambda usage: (usage.live_bytes / max(1, usage.total_bytes), usage.log_id))
        writer = self._storage.new_writer()
        try:
            for usage in wanted:
                if not self._may_write():
                    self.statistics.put_off += 1
                    break
                await self._storage.check_reserve()  # Else each try would leave a copy that the index cannot take.
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
        """Everything alive is in another place, and the index says so. Returns the first damage that was met."""
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
        """An error of reading is a matter of this log alone; one of writing is not."""
        try:
            async for found in self._storage.logs.scan(log_id):
                yield found
        except DiskError as error:
            raise LogDamagedError(f"it cannot be read: {error}") from error

    async def _judge(self, log_id: int, error: Exception) -> None:
        """A log that is torn from its header on, and that nothing refers to, is what a crash left of a flush."""
        if not await self._has_torn_header(log_id) or await self._is_referenced(log_id):
            self._note_damage(log_id, error)
            return
        _log.warning("%s has no header and nothing refers to it, as a crash leaves one: removed", log_path(log_id))
        await self._remove(log_id)

    async def _has_torn_header(self, log_id: int) -> bool:
        try:
            return not await self._storage.logs.has_header(log_id)
        except DiskError:
            return False

    async def _is_referenced(self, log_id: int) -> bool:
        """Reads the whole index: only for a log with damage, and once for each."""
        index = self._storage.index
        ledger = 0
        while ledgers := await index.ledgers(ledger):
            for ledger_id in ledgers:
                first = 0
                while extents := await index.extents(ledger_id, first):
                    if any(extent.place.log_id == log_id for extent in extents):
                        return True
                    first = extents[-1].ids[0] + 1
            ledger = ledgers[-1] + 1
        return False

    async def _remove(self, log_id: int) -> None:
        try:
            freed = await self._storage.remove_log(log_id)
        except SyncFailedError:
            raise
        except DiskError as error:
            self._note_damage(log_id, error)
            return
        self.damaged.pop(log_id, None)
        self.statistics.logs_removed += 1
        self.statistics.bytes_freed += freed

    def _note_damage(self, log_id: int, error: Exception) -> None:
        if log_id not in self.damaged:
            _log.error("%s is left as it is: %s", log_path(log_id), error)
        self.damaged[log_id] = str(error)


class LivePart(NamedTuple):
    """What the index refers to of one block, as a block of its own."""

    extents: list[Extent]
    block: NewBlock


@dataclass(slots=True)
class LogCopy:
    """Live parts of blocks on their way into new logs, one new block for each old one."""

    storage: LedgerStorage
    writer: EntryLogWriter
    bytes_moved: int = 0
    _unwritten: list[LivePart] = field(default_factory=list)
    _unwritten_bytes: int = 0
    _moves: list[tuple[Extent, Extent]] = field(default_factory=list)
    """Old and new, written and not yet in the index."""

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
        """When this returns, the index refers to the copies, durably."""
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
        run = scan_frames(block.body, f"{log_path(block.place.log_id)} at {block.place.offset}")
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
    """So many bytes per second, no matter how they come: who took many waits longer next time."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def wait(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        begin = max(now, self._free_at)
        self._free_at = begin + size / self._bytes_per_s
        await asyncio.sleep(begin - now)
