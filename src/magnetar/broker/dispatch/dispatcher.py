"""Dispatcher: what all kinds of dispatch share: the turn, the place where reading continues, and counts of what was
sent.

Everything that may let an entry be delivered (entries at the tail, permits, acknowledgements, a timer, a writable
connection) calls `schedule`. All calls within one turn of the loop lead to one `_turn` in the next.

Invariant: no entry after `_acked_high` has ever been acknowledged, not even in part, so the cursor need not be asked.
           On a subscription that keeps up these are all entries.
Limits:    a turn reads and hands out one run, then other tasks run. `_dispatch` returns whether to come back at once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from magnetar.broker.dispatch.blockers import Blocker, PositionState
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.entry_reader import EntryReader
from magnetar.broker.subscriptions.consumer import UNLIMITED, Consumer, Delivery, SubscriptionType
from magnetar.errors import ConsumerBusyError, NoSuchLedgerError
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.words import counted


class Dispatcher(ABC):
    type: SubscriptionType

    def __init__(self, context: DispatchContext) -> None:
        self._context = context
        self._cursor = context.cursor
        self._config = context.config
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_closed = False
        self._rate_timer: asyncio.TimerHandle | None = None
        self._acked_high = context.source.last_confirmed
        self._reader = EntryReader(context.source, context.config, self.schedule)
        self.consumers: list[Consumer] = []
        self.transactional: Position | None = None
        """An entry of a transaction. Delivery stops there, because it is not known whether the transaction was
        committed."""
        self.next_read = self._first_unacknowledged()
        context.source.watch_tail(self.schedule)

    # --- turns --------------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        if not self._is_scheduled and self.consumers and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._is_closed or not self.consumers:
            return
        if self._dispatch():
            self.schedule()

    @abstractmethod
    def _dispatch(self) -> bool:
        """Hands out one run. Returns whether another turn may find more."""

    # --- consumers ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def add_consumer(self, consumer: Consumer) -> None: ...

    def _check_room(self) -> None:
        limit = self._context.limits.consumers_max
        if 0 < limit <= len(self.consumers):
            raise ConsumerBusyError(
                f"subscription {self._context.subscription} has {counted(len(self.consumers), 'consumer')}, which is "
                "the limit: close one, or raise the maximum of consumers per subscription"
            )

    @abstractmethod
    def remove_consumer(self, consumer: Consumer) -> None: ...

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        consumer.last_flow_ms = self._context.entropy.wall_ms()
        consumer.first_flow_ms = consumer.first_flow_ms or consumer.last_flow_ms
        self.schedule()

    def resume(self, consumer: Consumer) -> None:  # noqa: ARG002
        self.schedule()

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None: ...

    def limits_changed(self) -> None:
        self._stop_rate_timer()
        self.schedule()

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        self._note_acked(max(positions))
        self._cursor.acknowledge(positions)
        consumer.acked_messages += len(positions)

    def acknowledge_batch(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int], batch_size: int
    ) -> None:
        self._note_acked(position)
        self._cursor.acknowledge_batch(position, still_unacked, batch_size)
        consumer.acked_messages += 1

    def acknowledge_to(self, consumer: Consumer, position: Position, still_unacked: Sequence[int], size: int) -> None:
        """Only on Exclusive and Failover."""
        self._note_acked(position)
        self._cursor.acknowledge_to(position, still_unacked or None, size)
        consumer.acked_messages += 1
        self.mark_delete_moved()

    def _note_acked(self, position: Position) -> None:
        """Clients may send any position: an entry that does not exist yet is not acknowledged."""
        self._acked_high = max(self._acked_high, min(position, self._context.source.last_confirmed))

    def mark_delete_moved(self) -> None:
        """The cursor's mark-delete position has moved in another way than by the methods above."""
        mark_delete = self._cursor.mark_delete
        self._acked_high = max(self._acked_high, mark_delete)
        if self.next_read <= mark_delete:
            self.next_read = self._first_unacknowledged()
        self.schedule()

    def rewind(self) -> None:
        """Begins again at the first entry that is not acknowledged."""
        self.next_read = self._first_unacknowledged()
        self.transactional = None
        self._reader.retry_now()

    def _first_unacknowledged(self) -> Position:
        return self._cursor.next_unacknowledged(self._cursor.mark_delete)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _allowance(self) -> tuple[int, int]:
        """Returns how many messages and bytes the rates allow now. If that is 0, it sets a timer."""
        messages, size = UNLIMITED, self._config.read_bytes_max
        for rate in self._context.rates:
            if rate.is_limited:
                rate_messages, rate_size = rate.available(self._loop.time())
                messages, size = min(messages, rate_messages), min(size, rate_size)
        if messages <= 0 or size <= 0:
            self._wait_for_rate()
            return 0, 0
        return messages, size

    def _wait_for_rate(self) -> None:
        if self._rate_timer is None:
            wait_s = max(rate.wait_s(self._loop.time()) for rate in self._context.rates)
            self._rate_timer = self._loop.call_later(max(wait_s, 0.001), self._rate_is_over)

    def _stop_rate_timer(self) -> None:
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_timer = None

    def _rate_is_over(self) -> None:
        self._rate_timer = None
        self.schedule()

    def _read_on(self, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        """Returns the next run of the topic, or None."""
        if self.next_read > self._context.source.last_confirmed or self._is_stopped():
            return None
        if self.next_read <= self._acked_high:
            self.next_read = self._cursor.next_unacknowledged(self.next_read)
        entries = self._reader.get(self.next_read, entries_max, bytes_max)
        if entries is None and self._reader.lost is not None:
            self._skip_lost(self._reader)
        return entries

    def _is_stopped(self) -> bool:
        """Returns whether delivery stops at an entry of a transaction that was not skipped."""
        if self.transactional is not None and self._cursor.is_acknowledged(self.transactional):
            self.transactional = None
        return self.transactional is not None

    def _skip_lost(self, reader: EntryReader) -> list[Position]:
        """Acknowledges entries that are certainly lost, as the operator has configured it. Returns their positions."""
        assert reader.lost is not None
        position, error = reader.lost
        chain = self._context.source.chain
        lost = [position]
        if isinstance(error, NoSuchLedgerError):  # Then the rest of the ledger is lost, too.
            last = chain.previous_position(Position(position.ledger_id + 1, -1))
            if last > position:  # Otherwise it has left the topic, and only this entry is asked for.
                lost = [Position(position.ledger_id, entry) for entry in range(position.entry_id, last.entry_id + 1)]
        self._acked_high = max(self._acked_high, lost[-1])
        self._cursor.acknowledge(lost)
        reader.forget_lost()
        self.schedule()
        return lost

    def _skip_marker(self, position: Position) -> None:
        self._acked_high = max(self._acked_high, position)
        self._cursor.acknowledge((position,))

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send(self, consumer: Consumer, deliveries: list[Delivery], messages: int) -> None:
        """Counts a consumer's share of this turn and gives it to the sink. The caller has taken the permits."""
        size = sum([len(entry.data) for entry, _, _ in deliveries])
        entries = len(deliveries)
        now = self._context.entropy.wall_ms()
        if not consumer.delivered_entries:
            consumer.first_delivered_ms = now
            consumer.messages_per_entry = messages / entries
        else:
            consumer.messages_per_entry = consumer.messages_per_entry * 0.9 + 0.1 * messages / entries
        consumer.last_delivered_ms = now
        consumer.delivered_entries += entries
        consumer.delivered_messages += messages
        consumer.delivered_bytes += size
        for rate in self._context.rates:
            rate.take(messages, size)
        consumer.sink.deliver(deliveries)

    # --- questions and the end ----------------------------------------------------------------------------------------

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets everything; None on Shared and Key_Shared."""
        return None

    @property
    def reader(self) -> EntryReader:
        return self._reader

    @property
    def has_rate_timer(self) -> bool:
        return self._rate_timer is not None

    @property
    def waiting_entries(self) -> int:
        """The entries that were read and wait to be delivered, or delivered again."""
        return 0

    @property
    def delayed_entries(self) -> int:
        """The entries that wait for their delivery time."""
        return 0

    @abstractmethod
    def state_of(self, position: Position) -> PositionState | None:
        """Returns where an entry is that was read and is not acknowledged; None if this dispatcher does not know."""

    @abstractmethod
    def blockers(self) -> list[Blocker]:
        """Returns the reasons of this kind of dispatch why entries wait."""

    async def aclose(self) -> None:
        self._is_closed = True
        self._context.source.unwatch_tail(self.schedule)
        self._stop_rate_timer()
        await self._reader.aclose()
