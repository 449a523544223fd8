"""Write cache: entries that are journaled but not yet in an entry log; and its flush, to blocks of logs and the index.

Invariant: a repeated entry replaces the one before; both are the same entry (a resend or a recovery add). Once a cache
           is being flushed, only `drop` changes it.
Order:     flush: blocks written → logs synced → index applied. Only then may the cache, and the journal's part of it,
           go.
Failure:   after a full disk the logs are written anew from the cache. Once they are synced the batch is fixed, and
           only applying it is tried again.
Threads:   building blocks is interpreter work: on a thread it would hold the same lock as the loop does, for longer at
           a time. So it is done on the loop, in slices of SLICE_BYTES; while one is being written the next is built.
Format:    every frame has a number, in the order of arrival; three arrays have, for each number, the entry's chunk, its
           offset (its frame's head stands right before it, frames.py) and its length. Per ledger a dict from entry id
           to number. So a run of entries is put in by one `dict.update`, a run of many ledgers by one dict look-up
           each; there is no object per entry, and neither arrays nor ints are work for the garbage collector.
           The chunk is the very object that the journal writes: nothing is copied.
Read next: ledger_storage.py
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.errors import SyncFailedError
from magnetar.runtime.disk import Buffer
from magnetar.storage.entry_log.writer import EntryLogWriter, NewBlock
from magnetar.storage.frames import ENTRY_OFFSET
from magnetar.storage.index.extents import Extent, extents_of
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.ledger_flags import LedgerFlags

CHUNK_BYTES_MAX: Final = (1 << 24) - 1
ENTRY_OVERHEAD_BYTES: Final = 150  # What arrays, dict and its two ints take per entry, measured; counted as used.
_FEW: Final = 50  # This many entries are mostly one run: views of all are made before anything else is looked at.


class CachedRun(NamedTuple):
    """Frames of one ledger, in the order of their entries."""

    ledger_id: int
    entry_ids: list[int]
    frames: list[memoryview]
    """Views of the frames; entries that came one after the other in one chunk are one view."""
    frames_bytes: int


class WriteCache:
    __slots__ = ("_chunk_of", "_chunks", "_lengths", "_numbers", "_offsets", "bytes", "entries")

    def __init__(self) -> None:
        self.bytes = 0
        """Memory in use: chunks, and an estimate of the arrays and dicts."""
        self.entries = 0
        """The number of entries; a repeated one counts twice."""
        self._chunks: list[memoryview] = []
        self._chunk_of = array("I")
        self._offsets = array("I")
        self._lengths = array("I")
        self._numbers: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """By ledger and entry."""

    def put_run(
        self, ledger_id: int, chunk: bytes, entry_ids: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """Adds entries of one ledger in one chunk, where they stand one after the other.

        Further runs of the same chunk follow in their order, before another chunk does.
        """
        first = self._note(chunk, offsets, lengths)
        self._numbers[ledger_id].update(zip(entry_ids, range(first, self.entries), strict=True))

    def put_many(
        self,
        ledger_ids: Sequence[int],
        chunk: bytes,
        entry_ids: Sequence[int],
        offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Adds entries of many ledgers, each with its ledger's id."""
        numbers = self._numbers
        first = self._note(chunk, offsets, lengths)
        for ledger_id, entry_id, number in zip(ledger_ids, entry_ids, range(first, self.entries), strict=True):
            numbers[ledger_id][entry_id] = number

    def _note(self, chunk: bytes, offsets: Sequence[int], lengths: Sequence[int]) -> int:
        """Notes the places of frames, and returns the number of the first one."""
        chunks = self._chunks
        if not chunks or chunks[-1].obj is not chunk:
            assert len(chunk) <= CHUNK_BYTES_MAX, f"a chunk of {len(chunk)} bytes exceeds {CHUNK_BYTES_MAX}"
            chunks.append(memoryview(chunk))
            self.bytes += len(chunk)
        first, count = self.entries, len(offsets)
        self._chunk_of.extend(array("I", (len(chunks) - 1,)) * count)
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)
        self.entries = first + count
        self.bytes += count * ENTRY_OVERHEAD_BYTES
        return first

    def get(self, ledger_id: int, entry_id: int) -> memoryview | None:
        known = self._numbers.get(ledger_id)
        number = known.get(entry_id) if known is not None else None
        if number is None:
            return None
        offset = self._offsets[number]
        return self._chunks[self._chunk_of[number]][offset : offset + self._lengths[number]]

    def last_entry(self, ledger_id: int) -> int | None:
        known = self._numbers.get(ledger_id)
        return max(known) if known else None

    def entry_ids(self, ledger_id: int) -> list[int]:
        return sorted(self._numbers.get(ledger_id, ()))

    def ledger_ids(self) -> list[int]:
        return sorted(self._numbers)

    def has_ledger(self, ledger_id: int) -> bool:
        return ledger_id in self._numbers

    def drop(self, ledger_id: int) -> None:
        """Forgets a ledger. The chunks stay until the whole cache is dropped: other ledgers share them."""
        self._numbers.pop(ledger_id, None)

    def runs(self, run_bytes: int) -> Iterator[CachedRun]:
        """Yields everything, by ledger and entry, in runs of about this size: a run ends with the frame that reaches
        it."""
        for ledger_id in sorted(self._numbers):
            known = self._numbers.get(ledger_id)
            if not known:  # It was dropped since.
                continue
            entry_ids, numbers = list(known), list(known.values())
            ordered = sorted(entry_ids)
            if ordered != entry_ids:
                entry_ids, numbers = ordered, [known[entry_id] for entry_id in ordered]
            if len(numbers) <= _FEW:
                views = self._views(numbers)
                size = sum(map(len, views))
                if size < run_bytes:
                    yield CachedRun(ledger_id, entry_ids, views, size)
                    continue
            yield from self._long_runs(ledger_id, entry_ids, numbers, run_bytes)

    def _long_runs(
        self, ledger_id: int, entry_ids: list[int], numbers: list[int], run_bytes: int
    ) -> Iterator[CachedRun]:
        lengths = self._lengths
        begin = size = 0
        for index, number in enumerate(numbers):
            size += lengths[number] + ENTRY_OFFSET
            if size >= run_bytes:
                end = index + 1
                yield CachedRun(ledger_id, entry_ids[begin:end], self._views(numbers[begin:end]), size)
                begin, size = end, 0
        if size:
            yield CachedRun(ledger_id, entry_ids[begin:], self._views(numbers[begin:]), size)

    def _views(self, numbers: Sequence[int]) -> list[memoryview]:
        first, count = numbers[0], len(numbers)
        if count > 1 and numbers[-1] - first == count - 1 and numbers == list(range(first, first + count)):
            return self._stretches(first, first + count)
        return self._frames(numbers)

    def _frames(self, numbers: Sequence[int]) -> list[memoryview]:
        chunks, chunk_of, offsets, lengths = self._chunks, self._chunk_of, self._offsets, self._lengths
        return [
            chunks[chunk_of[number]][(offset := offsets[number]) - ENTRY_OFFSET : offset + lengths[number]]
            for number in numbers
        ]

    def _stretches(self, first: int, end: int) -> list[memoryview]:
        """Returns views of frames that arrived one after the other; adjacent ones in a chunk are one view."""
        views: list[memoryview] = []
        while first < end:
            chunk = self._chunk_of[first]
            following = bisect_right(self._chunk_of, chunk, first, end)
            last = following - 1
            view = self._chunks[chunk][self._offsets[first] - ENTRY_OFFSET : self._offsets[last] + self._lengths[last]]
            if len(view) == sum(self._lengths[first:following]) + (following - first) * ENTRY_OFFSET:
                views.append(view)
            else:
                views += self._frames(range(first, following))
            first = following
        return views


