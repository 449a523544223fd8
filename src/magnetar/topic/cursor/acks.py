"""AckState: what of a topic a subscription has acknowledged, with the sets that describe batches. Pure: no I/O, no
clock.

The state is the mark-delete position, up to which everything is acknowledged; the entries after it that were
acknowledged one by one; and, for each batch that is acknowledged in part, its set. Positions that do not exist, or not
yet, change nothing. Counts are computed from the state and the chain, never kept beside them, so they cannot drift.

Invariant: The entry after the mark-delete position is not acknowledged: the position is always as far as it can be. It
           never moves back; a seek begins with a new state.
Format:    In the set of a batch bit i is message i, and set means not acknowledged. In memory it is one integer; on the
           wire and in stored states it is a list of signed 64-bit words, least significant first, without zero words at
           the end.
Read next: topic/chain.py, cursors.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.topic.chain import LedgerChain
from magnetar.topic.position import Position

_TO_DIGITS: Final = bytes([48, 49]) + bytes(254)
"""Maps flags to the digits of a binary number, which Python parses in linear time."""
_TO_FLAGS: Final = bytes(1 if byte == 49 else 0 for byte in range(256))
_GROWTH: Final = 1024
"""Bytes that are reserved at once after an acknowledged entry."""


class AckedEntries:
    """Which entries of one ledger are acknowledged one by one, after the mark-delete position.

    Everything before `floor` is covered by the mark-delete position and not counted here; `floor` to `base` is an
    unbroken run; from `base` on there is one byte per entry, 0 or 1, up to the highest acknowledged one or a little
    further. C code finds, counts and fills bytes, and one byte is little compared with the entry. The caller adds only
    entries that exist, so it is never longer than the ledger.
    """

    __slots__ = ("base", "flags", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.base = floor
        self.flags = bytearray()

    def add(self, entry_ids: Sequence[int], entries: int) -> int:
        """Adds those that exist in a ledger of `entries` entries; returns how many were not acknowledged before."""
        first = entry_ids[0]
        if len(entry_ids) > 2 and entry_ids == list(range(first, first + len(entry_ids))):  # The usual case.
            return self.add_run(first, min(entry_ids[-1], entries - 1))
        flags, base = self.flags, self.base
        newly, room = 0, len(flags)
        for entry_id in entry_ids:
            index = entry_id - base
            if index >= room:
                if entry_id >= entries:
                    continue
                self._reserve(min(entry_id + _GROWTH, entries))
                room = len(flags)
            if index >= 0 and not flags[index]:
                flags[index] = 1
                newly += 1
        self._settle()
        return newly

    def _reserve(self, entries: int) -> None:
        """Makes room for entries below this id."""
        missing = entries - self.base - len(self.flags)
        if missing > 0:
            self.flags.extend(bytes(missing))

    def _settle(self) -> None:
        """Takes what has become an unbroken run out of the bytes."""
        flags = self.flags
        if flags and flags[0]:
            run = flags.find(0)
            if run < 0:
                run = len(flags)
            del flags[:run]  # Cheap: a bytearray moves its start.
            self.base += run

    def add_run(self, first: int, last: int) -> int:
        """Adds these, both included; returns how many were not acknowledged before."""
        start, stop = max(first - self.base, 0), last + 1 - self.base
        if stop <= start:
            return 0
        self._reserve(last + 1)
        newly = self.flags.count(0, start, stop)
        self.flags[start:stop] = b"\x01" * (stop - start)
        self._settle()
        return newly

    def add_bitmap(self, bitmap: int) -> None:
        """Adds a bitmap. Entries before `base` are acknowledged anyway."""
        combined = (self.to_bitmap() | bitmap) >> self.base
        self.flags = bytearray(bin(combined)[:1:-1].encode().translate(_TO_FLAGS))
        self._settle()

    def raise_floor(self, floor: int) -> None:
        """Records that the mark-delete position covers everything before this."""
        self.floor = max(self.floor, floor)
        if self.base < self.floor:
            del self.flags[: self.floor - self.base]
            self.base = self.floor
            self._settle()

    # --- questions ----------------------------------------------------------------------------------------------------

    def has(self, entry_id: int) -> bool:
        index = entry_id - self.base
        if index < 0:
            return entry_id >= 0  # The place before the first entry is not an entry.
        return index < len(self.flags) and self.flags[index] == 1

    def has_any(self) -> bool:
        return self.base > self.floor or 1 in self.flags

    def next_unacked(self, entry_id: int) -> int:
        """Returns the first id from this one on that is not acknowledged."""
        start = max(entry_id - self.base, 0)
        if start >= len(self.flags):
            return self.base + start
        found = self.flags.find(0, start)
        return self.base + (len(self.flags) if found < 0 else found)

    def last(self) -> int:
        """Returns the highest acknowledged id, or `floor` − 1."""
        return self.base + self.flags.rfind(1)

    def count(self, entries: int) -> int:
        """Counts the acknowledged entries from `floor` on, below this id."""
        run = max(min(self.base, entries) - self.floor, 0)
        return run + self.flags.count(1, 0, max(entries - self.base, 0))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yields the first and last entry id of each run from `floor` on, ascending."""
        flags, base = self.flags, self.base
        if base > self.floor:
            yield self.floor, base - 1
        start = flags.find(1)
        while start >= 0:
            stop = flags.find(0, start)
            if stop < 0:
                stop = len(flags)
            yield base + start, base + stop - 1
            start = flags.find(1, stop)

    def range_count(self) -> int:
        return self.flags.count(b"\x00\x01") + (self.base > self.floor)

    def to_bitmap(self) -> int:
        """Returns a bitmap in which bit i is entry i."""
        run = ((1 << (self.base - self.floor)) - 1) << self.floor
        acked = self.flags[: self.flags.rfind(1) + 1]  # Mostly far shorter than what is reserved.
        acked.reverse()
        return run | (int(acked.translate(_TO_DIGITS), 2) << self.base if acked else 0)


