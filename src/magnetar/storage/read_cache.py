"""Read cache: entries that were read from a log, and those that came with them.

Shape:     as the write cache: chunks, and per ledger a dict from entry to chunk << 48 | offset << 24 | length. A chunk
           here belongs to one ledger, and is what one read of a log brought.
Bound:     `bytes_max`, bookkeeping included; the chunk not used for the longest time goes first.
Read next: read_ahead.py
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from magnetar.storage.read_ahead import LedgerRun
from magnetar.storage.write_cache import CHUNK_BYTES_MAX, ENTRY_OVERHEAD_BYTES

_OFFSET: Final = 24
_CHUNK: Final = 48
_FIELD: Final = (1 << 24) - 1


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
            return  # Would push everything else out, or has offsets that a location cannot hold.
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
        """The same for each of these, with less work: they are usually in one chunk."""
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
        """Forgets a ledger."""
        for number in [number for number, run in self._chunks.items() if run.ledger_id == ledger_id]:
            self._evict(number)

    def _evict(self, number: int) -> None:
        run = self._chunks.pop(number)
        self.bytes -= _size(run)
        known = self._locations[run.ledger_id]
        for entry_id in run.entry_ids:
            if known.get(entry_id, -1) >> _CHUNK == number:  # Else a later chunk has it too.
                del known[entry_id]
        if not known:
            del self._locations[run.ledger_id]


def _size(run: LedgerRun) -> int:
    return len(run.data) + len(run.entry_ids) * ENTRY_OVERHEAD_BYTES