SLICE_BYTES: Final = 512 * 2**10  # About a millisecond of work, or less.


@dataclass(slots=True)
class Flush:
    """A write cache that was swapped out and is not durable in logs and index yet."""

    cache: WriteCache
    flags: dict[int, LedgerFlags]
    mark: int
    batch: IndexBatch | None = field(default=None)
    """Set when the logs are synced."""

    def drop(self, ledger_id: int) -> None:
        """Writes nothing more of a ledger that is being deleted."""
        self.cache.drop(ledger_id)
        self.flags.pop(ledger_id, None)
        if self.batch is not None:
            self.batch.flags.pop(ledger_id, None)
            self.batch.extents = [extent for extent in self.batch.extents if extent.ledger_id != ledger_id]

    async def run(self, writer: EntryLogWriter, index: LocationIndex, block_bytes: int) -> None:
        if self.batch is None:
            extents = await self._write(writer, block_bytes)
            self.batch = IndexBatch(extents=extents, flags=self.flags, mark=self.mark)
        await index.apply(self.batch)

    async def _write(self, writer: EntryLogWriter, block_bytes: int) -> list[Extent]:
        try:
            extents = await _write_slices(writer, _slices(_blocks(self.cache, block_bytes)))
            await writer.sync()
        except SyncFailedError:
            raise
        except BaseException:
            await writer.abandon()
            raise
        return extents


class _Built(NamedTuple):
    block: NewBlock
    runs: list[CachedRun]
    """What it is made of."""


async def _write_slices(writer: EntryLogWriter, slices: Iterator[list[_Built]]) -> list[Extent]:
    extents: list[Extent] = []
    writing: asyncio.Task[list[Extent]] | None = None
    try:
        for pending in slices:
            if writing is not None:
                extents += await writing
            writing = asyncio.create_task(_write_slice(writer, pending), name="flush-slice")
            await asyncio.sleep(0)  # The write is with the disk's thread now, and other tasks had a turn.
        if writing is not None:
            extents += await writing
    finally:
        if writing is not None:
            await asyncio.wait([writing])  # However this ended, no write may continue after it.
    return extents


async def _write_slice(writer: EntryLogWriter, pending: list[_Built]) -> list[Extent]:
    places = await writer.append([built.block for built in pending])
    return [
        extent
        for (_, runs), place in zip(pending, places, strict=True)
        for ledger_id, entry_ids, _, _ in runs
        for extent in extents_of(ledger_id, entry_ids, place)
    ]


def _blocks(cache: WriteCache, block_bytes: int) -> Iterator[_Built]:
    """Yields the blocks to write. Runs of small ledgers share a block."""
    runs: list[CachedRun] = []
    views: list[memoryview] = []
    frames = size = 0
    for run in cache.runs(block_bytes):
        _, entry_ids, its_views, its_bytes = run
        runs.append(run)
        views += its_views
        frames += len(entry_ids)
        size += its_bytes
        if size >= block_bytes:
            yield _built(runs, views, frames)
            runs, views = [], []
            frames = size = 0
    if runs:
        yield _built(runs, views, frames)


def _built(runs: list[CachedRun], views: list[memoryview], frames: int) -> _Built:
    body: Buffer = views[0] if len(views) == 1 else b"".join(views)
    ledgers = [(ledger_id, its_bytes) for ledger_id, _, _, its_bytes in runs]
    return _Built(NewBlock(body, frames, ledgers), runs)


def _slices(blocks: Iterator[_Built]) -> Iterator[list[_Built]]:
    pending: list[_Built] = []
    size = 0
    for built in blocks:
        pending.append(built)
        size += len(built.block.body)
        if size >= SLICE_BYTES:
            yield pending
            pending, size = [], 0
    if pending:
        yield pending
