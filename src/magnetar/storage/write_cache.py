"""Write cache: entries that are journaled but not yet in an entry log, as locations into the received chunks.

Shape:     per ledger a dict from entry id to one int: chunk number << 48 | offset << 24 | length. A run of entries is
           put in by one `dict.update`, without an object per entry, and ints are no work for the garbage collector.
           The chunk is the very object that the journal writes: nothing is copied.
Offsets:   of the entry; its frame's head stands right before it (frames.py), so neighbours are found by arithmetic.
Repeated:  an entry that is put again replaces the one before; both are the same entry (a resend or a recovery add).
Frozen:    once a cache is being flushed, only `drop` changes it.
Read next: ledger_storage.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from magnetar.storage.frames import ENTRY_OFFSET

CHUNK_BYTES_MAX: Final = (1 << 24) - 1
ENTRY_OVERHEAD_BYTES: Final = 150  # What the dict and its two ints take per entry, measured; counted as used memory.

_OFFSET: Final = 24
_CHUNK: Final = 48
_FIELD: Final = (1 << 24) - 1


class CachedRun(NamedTuple):
    """Frames of one ledger, in the order of their entries, and what they are."""

    ledger_id: int
    entry_ids: list[int]
    frames: list[memoryview]
    """Neighbours in one chunk are one view."""
    frames_bytes: int


class WriteCache:
    __slots__ = ("_chunks", "_locations", "bytes", "entries")

    def __init__(self) -> None:
        self.bytes = 0
        """Memory in use: chunks, and an estimate of what keeps track of them."""
        self.entries = 0
        """Put in; a repeated one counts twice."""
        self._chunks: list[bytes] = []
        self._locations: dict[int, dict[int, int]] = {}

    def put_run(
        self, ledger_id: int, chunk: bytes, entry_ids: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """Entries of one ledger in one chunk. Further runs of the same chunk follow before another chunk does."""
        chunks = self._chunks
        if not chunks or chunks[-1] is not chunk:
            assert len(chunk) <= CHUNK_BYTES_MAX, f"a chunk of {len(chunk)} bytes exceeds {CHUNK_BYTES_MAX}"
            chunks.append(chunk)
            self.bytes += len(chunk)
        number = len(chunks) - 1 << _CHUNK
        known = self._locations.get(ledger_id)
        if known is None:
            known = self._locations[ledger_id] = {}
        if len(entry_ids) == 1:  # Many ledgers in one chunk: the comprehension would cost more than the entry.
            known[entry_ids[0]] = number | offsets[0] << _OFFSET | lengths[0]
        else:
            packed = [number | offset << _OFFSET | length for offset, length in zip(offsets, lengths, strict=True)]
            known.update(zip(entry_ids, packed, strict=True))
        self.entries += len(entry_ids)
        self.bytes += len(entry_ids) * ENTRY_OVERHEAD_BYTES

    def get(self, ledger_id: int, entry_id: int) -> memoryview | None:
        known = self._locations.get(ledger_id)
        location = known.get(entry_id) if known is not None else None
        if location is None:
            return None
        offset = location >> _OFFSET & _FIELD
        return memoryview(self._chunks[location >> _CHUNK])[offset : offset + (location & _FIELD)]

    def last_entry(self, ledger_id: int) -> int | None:
        known = self._locations.get(ledger_id)
        return max(known) if known else None

    def entry_ids(self, ledger_id: int) -> list[int]:
        return sorted(self._locations.get(ledger_id, ()))

    def ledger_ids(self) -> list[int]:
        return sorted(self._locations)

    def has_ledger(self, ledger_id: int) -> bool:
        return ledger_id in self._locations

    def drop(self, ledger_id: int) -> None:
        """Forgets a ledger. The chunks stay until the whole cache goes: other ledgers share them."""
        self._locations.pop(ledger_id, None)

    def runs(self, run_bytes: int) -> Iterator[CachedRun]:
        """Everything, by ledger and entry, in runs of about this size: a run ends with the frame that reaches it."""
        for ledger_id in sorted(self._locations):
            known = self._locations.get(ledger_id)
            if known:  # Else dropped meanwhile.
                yield from self._runs_of(ledger_id, known, run_bytes)

    def _runs_of(self, ledger_id: int, known: dict[int, int], run_bytes: int) -> Iterator[CachedRun]:
        """One pass that only compares ints; views are made where a run or a stretch of neighbours ends."""
        entry_ids = sorted(known)
        locations = [known[entry_id] for entry_id in entry_ids]
        begin = stretch = size = 0
        views: list[memoryview] = []
        for index, (location, following) in enumerate(pairwise(locations)):
            length = (location & _FIELD) + ENTRY_OFFSET
            size += length
            if size >= run_bytes:
                views.append(self._view(locations[stretch], location))
                yield CachedRun(ledger_id, entry_ids[begin : index + 1], views, size)
                begin = stretch = index + 1
                views, size = [], 0
            elif (location >> _OFFSET) + length != following >> _OFFSET:  # Not the next frame of the same chunk.
                views.append(self._view(locations[stretch], location))
                stretch = index + 1
        views.append(self._view(locations[stretch], locations[-1]))
        size += (locations[-1] & _FIELD) + ENTRY_OFFSET
        yield CachedRun(ledger_id, entry_ids[begin:], views, size)

    def _view(self, first: int, last: int) -> memoryview:
        """From the frame of the first entry to the end of the last one."""
        start = (first >> _OFFSET & _FIELD) - ENTRY_OFFSET
        end = (last >> _OFFSET & _FIELD) + (last & _FIELD)
        return memoryview(self._chunks[first >> _CHUNK])[start:end]
