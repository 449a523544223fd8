"""Write cache: entries that are journaled but not yet in an entry log, as locations into the received chunks.

Invariant: a repeated entry replaces the one before; both are the same entry (a resend or a recovery add). Once a cache
           is being flushed, only `drop` changes it.
Format:    every frame has a number, in the order of arrival; three arrays have, for each number, the entry's chunk, its
           offset (its frame's head stands right before it, frames.py) and its length. Per ledger a dict from entry id
           to number. So a run of entries is put in by one `dict.update`, a run of many ledgers by one dict look-up
           each; there is no object per entry, and neither arrays nor ints are work for the garbage collector.
           The chunk is the very object that the journal writes: nothing is copied.
Read next: ledger_storage.py
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from magnetar.storage.frames import ENTRY_OFFSET

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