_WORD_BITS: Final = 64
_WORD_MASK: Final = 2**_WORD_BITS - 1
BATCH_MESSAGES_MAX: Final = 2**20
"""No client makes larger batches; a larger one is not recorded."""

NONE_ACKNOWLEDGED: Final = -1
"""Stands for a batch of unknown size: every bit is set."""


def full_batch(batch_size: int) -> int:
    """Returns the set of a batch without acknowledged messages. 0 stands for a batch of unknown size."""
    return (1 << batch_size) - 1 if 0 < batch_size <= BATCH_MESSAGES_MAX else NONE_ACKNOWLEDGED


def unacked_bits(words: Sequence[int], batch_size: int = 0) -> int:
    """Converts words to bits. If there are more words than any batch has, they are ignored."""
    if len(words) * _WORD_BITS > BATCH_MESSAGES_MAX:
        return NONE_ACKNOWLEDGED
    bits = bits_of_words(words)
    return bits & full_batch(batch_size)


def bits_of_words(words: Sequence[int]) -> int:
    """Converts signed or unsigned 64-bit words to one integer."""
    packed = b"".join([(word & _WORD_MASK).to_bytes(8, "little") for word in words])
    return int.from_bytes(packed, "little")


def words_of(bits: int) -> list[int]:
    """Converts one integer to signed 64-bit words, without zero words at the end."""
    assert bits >= 0
    count = -(-bits.bit_length() // _WORD_BITS)
    return list(memoryview(bits.to_bytes(count * 8, "little")).cast("q"))


# --- the state of a subscription --------------------------------------------------------------------------------------

_NOTHING: Final = AckedEntries()


class AckedParts(NamedTuple):
    """Describes what is acknowledged after the mark-delete position at one moment."""

    ranges: Sequence[tuple[Position, Position]]
    """The first and last position of each run of whole entries, ascending; each run is within one ledger."""
    batches: Mapping[Position, int]
    """For each partly acknowledged batch, a bit per message that is not acknowledged."""


class AckState:
    __slots__ = ("_batches", "_chain", "_ledgers", "mark_delete", "version")

    def __init__(self, chain: LedgerChain, mark_delete: Position) -> None:
        """`mark_delete` may be anywhere: a place after the last entry means the last entry."""
        self._chain = chain
        self.mark_delete: Position = min(mark_delete, chain.last_confirmed)
        self.version = 0
        """Grows with every change that is worth storing."""
        self._ledgers: dict[int, AckedEntries] = {}
        """By ledger, from the mark-delete position's ledger on."""
        self._batches: dict[Position, int] = {}
        """The sets of entries that are not acknowledged as a whole."""

    # --- acknowledging ------------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Sequence[Position]) -> int:
        """Returns how many of these entries were not acknowledged before."""
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in positions:
            try:
                by_ledger[ledger_id].append(entry_id)
            except KeyError:
                by_ledger[ledger_id] = [entry_id]
        newly = sum(self._add(ledger_id, entry_ids) for ledger_id, entry_ids in by_ledger.items())
        if newly:
            if self._batches:
                for position in positions:
                    self._batches.pop(position, None)
            self._changed()
        return newly

    def acknowledge_batch(self, position: Position, still_unacked: Sequence[int], batch_size: int) -> bool:
        """Acknowledges the messages of a batch whose bit is not set in these 64-bit words; a batch size of 0 is
        unknown.

        Returns whether the whole entry is acknowledged now.
        """
        if self.is_acknowledged(position):
            return True
        if not self._chain.contains(position):
            return False
        before = self._batches.get(position, full_batch(batch_size))
        left = before & unacked_bits(still_unacked, batch_size)
        if not left:
            self.acknowledge((position,))
            return True
        if left != before:
            self._batches[position] = left
            self.version += 1
        return False

    def acknowledge_to(
        self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0
    ) -> None:
        """Acknowledges everything up to this position; if its entry is a batch, all but `still_unacked` of it."""
        if still_unacked and not self.acknowledge_batch(position, still_unacked, batch_size):
            position = self._chain.previous_position(position)
        target = self._chain.clamp(min(position, self._chain.last_confirmed))
        if target > self.mark_delete:
            self._move_to(target)
            self._forget_batches()
            self._changed()

    def add_range(self, first: Position, last_entry_id: int) -> None:
        """Adds entries of a stored state, of one ledger, both ends included: `settle` has to follow."""
        entries = self._entries_of(first.ledger_id)
        if entries and first.ledger_id >= self.mark_delete.ledger_id:
            self._acked_of(first.ledger_id).add_run(first.entry_id, min(last_entry_id, entries - 1))

    def add_bitmap(self, ledger_id: int, bitmap: int) -> None:
        """Adds a bitmap of a stored state; bit i is entry i: `settle` has to follow."""
        entries = self._entries_of(ledger_id)
        if entries and ledger_id >= self.mark_delete.ledger_id:
            self._acked_of(ledger_id).add_bitmap(bitmap & ((1 << entries) - 1))

    def add_batch(self, position: Position, left: int) -> None:
        """Adds a batch of a stored state, with a bit per message that is not acknowledged."""
        if left and self._chain.contains(position) and not self.is_acknowledged(position):
            self._batches[position] = left

    def settle(self) -> None:
        """Completes a state that was read, or one whose chain has lost ledgers.

        Stored acknowledgements of dropped ledgers do no harm: only a position that has moved is a change.
        """
        for ledger_id in [i for i, acked in self._ledgers.items() if not self._entries_of(i) or not acked.has_any()]:
            del self._ledgers[ledger_id]
        if self._advance():
            self.version += 1
        self._forget_batches()

    def _add(self, ledger_id: int, entry_ids: list[int]) -> int:
        entries = self._entries_of(ledger_id)
        if not entries or ledger_id < self.mark_delete.ledger_id:
            return 0
        known = self._ledgers.get(ledger_id)
        if known is not None:
            return known.add(entry_ids, entries)
        if self._follows(ledger_id, entry_ids):
            return self._move_within(min(entry_ids[-1], entries - 1))
        fresh = AckedEntries(self._floor_of(ledger_id))
        newly = fresh.add(entry_ids, entries)
        if newly:
            self._ledgers[ledger_id] = fresh
        return newly

    def _follows(self, ledger_id: int, entry_ids: list[int]) -> bool:
        """Whether these are the entries right after the mark-delete position, in order, which is the usual case."""
        first = self.mark_delete.entry_id + 1
        return (
            entry_ids[0] == first
            and ledger_id == self.mark_delete.ledger_id
            and (len(entry_ids) == 1 or entry_ids == list(range(first, first + len(entry_ids))))
        )

    def _move_within(self, entry_id: int) -> int:
        """Moves the mark-delete position in a ledger without other acknowledgements; returns by how many entries."""
        moved = max(entry_id - self.mark_delete.entry_id, 0)
        if moved:
            self.mark_delete = Position(self.mark_delete.ledger_id, entry_id)
        return moved

    def _acked_of(self, ledger_id: int) -> AckedEntries:
        acked = self._ledgers.get(ledger_id)
        if acked is None:
            acked = self._ledgers[ledger_id] = AckedEntries(self._floor_of(ledger_id))
        return acked

    def _floor_of(self, ledger_id: int) -> int:
        return self.mark_delete.entry_id + 1 if ledger_id == self.mark_delete.ledger_id else 0

    def _entries_of(self, ledger_id: int) -> int:
        span = self._chain.span_of(ledger_id)
        return 0 if span is None else span.entries

    # --- the mark-delete position -------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self.version += 1
        self._advance()

    def _advance(self) -> bool:
        """Returns whether the mark-delete position has moved."""
        target = self._as_far_as_acknowledged() if self._ledgers else self.mark_delete
        if target == self.mark_delete:
            return False
        self._move_to(target)
        return True

    def _as_far_as_acknowledged(self) -> Position:
        """Returns the end of the acknowledged entries that follow the mark-delete position without a gap."""
        ledger_id, entry_id = self.mark_delete
        while True:
            acked = self._ledgers.get(ledger_id)
            if acked is not None and acked.base > entry_id:
                entry_id = acked.base - 1
            if entry_id + 1 < self._entries_of(ledger_id):
                break
            following = self._chain.next_position(Position(ledger_id, entry_id))
            if following.ledger_id == ledger_id or not self._ledgers.get(following.ledger_id, _NOTHING).base:
                break
            ledger_id, entry_id = following
        return Position(ledger_id, entry_id)

    def _move_to(self, target: Position) -> None:
        ledgers = self._ledgers
        if target.ledger_id != self.mark_delete.ledger_id:
            for ledger_id in [i for i in ledgers if i < target.ledger_id]:
                del ledgers[ledger_id]
        self.mark_delete = target
        acked = ledgers.get(target.ledger_id)
        if acked is not None:
            acked.raise_floor(target.entry_id + 1)
            if not acked.has_any():
                del ledgers[target.ledger_id]

    def _forget_batches(self) -> None:
        """Forgets batches that the mark-delete position has passed, or that were dropped."""
        for position in [p for p in self._batches if p <= self.mark_delete or not self._chain.contains(p)]:
            del self._batches[position]

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def has_gaps(self) -> bool:
        """Whether anything after the mark-delete position is acknowledged, even in part."""
        return bool(self._ledgers or self._batches)

    @property
    def last_acknowledged(self) -> Position:
        """The last position at which something is acknowledged, even in part."""
        ledger_id = max(self._ledgers, default=None)
        last = self.mark_delete if ledger_id is None else Position(ledger_id, self._ledgers[ledger_id].last())
        return max(last, max(self._batches, default=last))

    def is_acknowledged(self, position: Position) -> bool:
        if position <= self.mark_delete:
            return True
        acked = self._ledgers.get(position.ledger_id)
        return acked is not None and acked.has(position.entry_id)

    def ack_set_of(self, position: Position) -> Sequence[int] | None:
        """Returns the words of a batch that is acknowledged in part, as a consumer gets them; otherwise None."""
        left = self._batches.get(position) if self._batches else None
        return None if left is None else words_of(left)

    def next_unacknowledged(self, position: Position) -> Position:
        """Returns the first entry at or after this position that is not acknowledged, or the chain's `end`."""
        chain = self._chain
        mark_delete = self.mark_delete
        place = chain.next_position(mark_delete) if position <= mark_delete else chain.at_or_after(position)
        while (acked := self._ledgers.get(place.ledger_id)) is not None:
            entry_id = acked.next_unacked(place.entry_id)
            if entry_id == place.entry_id:
                break
            place = chain.at_or_after(Position(place.ledger_id, entry_id))
        return place

    def backlog_entries(self) -> int:
        """Counts the entries that exist and are not acknowledged; a batch that is acknowledged in part is one."""
        behind = self._chain.entries_between(self.mark_delete, self._chain.last_confirmed)
        return behind - self._acked_behind_mark_delete()

    def backlog_bytes_estimate(self) -> int:
        """Estimates their size, as if the entries of one ledger were all of the same size."""
        size = self._chain.bytes_between(self.mark_delete, self._chain.last_confirmed)
        for ledger_id, acked in self._ledgers.items():
            span = self._chain.span_of(ledger_id)
            if span is not None and span.entries:
                size -= span.size_bytes * acked.count(span.entries) // span.entries
        return max(size, 0)

    def acked_parts(self, parts_max: int) -> AckedParts | None:
        """Returns a copy of what is acknowledged after the mark-delete position; None if it has more parts."""
        if self.range_count() + len(self._batches) > parts_max:
            return None
        return AckedParts(list(self.ranges()), dict(self._batches))

    def _acked_behind_mark_delete(self) -> int:
        return sum(acked.count(self._entries_of(ledger_id)) for ledger_id, acked in self._ledgers.items())

    # --- for storing -------------------------------------------------------------------------------------------------

    def range_count(self) -> int:
        """Counts the runs of acknowledged entries after the mark-delete position, each within one ledger."""
        return sum(acked.range_count() for acked in self._ledgers.values())

    def ranges(self) -> Iterator[tuple[Position, Position]]:
        """Yields the first and last position of each of them, ascending."""
        for ledger_id in sorted(self._ledgers):
            for first, last in self._ledgers[ledger_id].ranges():
                yield Position(ledger_id, first), Position(ledger_id, last)

    def bitmaps(self) -> Iterator[tuple[int, int, int]]:
        """Yields ledger id, number of runs and bitmap (bit i is entry i) of each ledger with such entries,
        ascending."""
        for ledger_id in sorted(self._ledgers):
            acked = self._ledgers[ledger_id]
            yield ledger_id, acked.range_count(), acked.to_bitmap()

    @property
    def batches(self) -> Mapping[Position, int]:
        """Returns for each partly acknowledged batch a bit per message that is not acknowledged."""
        return self._batches
