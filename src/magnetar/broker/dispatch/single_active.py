"""Exclusive and Failover: one consumer gets everything, in the order of the topic.

The cursor knows what is acknowledged and `next_read` what was sent; nothing is kept for each entry. So to redeliver one
message, everything from the first unacknowledged one on is read again, and no redelivery is counted.

Order:     when another consumer becomes active, reading begins again at the first unacknowledged entry. It waits a
           little if another one was active a moment ago, whose acknowledgements may still arrive.
Limits:    a consumer that asked for it reads the compacted view, which has positions that the topic no longer has. A
           cursor is never moved to one of these: an entry that only the view has is read again until an entry after it
           is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.broker.dispatch.blockers import Blocker, BlockerKind, PositionState, Progress
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.entry_reader import EntryReader
from magnetar.broker.dispatch.next_consumer import choose_active, hash_of_entry
from magnetar.broker.subscriptions.consumer import Consumer, Delivery, SubscriptionType, messages_of
from magnetar.errors import ConsumerBusyError
from magnetar.topic.entry_format.traits import EntryTraits, traits_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, LATEST, Position


class SingleActiveDispatcher(Dispatcher):
    def __init__(self, context: DispatchContext, subscription_type: SubscriptionType) -> None:
        super().__init__(context)
        self.type = subscription_type
        self._active: Consumer | None = None
        self._last_active_at: float | None = None  # When the last active consumer stopped being active.
        self._failover_timer: asyncio.TimerHandle | None = None
        self._compacted_reader: EntryReader | None = None

    @property
    def active_consumer(self) -> Consumer | None:
        return self._active

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        if self.type is SubscriptionType.EXCLUSIVE and self.consumers:
            raise ConsumerBusyError(
                f"exclusive subscription {self._context.subscription} already has consumer {self.consumers[0].name!r}: "
                "close that one first, or use another subscription type"
            )
        self._check_room()
        self.consumers.append(consumer)
        try:
            is_another_active = self._choose()
        except BaseException:
            self.consumers.remove(consumer)  # The caller takes it for one that was not added.
            raise
        if not is_another_active and self.type is SubscriptionType.FAILOVER:
            self._notify(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if self.consumers:
            self._choose()
        elif self._active is not None:
            self._deactivate()

    def _choose(self) -> bool:
        """Returns whether another consumer has become active."""
        config = self._config
        if self.type is SubscriptionType.EXCLUSIVE:
            chosen = self.consumers[0]
        else:
            chosen = choose_active(
                self.consumers,
                self._context.topic,
                self._context.partition,
                by_ring=config.failover_consistent_hashing,
            )
        if chosen is self._active:
            return False
        self._deactivate()
        self._active = chosen
        wait_s = self._failover_wait_s()
        if wait_s > 0:
            self._failover_timer = self._loop.call_later(wait_s, self._begin)
        else:
            self._begin()
        return True

    def _deactivate(self) -> None:
        if self._active is not None:
            self._active = None
            if self._failover_timer is None:  # Otherwise it never got an entry.
                self._last_active_at = self._loop.time()
        self._stop_failover_timer()

    def _failover_wait_s(self) -> float:
        if self.type is SubscriptionType.EXCLUSIVE or self._last_active_at is None:
            return 0.0
        return self._last_active_at + self._config.failover_delay_ms / 1_000 - self._loop.time()

    def _stop_failover_timer(self) -> None:
        if self._failover_timer is not None:
            self._failover_timer.cancel()
            self._failover_timer = None

    def _begin(self) -> None:
        self._failover_timer = None
        self.rewind()
        if self.type is SubscriptionType.FAILOVER:
            for consumer in self.consumers:
                self._notify(consumer)
        self.schedule()

    def _notify(self, consumer: Consumer) -> None:
        """In the next turn, so that a new consumer gets the answer to its SUBSCRIBE first."""
        self._loop.call_soon(self._notify_now, consumer)

    def _notify_now(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            consumer.sink.active_changed(consumer is self._active)

    def rewind(self) -> None:
        super().rewind()
        if self._active is not None and self._reads_compacted(self._active):
            place = self._place_in_view(self._active)
            if place < self._first_of_topic:
                self.next_read = place

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:  # noqa: ARG002
        consumer.epoch = max(consumer.epoch, epoch)
        if consumer is self._active and self._failover_timer is None:
            self.rewind()
            self.schedule()

    # --- a turn -------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> bool:
        consumer = self._active
        if consumer is None or self._failover_timer is not None or not consumer.is_available:
            return False
        messages_max, bytes_max = self._allowance()
        if messages_max <= 0:
            return False
        per_entry = max(1.0, consumer.messages_per_entry)
        wanted = min(consumer.permits, messages_max)
        entries_max = min(int(wanted / per_entry) + 1, self._config.read_entries_max)
        entries = self._read_next(consumer, entries_max, bytes_max)
        if entries is None:
            return False
        self._hand_out(consumer, entries, messages_max)
        return True

    def _hand_out(self, consumer: Consumer, entries: list[LogEntry], messages_max: int) -> None:
        acked_high = self._acked_high
        deliveries: list[Delivery] = []
        sent = 0
        permits = min(consumer.permits, messages_max)
        self.next_read = entries[-1].position.next
        for entry in self._of_its_ranges(consumer, entries):
            if sent >= permits:
                self.next_read = entry.position
                self._give_back(consumer, entries, entry.position)
                break
            traits = traits_of(entry)
            if traits is not None and not self._passes(entry, traits):
                if self.transactional is not None:
                    break
                continue
            if entry.position > acked_high:
                deliveries.append((entry, 0, None))
                sent += entry.messages
            elif not self._is_done(consumer, entry.position):
                ack_set = self._cursor.ack_set_of(entry.position)
                deliveries.append((entry, 0, ack_set))
                sent += entry.messages if ack_set is None else messages_of(ack_set)
        consumer.permits -= sent
        if deliveries:
            self._send(consumer, deliveries, sent)

    def _passes(self, entry: LogEntry, traits: EntryTraits) -> bool:
        """Returns whether the entry is delivered. Delivery times are ignored: order matters more, as in Pulsar."""
        if traits.is_transactional:
            self.transactional = self.next_read = entry.position
        elif traits.is_marker:
            self._skip_marker(entry.position)
        else:
            return True
        return False

    def _of_its_ranges(self, consumer: Consumer, entries: list[LogEntry]) -> list[LogEntry]:
        """Returns the entries in the key ranges that an Exclusive consumer asked for. It never gets, and never
        acknowledges, the others."""
        ranges = consumer.key_shared.ranges
        if not ranges or self.type is not SubscriptionType.EXCLUSIVE:
            return entries
        return [entry for entry in entries if any(first <= hash_of_entry(entry) <= last for first, last in ranges)]

    # --- reading, compacted or not ------------------------------------------------------------------------------------

    def _reads_compacted(self, consumer: Consumer) -> bool:
        return consumer.read_compacted and self._context.compacted is not None

    @property
    def _first_of_topic(self) -> Position:
        """Only the compacted view has entries before this one."""
        return self._context.source.chain.first_position

    def _place_in_view(self, consumer: Consumer) -> Position:
        """Returns the position after the last acknowledged entry, even if that was trimmed since. If none was ever
        acknowledged, it is where the reader asked to begin, and the beginning for a durable cursor."""
        mark_delete = self._cursor.mark_delete
        if mark_delete.entry_id >= 0:
            return mark_delete.next
        if self._cursor.is_durable:
            return EARLIEST
        return LATEST if consumer.start is None else consumer.start

    def _read_next(self, consumer: Consumer, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        if not self._reads_compacted(consumer):
            return self._read_on(entries_max, bytes_max)
        compacted = self._context.compacted
        assert compacted is not None
        if self.next_read > compacted.last_confirmed or self._is_stopped():
            return None
        if self._compacted_reader is None:
            self._compacted_reader = EntryReader(compacted, self._config, self.schedule)
        return self._compacted_reader.get(self.next_read, entries_max, bytes_max)

    def _is_done(self, consumer: Consumer, position: Position) -> bool:
        """Returns whether the entry is acknowledged. One that only the compacted view has is before every mark-delete
        position, and is not."""
        if self._reads_compacted(consumer) and position < self._first_of_topic:
            return False
        return self._cursor.is_acknowledged(position)

    def _give_back(self, consumer: Consumer, entries: list[LogEntry], first: Position) -> None:
        reader = self._compacted_reader if self._reads_compacted(consumer) else self._reader
        assert reader is not None
        reader.give_back(entries, first)

    @property
    def reader(self) -> EntryReader:
        active = self._active
        if active is not None and self._reads_compacted(active) and self._compacted_reader is not None:
            return self._compacted_reader
        return self._reader

    # --- questions and the end ----------------------------------------------------------------------------------------

    def state_of(self, position: Position) -> PositionState | None:
        if self._active is None or position >= self.next_read:
            return None
        return PositionState(position=position, progress=Progress.WITH_CONSUMER, consumer=self._active.name)

    def blockers(self) -> list[Blocker]:
        active = self._active
        if active is None:
            return []
        if self._failover_timer is not None:
            wait_ms = max(0, round((self._failover_timer.when() - self._loop.time()) * 1_000))
            return [
                Blocker(
                    kind=BlockerKind.FAILOVER_DELAY,
                    text=f"consumer {active.shown} has just become active and gets messages in {wait_ms} ms",
                    consumer=active.name,
                    until_ms=self._context.entropy.wall_ms() + wait_ms,
                )
            ]
        return []

    async def aclose(self) -> None:
        self._stop_failover_timer()
        if self._compacted_reader is not None:
            await self._compacted_reader.aclose()
        await super().aclose()
