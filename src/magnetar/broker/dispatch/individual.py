"""What Shared and Key_Shared have in common: several consumers at a time, each entry acknowledged by itself.

Where:     an entry behind the mark-delete position is acknowledged, pending with one consumer, in the replay queue,
           delayed, or not read yet (at or behind `next_read`). It is in exactly one of these places, which is what
           keeps it from being delivered to two and from being forgotten.
Limits:    unacknowledged messages, of each consumer and of all; whoever reaches one is held until half is acknowledged.
           If the policies say so, what is acknowledged out of order, too: as much as the cursor stores.
Counts:    how often an entry was given back by a consumer, kept here until it is acknowledged. They are lost when the
           last consumer leaves, when the subscription is reset, and with the broker. A consumer that merely goes away
           does not count, as in Pulsar.
Read next: multi.py (the turn), shared.py, key_shared.py
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from magnetar.broker.consumer import Consumer, Pending, messages_of
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.delay import DelayedDelivery
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.reading import EntryReader
from magnetar.broker.dispatch.replay import ReplayQueue
from magnetar.topic.position import Position


class IndividualDispatcher(Dispatcher):
    """The books: who has what. How entries get to consumers is in multi.py."""

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._replay_reader = EntryReader(context.source, context.config, self.schedule)
        self.replay = ReplayQueue()
        self.delayed: DelayedDelivery | None = None
        self.redeliveries: dict[Position, int] = {}
        self.unacked_messages = 0
        self.is_blocked = False
        self.waits_for_gaps = False
        """Only what may close gaps between acknowledged entries goes out, until enough of them are closed."""
        self.replay_is_stuck = False
        """Nothing in the replay queue can be handed out until a consumer or an acknowledgement changes that."""
        self._budget = 0  # Messages that the rates allow in this turn.

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self._check_room()
        self._join(consumer)
        self.consumers.append(consumer)
        self.replay_is_stuck = False
        self.schedule()

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._leave(consumer)
        self.unacked_messages -= consumer.unacked_messages
        consumer.unacked_messages = 0
        pending, consumer.pending = consumer.pending, {}
        for position, (_, key_hash) in pending.items():
            self._let_go(key_hash)
            self.replay.add(position, key_hash)
        self.replay_is_stuck = False
        if not self.consumers:
            self._all_have_left()
        self._unblock()
        self.schedule()

    def flow(self, consumer: Consumer, permits: int) -> None:
        self.replay_is_stuck = False
        super().flow(consumer, permits)

    def resume(self, consumer: Consumer) -> None:
        self.replay_is_stuck = False
        super().resume(consumer)

    def _all_have_left(self) -> None:
        """Whoever comes next begins at the first unacknowledged entry. Only what is delayed is worth being kept:
        finding it again means reading all of it."""
        self.redeliveries.clear()
        if self.delayed is None or not (len(self.delayed) or self.delayed.has_more):
            self.rewind()

    @abstractmethod
    def _join(self, consumer: Consumer) -> None:
        """Raises if the consumer cannot be one of these."""

    @abstractmethod
    def _leave(self, consumer: Consumer) -> None: ...

    def _let_go(self, key_hash: int) -> None:
        """A consumer no longer has an entry with this key hash (Key_Shared)."""

    def rewind(self) -> None:
        super().rewind()
        self.replay.clear()
        self._replay_reader.retry_now()
        if self.delayed is not None:
            self.delayed.clear()

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        self._note_acked(max(positions))
        pending = consumer.pending
        messages = 0
        for position in positions:
            found = pending.pop(position, None)
            if found is None:
                messages += self._take_from_others(consumer, position)
            else:
                messages += found[0]
                if found[1]:
                    self._let_go(found[1])
                consumer.unacked_messages -= found[0]
        self._cursor.acknowledge(positions)
        if self.redeliveries:
            for position in positions:
                self.redeliveries.pop(position, None)
        consumer.acked_messages += messages
        self.unacked_messages -= messages
        self._maybe_unblock(consumer)

    def _take_from_others(self, consumer: Consumer, position: Position) -> int:
        """A client may acknowledge through one consumer what another one got, or what it gave back before."""
        self.replay.remove(position)
        for other in self.consumers:
            if other is not consumer and (found := other.pending.pop(position, None)) is not None:
                other.unacked_messages -= found[0]
                self._let_go(found[1])
                self._maybe_unblock(other)
                return found[0]
        return 0

    def acknowledge_batch(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int], batch_size: int
    ) -> None:
        self._note_acked(position)
        owner = next((c for c in (consumer, *self.consumers) if position in c.pending), None)
        is_whole = self._cursor.acknowledge_batch(position, still_unacked, batch_size)
        if owner is None:
            return
        before, key_hash = owner.pending[position]
        left_set = None if is_whole else self._cursor.ack_set_of(position)
        left = 0 if is_whole else before if left_set is None else min(before, messages_of(left_set))
        if is_whole:
            del owner.pending[position]
            self.redeliveries.pop(position, None)
            self._let_go(key_hash)
        else:
            owner.pending[position] = (left, key_hash)
        consumer.acked_messages += before - left
        owner.unacked_messages -= before - left
        self.unacked_messages -= before - left
        self._maybe_unblock(owner)

    def mark_delete_moved(self) -> None:
        mark_delete = self._cursor.mark_delete
        for consumer in self.consumers:
            done = [position for position in consumer.pending if position <= mark_delete]
            for position in done:
                messages, key_hash = consumer.pending.pop(position)
                consumer.unacked_messages -= messages
                self.unacked_messages -= messages
                self.redeliveries.pop(position, None)
                self._let_go(key_hash)
        self.replay.drop_through(mark_delete)
        if self.delayed is not None and self._cursor.next_unacknowledged(mark_delete) >= self.next_read:
            self.delayed.clear()  # Nothing of what was read is left.
        self.replay_is_stuck = False
        self._unblock()
        super().mark_delete_moved()

    # --- limits on what is unacknowledged -----------------------------------------------------------------------------

    def _maybe_unblock(self, consumer: Consumer) -> None:
        if consumer.is_blocked or self.is_blocked or self.waits_for_gaps:
            self._unblock()

    def _unblock(self) -> None:
        per_consumer = self._context.unacked_per_consumer_max
        for consumer in self.consumers:
            if consumer.is_blocked and (not per_consumer or consumer.unacked_messages <= per_consumer // 2):
                consumer.is_blocked = False
                self.replay_is_stuck = False
                self.schedule()
        limit = self._context.limits.unacked_messages_per_subscription_max
        if self.is_blocked and (not limit or self.unacked_messages < max(1, limit // 2)):
            self.is_blocked = False
            self.replay_is_stuck = False
            self.schedule()
        if self.waits_for_gaps and self._context.entries_allowed_from(self.next_read):
            self.waits_for_gaps = False
            self.schedule()

    def limits_changed(self) -> None:
        per_consumer = self._context.unacked_per_consumer_max
        for consumer in self.consumers:
            consumer.is_blocked = consumer.is_blocked or 0 < per_consumer <= consumer.unacked_messages
        self._unblock()
        super().limits_changed()

    def _room(self, consumer: Consumer) -> int:
        """Messages it may be given now, by its permits and by what it has unacknowledged; the last entry may exceed
        it."""
        if limit := self._context.unacked_per_consumer_max:
            return min(consumer.permits, limit - consumer.unacked_messages)
        return consumer.permits

    def _room_of_all(self) -> int:
        """Messages that all together may be given now."""
        if limit := self._context.limits.unacked_messages_per_subscription_max:
            return min(limit - self.unacked_messages, self._budget)
        return self._budget

    # --- giving back --------------------------------------------------------------------------------------------------

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:  # noqa: ARG002
        """Only what this consumer has: anything else is with somebody, acknowledged, or waiting already."""
        for position in list(consumer.pending) if positions is None else positions:
            found = consumer.pending.pop(position, None)
            if found is None:
                continue
            self._take_back(consumer, position, found)
        consumer.is_blocked = False
        self.replay_is_stuck = False
        self._unblock()
        self.schedule()

    def _take_back(self, consumer: Consumer, position: Position, found: Pending) -> None:
        messages, key_hash = found
        consumer.unacked_messages -= messages
        consumer.redelivered_messages += messages
        self.unacked_messages -= messages
        self._let_go(key_hash)
        if not self._cursor.is_acknowledged(position):
            self.redeliveries[position] = self.redeliveries.get(position, 0) + 1
            self.replay.add(position, key_hash)
