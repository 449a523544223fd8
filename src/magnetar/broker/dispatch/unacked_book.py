"""The book of a Shared or Key_Shared subscription: which consumer has which entry, and which entries wait again.

The book has no clock and no loop. A method that may let another entry be delivered returns whether it does, and the
dispatcher then schedules a turn. The `ReplayQueue` has positions that were read and must be delivered again, in the
order of the topic: a consumer gave one back or left, its delivery time has come, or the consumer of its key could not
take it. Only positions are kept: the log or its cache has the entries.

Invariant: An entry that was read and is not acknowledged is in one place: with one consumer (`Consumer.pending`), in
           the replay queue, or delayed. A method that takes an entry from a consumer puts it into the replay queue,
           unless it is acknowledged. So no entry is delivered to two consumers at once, and none is forgotten.
Limits:    Unacknowledged messages are counted for each consumer and for all of them (broker/subscriptions/consumer.py).
           Whether delivery is blocked follows from these counts, and is stored nowhere else.
Failure:   Entries that consumers gave back are counted until they are acknowledged. These counts are lost when the last
           consumer leaves, when the subscription is reset, and with the broker. A consumer that merely leaves does not
           count, as in Pulsar.
Read next: shared_base.py
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from magnetar.broker.subscriptions.consumer import Consumer, UnackedCount
from magnetar.topic.position import Position

_FEW: Final = 64  # Up to this many are inserted one by one; more are appended and sorted.
_SLACK: Final = 256  # The list may have this many removed positions, and one more for each position that is left.


class ReplayQueue:
    """Sorted when it is read, not when it is written: consumers leave with thousands of positions at once."""

    def __init__(self) -> None:
        self._hashes: dict[Position, int] = {}  # Position → key hash, 0 if it is not known.
        self._ordered: list[Position] = []  # Some are no longer in the dict, or twice in the list: skipped.
        self._added: list[Position] = []
        self._per_hash: dict[int, int] = {}
        self._with_hash = 0

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, position: Position) -> bool:
        return position in self._hashes

    @property
    def shape(self) -> tuple[int, int]:
        """Changes whenever a position comes or goes, or its hash becomes known."""
        return len(self._hashes), self._with_hash

    @property
    def first(self) -> Position | None:
        return next(iter(self), None)

    def add(self, position: Position, key_hash: int = 0) -> None:
        known = self._hashes.get(position)
        if known is None:
            self._added.append(position)
        elif known == key_hash or not key_hash:
            return
        elif known:
            self._less(known)
        self._hashes[position] = key_hash
        if key_hash:
            self._with_hash += 1
            self._per_hash[key_hash] = self._per_hash.get(key_hash, 0) + 1

    def remove(self, position: Position) -> None:
        key_hash = self._hashes.pop(position, None)
        if key_hash:
            self._less(key_hash)

    def has_hash(self, key_hash: int) -> bool:
        """Returns whether an entry of this key waits here."""
        return key_hash in self._per_hash

    def hash_of(self, position: Position) -> int:
        return self._hashes[position]

    def __iter__(self) -> Iterator[Position]:
        """In order. Positions may be removed while iterating, but not added."""
        self._settle()
        hashes = self._hashes
        before: Position | None = None
        for position in self._ordered:
            if position in hashes and position != before:
                yield position
                before = position

    def drop_through(self, last: Position) -> list[Position]:
        """Removes all up to and including `last`; returns them."""
        dropped = list(takewhile(lambda position: position <= last, self))
        for position in dropped:
            self.remove(position)
        return dropped

    def clear(self) -> None:
        self._hashes.clear()
        self._ordered.clear()
        self._added.clear()
        self._per_hash.clear()
        self._with_hash = 0

    def _less(self, key_hash: int) -> None:
        self._with_hash -= 1
        left = self._per_hash.get(key_hash, 0) - 1
        if left > 0:
            self._per_hash[key_hash] = left
        else:
            self._per_hash.pop(key_hash, None)

    def _settle(self) -> None:
        if len(self._ordered) + len(self._added) > 2 * len(self._hashes) + _SLACK:
            self._ordered = sorted(self._hashes)
            self._added.clear()
        elif len(self._added) <= _FEW:
            for position in self._added:
                insort(self._ordered, position)
            self._added.clear()
        else:
            self._ordered += self._added
            self._added.clear()
            self._ordered.sort()


class UnackedBook:
    def __init__(self, consumers: Sequence[Consumer]) -> None:
        """`consumers` are the connected ones: the list that the dispatcher keeps."""
        self._consumers = consumers
        self.total = UnackedCount()
        self.replay = ReplayQueue()
        self.redeliveries: dict[Position, int] = {}
        """How often each entry was given back."""
        self.holders: dict[int, tuple[Consumer, int]] = {}
        """Key hash → the consumer that has entries of it, and how many."""

    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """0: no limit."""
        for consumer in self._consumers:
            consumer.unacked.set_limit(per_consumer, per_consumer // 2)
        self.total.set_limit(per_subscription, max(1, per_subscription // 2) - 1)

    # --- an entry goes to a consumer ----------------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, position: Position, messages: int, key_hash: int = 0) -> None:
        consumer.pending[position] = (messages, key_hash)
        self.count(consumer, messages)

    def count(self, consumer: Consumer, messages: int) -> None:
        """Counts messages of entries that the caller has added to `consumer.pending`."""
        consumer.unacked.add(messages)
        self.total.add(messages)

    def hold_key(self, consumer: Consumer, key_hash: int) -> None:
        """One more entry of this key is with the consumer."""
        holder = self.holders.get(key_hash)
        assert holder is None or holder[0] is consumer, "a key is with one consumer at a time"
        self.holders[key_hash] = (consumer, 1 if holder is None else holder[1] + 1)

    def where(self, position: Position) -> Consumer | None:
        """Returns the consumer that has this entry."""
        return next((consumer for consumer in self._consumers if position in consumer.pending), None)

    def placed_among(self, positions: set[Position]) -> set[Position]:
        """Returns those that are with a consumer or in the replay queue. For many positions at once: each consumer
        costs as much as the shorter of the two sets."""
        placed = {position for position in positions if position in self.replay}
        for consumer in self._consumers:
            placed |= positions & consumer.pending.keys()
        return placed

    # --- an entry is acknowledged -------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> bool:
        """Whole entries. Returns whether another entry may be delivered now."""
        pending = consumer.pending
        messages = 0
        makes_room = False
        for position in positions:
            found = pending.pop(position, None)
            if found is None:
                makes_room |= self._acknowledge_elsewhere(consumer, position)
            else:
                messages += found[0]
                if found[1]:
                    makes_room |= self._release_key(found[1])
        if self.redeliveries:
            for position in positions:
                self.redeliveries.pop(position, None)
        consumer.acked_messages += messages
        return self._subtract(consumer, messages) or makes_room

    def _acknowledge_elsewhere(self, consumer: Consumer, position: Position) -> bool:
        """A client may acknowledge through one consumer what another one has, or what it gave back before."""
        if position in self.replay:
            self.replay.remove(position)
            return True  # Reading may have waited for it.
        owner = self.where(position)
        if owner is None:
            return False
        messages, key_hash = owner.pending.pop(position)
        consumer.acked_messages += messages
        is_key_free = self._release_key(key_hash)
        return self._subtract(owner, messages) or is_key_free

    def acknowledge_part(self, consumer: Consumer, position: Position, messages_left: int) -> bool:
        """Some messages of one entry. Returns whether another entry may be delivered now."""
        owner = consumer if position in consumer.pending else self.where(position)
        if owner is None:
            return False
        before, key_hash = owner.pending[position]
        left = min(before, messages_left)
        owner.pending[position] = (left, key_hash)
        consumer.acked_messages += before - left
        return self._subtract(owner, before - left)

    def drop_through(self, mark_delete: Position) -> None:
        """All entries up to this one are acknowledged, by another way than through consumers."""
        for consumer in self._consumers:
            messages = 0
            for position in [position for position in consumer.pending if position <= mark_delete]:
                of_entry, key_hash = consumer.pending.pop(position)
                messages += of_entry
                self.redeliveries.pop(position, None)
                self._release_key(key_hash)
            self._subtract(consumer, messages)
        self.replay.drop_through(mark_delete)

    # --- an entry comes back ------------------------------------------------------------------------------------------

    def give_back(
        self, consumer: Consumer, positions: Iterable[Position], is_acknowledged: Callable[[Position], bool]
    ) -> None:
        """Entries that the consumer does not have are ignored: another one has them, they wait already, or they are
        acknowledged."""
        given_back = 0
        for position in positions:
            found = consumer.pending.pop(position, None)
            if found is None:
                continue
            messages, key_hash = found
            given_back += messages
            self._release_key(key_hash)
            if not is_acknowledged(position):
                self.redeliveries[position] = self.redeliveries.get(position, 0) + 1
                self.replay.add(position, key_hash)
        consumer.redelivered_messages += given_back
        self._subtract(consumer, given_back, is_given_back=True)

    def take_all(self, consumer: Consumer) -> None:
        """The consumer has left: the next turns deliver its entries to others."""
        self._subtract(consumer, consumer.unacked_messages)
        pending, consumer.pending = consumer.pending, {}
        for position, (_, key_hash) in pending.items():
            self._release_key(key_hash)
            self.replay.add(position, key_hash)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _release_key(self, key_hash: int) -> bool:
        """One entry less of this key is with its consumer. Returns whether an entry of the key waits and may go out."""
        holder = self.holders.get(key_hash)
        if holder is None:
            return False
        if holder[1] > 1:
            self.holders[key_hash] = (holder[0], holder[1] - 1)
            return False
        del self.holders[key_hash]
        return self.replay.has_hash(key_hash)

    def _subtract(self, consumer: Consumer, messages: int, *, is_given_back: bool = False) -> bool:
        """The consumer no longer has these messages. Returns whether that makes room at a limit that was reached."""
        total = self.total
        was_blocked, was_all_blocked = consumer.unacked.is_blocked, total.is_blocked
        if is_given_back:
            consumer.unacked.give_back(messages)
        else:
            consumer.unacked.take(messages)
        total.take(messages)
        makes_room = was_blocked and not consumer.unacked.is_blocked
        if was_all_blocked and (not total.is_blocked or (len(self.replay) and total.room > 0)):
            makes_room = True  # What waits to be delivered again needs room, and no more than that.
        return makes_room
