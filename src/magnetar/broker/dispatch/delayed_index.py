"""DelayedIndex: the entries of a subscription that wait for a delivery time, in bounded memory.

Format:    an entry is the triple (delivery time, ledger id, entry id), 24 bytes in sorted blocks of packed integers.
           New triples collect in a small heap that becomes a block when it is full. A heap over the first triples of
           the blocks finds the first of all.
Invariant: a triple before the horizon that was added and not popped is in the index exactly once.
Limits:    beyond `entries_max` the latest triples are dropped, and `horizon` is the first dropped one: what is at or
           after it is not in the index, and is not added later. The topic still has these entries: when the index has
           room again, delayed_delivery.py reads the topic from `beyond_first` on and finds them.
Order:     by time, then by position: entries that are due together come in the order of the topic.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from typing import Final, TypeAlias

from magnetar.topic.position import Position

Triple: TypeAlias = tuple[int, int, int]
"""(delivery time in wall milliseconds, ledger id, entry id)."""

_BLOCK_ENTRIES: Final = 4_096
_SAMPLE_EVERY: Final = 64  # Where the index is cut is found from every 64th triple: near enough.
_TRIPLE_BYTES: Final = 24
_BUFFERED_BYTES: Final = 184  # A tuple of three integers in a list, as Python has them.


class _Block:
    """Sorted triples, read from the front."""

    __slots__ = ("_at", "_dues", "_entries", "_ledgers", "first_position")

    def __init__(self, triples: list[Triple]) -> None:
        """`triples` must be sorted."""
        self._dues = array("q", [triple[0] for triple in triples])
        self._ledgers = array("q", [triple[1] for triple in triples])
        self._entries = array("q", [triple[2] for triple in triples])
        self._at = 0
        self.first_position = Position(*min(triple[1:] for triple in triples))
        """No entry of this block is before it in the topic."""

    def __len__(self) -> int:
        return len(self._dues) - self._at

    def triple(self, index: int) -> Triple:
        at = self._at + index
        return self._dues[at], self._ledgers[at], self._entries[at]

    def pop(self) -> Triple:
        triple = self.triple(0)
        self._at += 1
        return triple

    def below(self, limit: Triple) -> int:
        """Returns how many of its triples are before `limit`."""
        return bisect_left(range(len(self)), limit, key=self.triple)

    def cut(self, count: int) -> None:
        """Keeps the first `count` triples."""
        end = self._at + count
        del self._dues[end:], self._ledgers[end:], self._entries[end:]

    def triples(self) -> list[Triple]:
        at = self._at
        return list(zip(self._dues[at:], self._ledgers[at:], self._entries[at:], strict=True))


class DelayedIndex:
    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._new: list[Triple] = []  # A heap.
        self._blocks: list[tuple[Triple, int, _Block]] = []  # A heap by head; the number keeps blocks from comparing.
        self._made = 0
        self._in_blocks = 0
        self.horizon: Triple | None = None
        self.beyond_first: Position | None = None
        """Where reading must begin to find everything that was dropped."""

    def __len__(self) -> int:
        """Returns how many entries are in memory."""
        return self._in_blocks + len(self._new)

    @property
    def memory_bytes(self) -> int:
        return self._in_blocks * _TRIPLE_BYTES + len(self._new) * _BUFFERED_BYTES

    @property
    def next_due_ms(self) -> int | None:
        """Returns when the first entry in memory is due."""
        first = self._first()
        return None if first is None else first[0]

    def add(self, due_ms: int, position: Position) -> None:
        triple = (due_ms, position[0], position[1])
        if self.horizon is not None and triple >= self.horizon:
            self._leave_out(position)
            return
        heapq.heappush(self._new, triple)
        if len(self._new) >= _BLOCK_ENTRIES:
            self._freeze()
            if len(self) > self._entries_max:
                self._drop_latest()

    def pop_due(self, until_ms: int, entries_max: int) -> list[Position]:
        """Removes and returns entries that are due at that time, the earliest first."""
        due: list[Position] = []
        while len(due) < entries_max:
            first = self._first()
            if first is None or first[0] > until_ms:
                break
            due.append(Position(first[1], first[2]))
            self._pop_first(first)
        return due

    def contains(self, position: Position) -> bool:
        """Looks at all entries, so it is only for people's questions."""
        wanted = tuple(position)
        return any(triple[1:] == wanted for triple in self._new) or any(
            triple[1:] == wanted for _, _, block in self._blocks for triple in block.triples()
        )

    def clear(self) -> None:
        self._new.clear()
        self._blocks.clear()
        self._in_blocks = 0
        self.horizon = None
        self.beyond_first = None

    def absorb(self, other: DelayedIndex) -> None:
        """Takes over what `other` found at or after our horizon. Its horizon is ours from now on."""
        for _, _, block in other._blocks:
            self._push(block)
        for due_ms, ledger_id, entry_id in other._new:
            heapq.heappush(self._new, (due_ms, ledger_id, entry_id))
        if len(self._new) >= _BLOCK_ENTRIES:
            self._freeze()
        self.horizon = other.horizon
        self.beyond_first = other.beyond_first
        other.clear()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _first(self) -> Triple | None:
        if self._new and (not self._blocks or self._new[0] < self._blocks[0][0]):
            return self._new[0]
        return self._blocks[0][0] if self._blocks else None

    def _pop_first(self, first: Triple) -> None:
        if self._new and self._new[0] == first:
            heapq.heappop(self._new)
            return
        _, number, block = self._blocks[0]
        block.pop()
        self._in_blocks -= 1
        if len(block):
            heapq.heapreplace(self._blocks, (block.triple(0), number, block))
        else:
            heapq.heappop(self._blocks)

    def _leave_out(self, position: Position) -> None:
        if self.beyond_first is None or position < self.beyond_first:
            self.beyond_first = position

    def _freeze(self) -> None:
        self._new.sort()
        self._push(_Block(self._new))
        self._new = []

    def _push(self, block: _Block) -> None:
        self._made += 1
        heapq.heappush(self._blocks, (block.triple(0), self._made, block))
        self._in_blocks += len(block)

    def _drop_latest(self) -> None:
        """Keeps about three quarters of the bound, so that it need not be done for each new block."""
        blocks = [block for _, _, block in self._blocks]
        sample = sorted(block.triple(i) for block in blocks for i in range(0, len(block), _SAMPLE_EVERY))
        self.horizon = sample[len(sample) * 3 * self._entries_max // (4 * len(self))]
        kept: list[_Block] = []
        for block in blocks:
            below = block.below(self.horizon)
            if below < len(block):
                self._leave_out(block.first_position)
                block.cut(below)
            if below:
                kept.append(block)
        self._blocks = []
        self._in_blocks = 0
        for block in _merge_small(kept):
            self._push(block)


def _merge_small(blocks: list[_Block]) -> list[_Block]:
    """Joins blocks of which little is left: otherwise their number would grow with every cut."""
    large = [block for block in blocks if len(block) > _BLOCK_ENTRIES // 4]
    small = [block for block in blocks if len(block) <= _BLOCK_ENTRIES // 4]
    joined: list[Triple] = []
    for block in small:
        joined.extend(block.triples())
        if len(joined) >= _BLOCK_ENTRIES:
            large.append(_Block(sorted(joined)))
            joined = []
    if joined:
        large.append(_Block(sorted(joined)))
    return large
