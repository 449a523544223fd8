"""Read cache: entries that were read from a log, and those that came with them.

Purpose:   logs are sorted by ledger, so the entries after one in the file are those that its reader asks for next. Only
           entries of this ledger are kept: other ledgers in the block may have been deleted since.
Format:    chunks, each the entries of one ledger from one read of a log, and per ledger a dict from entry to
           chunk << 48 | offset << 24 | length.
Limits:    `bytes_max`, bookkeeping included; the chunk not used for the longest time is evicted.
Read next: write_cache.py
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from magnetar.storage.entry_log.format import BLOCK_HEADER_BYTES, Block, log_path
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.write_cache import CHUNK_BYTES_MAX, ENTRY_OVERHEAD_BYTES

_OFFSET: Final = 24


_CHUNK: Final = 48


_FIELD: Final = (1 << 24) - 1


class LedgerRun(NamedTuple):
    ledger_id: int
    data: bytes
    entry_ids: list[int]
    offsets: list[int]
    """Places of the entries in `data`."""
    lengths: list[int]

    def get(self, entry_id: int) -> memoryview | None:
        try:
            index = self.entry_ids.index(entry_id)
        except ValueError:
            return None
        return memoryview(self.data)[self.offsets[index] : self.offsets[index] + self.lengths[index]]


class ReadCache:
    __slots__ = ("_bytes_max", "_chunks", "_locations", "_next_number", "bytes", "evictions")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.evictions = 0
        self._bytes_max = bytes_max
        self._chunks: OrderedDict[int, LedgerRun] = OrderedDict()
        self._locations: dict[int, dict[int, int]] = {}
        self._next_number = 0

    def put(self, run: LedgerRun) -> None:
        size = _size(run)
        if size > self._bytes_max or len(run.data) > CHUNK_BYTES_MAX:
            return  # It would evict everything else, or has offsets that a location cannot hold.
        number = self._next_number
        self._next_number += 1
        self._chunks[number] = run
        self.bytes += size
        shifted = number << _CHUNK
        packed = [shifted | offset << _OFFSET | length for offset, length in zip(run.offsets, run.lengths, strict=True)]
        self._locations.setdefault(run.ledger_id, {}).update(zip(run.entry_ids, packed, strict=True))
        while self.bytes > self._bytes_max:
            self._evict(next(iter(self._chunks)))
            self.evictions += 1

    def get(self, ledger_id: int, entry_id: int) -> memoryview | None:
        known = self._locations.get(ledger_id)
        location = known.get(entry_id) if known is not None else None
        if location is None:
            return None
        number = location >> _CHUNK
        self._chunks.move_to_end(number)
        offset = location >> _OFFSET & _FIELD
        return memoryview(self._chunks[number].data)[offset : offset + (location & _FIELD)]

    def get_many(self, ledger_id: int, entry_ids: Sequence[int]) -> list[memoryview | None]:
        """As `get` for each of these, with less work: they are usually in one chunk."""
        known = self._locations.get(ledger_id)
        if known is None:
            return [None] * len(entry_ids)
        chunks = self._chunks
        found: list[memoryview | None] = []
        add, locate = found.append, known.get
        current = -1
        data = memoryview(b"")
        for entry_id in entry_ids:
            location = locate(entry_id)
            if location is None:
                add(None)
                continue
            if location >> _CHUNK != current:
                current = location >> _CHUNK
                chunks.move_to_end(current)
                data = memoryview(chunks[current].data)
            offset = location >> _OFFSET & _FIELD
            add(data[offset : offset + (location & _FIELD)])
        return found

    def drop(self, ledger_id: int) -> None:
        for number in [number for number, run in self._chunks.items() if run.ledger_id == ledger_id]:
            self._evict(number)

    def _evict(self, number: int) -> None:
        run = self._chunks.pop(number)
        self.bytes -= _size(run)
        known = self._locations[run.ledger_id]
        for entry_id in run.entry_ids:
            if known.get(entry_id, -1) >> _CHUNK == number:  # Otherwise a later chunk has it too.
                del known[entry_id]
        if not known:
            del self._locations[run.ledger_id]


def ledger_run(ledger_id: int, data: bytes, blocks: Sequence[Block]) -> LedgerRun:
    """Takes entries from the first block on, up to the first block without the ledger."""
    run = LedgerRun(ledger_id, data, [], [], [])
    for block in blocks:
        before = len(run.entry_ids)
        _take(run, block, block.place.offset - blocks[0].place.offset + BLOCK_HEADER_BYTES)
        if len(run.entry_ids) == before:
            break
    return _trimmed(run)


def _take(run: LedgerRun, block: Block, shift: int) -> None:
    frames = scan_frames(block.body, f"{log_path(block.place.log_id)} at {block.place.offset}")
    for ledger_id, first, end in by_ledger(frames):
        if ledger_id == run.ledger_id:
            run.entry_ids.extend(frames.entry_ids[first:end])
            run.offsets.extend([shift + offset for offset in frames.offsets[first:end]])
            run.lengths.extend(frames.lengths[first:end])


def _trimmed(run: LedgerRun) -> LedgerRun:
    """Returns a copy of the used part, if less than half of the bytes are used."""
    if not run.entry_ids:
        return run
    start, end = run.offsets[0], run.offsets[-1] + run.lengths[-1]
    if end - start > len(run.data) // 2:
        return run
    offsets = [offset - start for offset in run.offsets]
    return LedgerRun(run.ledger_id, run.data[start:end], run.entry_ids, offsets, run.lengths)


def _size(run: LedgerRun) -> int:
    return len(run.data) + len(run.entry_ids) * ENTRY_OVERHEAD_BYTES
