"""A subscription of a persistent topic: its consumers, its cursor, and the dispatcher between them.

The type is that of the consumers. It may change while none is connected; then a new dispatcher is made.

A subscription that is not durable is a reader's, and ends with its last consumer. A seek disconnects that consumer,
too. Its client comes back with the message where it began once, which is not where it sought. So the subscription
waits for it (`awaits_return`), up to RETURN_S, and its cursor knows where to continue. `on_left` is called when no
consumer came back.

Order:     acknowledgements change the cursor at once and are stored a little later. `flush` waits for that, for clients
           that want a receipt.
Failure:   while it is reset or deleted, consumers are refused; clients try again by themselves.
Read next: broker/dispatch/__init__.py (how entries are handed out), consumer.py; docs/subscriptions.md

Each consumer of a topic is notified once that it has ended, except those that cannot understand it.

The C++ client and the clients built on it do not know REACHED_END_OF_TOPIC. They drop the connection, with everything
on it, and connect again at once. A consumer that was lost in this way is not notified again when it comes back. It is
recognized by the names of subscription and consumer. A reader's subscription ends with its connection, so the topic
remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.dispatch.backlog import (
    Backlog,
    backlog_in_entries,
    count_backlog,
    count_before,
    last_published_before,
    peek,
    skip_target,
)
from magnetar.broker.dispatch.blockers import Explanation, PositionState
from magnetar.broker.dispatch.choose_dispatcher import check_compatible, choose_dispatcher
from magnetar.broker.dispatch.context import (
    DispatchContext,
    DispatchLimits,
    EntrySource,
    IndexedSource,
    SubscriptionCursor,
)
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.explain import explain, state_of
from magnetar.broker.dispatch.rate_bucket import RateBucket
from magnetar.broker.dispatch.statistics import Departed, SubscriptionStatistics, statistics_of
from magnetar.broker.subscriptions.consumer import Consumer, SubscriptionType
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import ConsumerBusyError, InvalidCursorPositionError, NotAllowedError, SubscriptionFencedError
from magnetar.runtime.runtime import Entropy
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.words import counted

UNHEARD_S: Final = 1.0
"""A connection that ends this soon after the notice is assumed to have ended because of it."""
_UNHEARD_MAX: Final = 1_000
"""Consumers that are remembered; others are notified each time they connect."""


class EndNotices:
    """The notices of one topic."""

    def __init__(self) -> None:
        self._unheard: set[tuple[str, str]] = set()

    def notify(self, subscription: str, consumer: Consumer, now_s: float) -> None:
        if consumer.notified_of_end_s is None and (subscription, consumer.name) not in self._unheard:
            consumer.notified_of_end_s = now_s
            consumer.sink.reached_end_of_topic()

    def on_left(self, subscription: str, consumer: Consumer, now_s: float) -> None:
        """A consumer that closed itself may come back as another run of its program, and is notified then."""
        name, notified_s = (subscription, consumer.name), consumer.notified_of_end_s
        if not consumer.is_lost:
            self._unheard.discard(name)
        elif notified_s is not None and now_s - notified_s < UNHEARD_S and len(self._unheard) < _UNHEARD_MAX:
            self._unheard.add(name)


RETURN_S: Final = 120.0
"""Seconds that a reader that sought may stay away: twice the longest pause of clients between two attempts."""


class Subscription:
    """Methods that are not `async` return at once; what they cause happens in later turns of the loop."""

    def __init__(
        self,
        name: str,
        cursor: SubscriptionCursor,
        log: IndexedSource,
        config: DispatchConfig,
        entropy: Entropy,
        *,
        topic: str = "",
        partition: int = -1,
        limits: DispatchLimits | None = None,
        topic_rate: RateBucket | None = None,
        compacted: EntrySource | None = None,
        on_left: Callable[[Subscription], None] | None = None,
        end_notices: EndNotices | None = None,
    ) -> None:
        """`limits` are the policies' (None: the configuration's); `topic_rate` and `end_notices` are shared by all
        subscriptions of the topic; `compacted` is what `read_compacted` consumers read instead of `log`; `on_left`: see
        above."""
        self.name = name
        self.cursor = cursor
        self.is_replicated = False
        """As its creator asked; nothing is replicated yet."""
        self.last_active_ms = entropy.wall_ms()
        """When a consumer last came, left or acknowledged. Before that, the time in the cursor's node, or when it was
        opened. It is stored only where subscriptions expire (subscriptions.py)."""
        self.opened_ms = self.last_active_ms
        self._rate = RateBucket(f"subscription {name}", asyncio.get_running_loop().time())
        rates = (self._rate,) if topic_rate is None else (topic_rate, self._rate)
        self._context = DispatchContext(
            name, topic, partition, cursor, log, compacted, config, entropy, limits or DispatchLimits.of(config), rates
        )
        self._dispatcher: Dispatcher | None = None
        self._fenced = ""  # The reason why consumers are refused.
        self._is_closed = False
        self._on_left = on_left
        self._return_timer: asyncio.TimerHandle | None = None
        self._sought: Position | None = None  # Where the awaited consumers continue.
        self._departed = Departed()
        self._end_notices = end_notices or EndNotices()
        self._closing: set[asyncio.Task[None]] = set()
        self._apply_rate()

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected ones. Not to be changed."""
        return () if self._dispatcher is None else self._dispatcher.consumers

    @property
    def type(self) -> SubscriptionType | None:
        """The type of its consumers, or of the last ones; None before the first."""
        return None if self._dispatcher is None else self._dispatcher.type

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets everything; None on Shared and Key_Shared."""
        return None if self._dispatcher is None else self._dispatcher.active_consumer

    @property
    def mark_delete(self) -> Position:
        return self.cursor.mark_delete

    @property
    def backlog_entries(self) -> int:
        return self.cursor.backlog_entries()

    @property
    def _next_read(self) -> Position | None:
        return None if self._dispatcher is None else self._dispatcher.next_read

    @property
    def is_fenced(self) -> bool:
        return bool(self._fenced)

    @property
    def awaits_return(self) -> bool:
        """Whether a seek has disconnected the consumers of a reader's subscription, and none has come back yet."""
        return self._return_timer is not None

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """`consumer.type` must be the type of the connected ones. Raises ConsumerBusyError, SubscriptionTypeError,
        SubscriptionFencedError or ConsumerAssignError if it was not added."""
        self._check_open()
        dispatcher = self._dispatcher
        if dispatcher is None or not dispatcher.consumers:
            dispatcher = self._dispatcher_for(consumer)
        else:
            check_compatible(dispatcher, consumer)
        if self._sought is not None:
            consumer.start = self._sought  # Not where it began once: its client does not know which entry a time means.
        dispatcher.add_consumer(consumer)
        consumer.is_connected = True
        self.last_active_ms = self._context.entropy.wall_ms()
        self._stop_awaiting()
        self._notify_end()

    def _dispatcher_for(self, consumer: Consumer) -> Dispatcher:
        before = self._dispatcher
        dispatcher = choose_dispatcher(self._context, consumer, before)
        if before is not None and before is not dispatcher:
            self._close_later(before)
        self._dispatcher = dispatcher
        return dispatcher

    def _close_later(self, dispatcher: Dispatcher) -> None:
        task = asyncio.get_running_loop().create_task(dispatcher.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SubscriptionFencedError(f"subscription {self.name} is closed: connect again")
        if self._fenced:
            raise SubscriptionFencedError(f"subscription {self.name}: {self._fenced}; connect again later")

    def remove_consumer(self, consumer: Consumer) -> None:
        """Its entries go to others. A second call does nothing."""
        if consumer.is_connected and self._dispatcher is not None:
            consumer.is_connected = False
            self._end_notices.on_left(self.name, consumer, asyncio.get_running_loop().time())
            self._dispatcher.remove_consumer(consumer)
            self._departed.add(consumer)
            self.last_active_ms = self._context.entropy.wall_ms()

    def flow(self, consumer: Consumer, permits: int) -> None:
        if consumer.is_connected and permits > 0 and self._dispatcher is not None:
            self._dispatcher.flow(consumer, permits)

    def resume(self, consumer: Consumer) -> None:
        """The consumer's sink is writable again."""
        if consumer.is_connected and self._dispatcher is not None:
            self._dispatcher.resume(consumer)

    def disconnect_all(self, why: str) -> None:
        """Removes all consumers and closes them."""
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.sink.disconnect(why)

    # --- readers that sought ------------------------------------------------------------------------------------------

    def _await_return(self) -> None:
        """Comes before the consumers are disconnected: whatever sees none of them must see this as well."""
        if self.cursor.is_durable or not (self.consumers or self.awaits_return):
            return
        self._stop_awaiting()
        self._return_timer = asyncio.get_running_loop().call_later(RETURN_S, self._on_none_returned)

    def _stop_awaiting(self) -> None:
        self._sought = None
        if self._return_timer is not None:
            self._return_timer.cancel()
            self._return_timer = None

    def _on_none_returned(self) -> None:
        self._stop_awaiting()
        if self._on_left is not None:
            self._on_left(self)

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Whole entries, one by one. Acknowledgements of a consumer that has left are ignored: the subscription may
        have been reset since."""
        if positions and consumer.is_connected and self._dispatcher is not None:
            self._require_known(max(positions))
            self._dispatcher.acknowledge(consumer, positions)
            self._acknowledged(consumer)

    def acknowledge_batch(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int], batch_size: int = 0
    ) -> None:
        """Some messages of one entry. `still_unacked` has 64-bit words as on the wire; `batch_size` 0 means unknown."""
        if consumer.is_connected and self._dispatcher is not None:
            self._require_known(position)
            self._dispatcher.acknowledge_batch(consumer, position, still_unacked, batch_size)
            self._acknowledged(consumer)

    def acknowledge_to(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int] = (), batch_size: int = 0
    ) -> None:
        """Cumulative: this entry and all before. Raises NotAllowedError on Shared and Key_Shared."""
        if consumer.type.is_individual:
            raise NotAllowedError(
                f"subscription {self.name} is {consumer.type.shown}: acknowledge each message, not all up to one"
            )
        if consumer.read_compacted and position < self._context.source.chain.first_position:
            return  # Only the compacted view has it; the cursor would skip the rest of the view.
        if consumer.is_connected and self._dispatcher is not None:
            self._require_known(position)
            self._dispatcher.acknowledge_to(consumer, position, still_unacked, batch_size)
            self._acknowledged(consumer)

    def _require_known(self, position: Position) -> None:
        """A broker that has lost the topic without noticing must not confirm entries that it does not know."""
        last = self._context.source.last_confirmed
        if position > last:
            raise InvalidCursorPositionError(
                f"subscription {self.name}: cannot acknowledge {position}: the last message on this broker is "
                f"{last}; look the topic up again"
            )

    def _acknowledged(self, consumer: Consumer) -> None:
        consumer.last_acked_ms = self.last_active_ms = self._context.entropy.wall_ms()
        self.cursor.flush_soon()
        if self._context.source.is_terminated:
            self._notify_end()

    async def flush(self) -> None:
        """Returns when everything that was acknowledged before is durable."""
        await self.cursor.flush()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None = None, epoch: int = 0) -> None:
        """None: everything that it has. `epoch` is the client's new consumer epoch (Exclusive and Failover)."""
        if consumer.is_connected and self._dispatcher is not None:
            self._dispatcher.redeliver(consumer, positions, epoch)

    # --- operations on the cursor -------------------------------------------------------------------------------------

    async def seek(self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0) -> None:
        """Continues with the first entry at or after `position` (EARLIEST and LATEST are positions, too), and if that
        is a batch, with the messages in `still_unacked`. Consumers are disconnected first and come back by themselves.
        Durable when it returns; if it raises, the cursor is where it was."""
        self._fence("it is being reset to another position")
        try:
            self._await_return()
            self.disconnect_all("the subscription is reset to another position")
            await self.cursor.reset(position, still_unacked, batch_size)
            self._sought = position if self.awaits_return else None
            await self._drop_dispatcher()
        finally:
            self._unfence()

    async def unsubscribe(self, consumer: Consumer | None = None, *, force: bool = False) -> None:
        """Disconnects all consumers and accepts no more; the topic then deletes the cursor. Raises ConsumerBusyError
        while others than `consumer` are connected, unless forced."""
        others = [other.shown for other in self.consumers if other is not consumer]
        if others and not force:
            raise ConsumerBusyError(
                f"subscription {self.name} has {counted(len(others), 'other consumer')}, such as {others[0]}: close "
                "them first, or use force (--force, or force=true) to disconnect them"
            )
        self._fence("it is being deleted")
        if consumer is not None:
            self.remove_consumer(consumer)
        self.disconnect_all("the subscription was deleted")
        await self.aclose("the subscription was deleted")

    async def clear_backlog(self) -> int:
        """Acknowledges everything. Returns the number of entries."""
        return await self._acknowledge_operation(self._context.source.last_confirmed)

    async def skip(self, entries: int) -> int:
        """Acknowledges the first `entries` unacknowledged ones, even those that a consumer has. Returns their
        number."""
        target = await skip_target(self._context, entries)
        return 0 if target is None else await self._acknowledge_operation(target)

    async def expire(self, before_ms: int) -> int:
        """Acknowledges what was published before that wall time. Returns the number of entries."""
        target = await last_published_before(self._context, before_ms)
        return 0 if target is None else await self.expire_to(target)

    async def expire_to(self, position: Position) -> int:
        """Acknowledges this entry and all before it. Returns their number."""
        expired = await self._acknowledge_operation(position)
        self._departed.expired_entries += expired
        self._departed.last_expire_ms = self._context.entropy.wall_ms()
        return expired

    async def _acknowledge_operation(self, position: Position) -> int:
        self._check_open()
        before = self.cursor.backlog_entries()
        self.cursor.acknowledge_to(position)
        if self._dispatcher is not None:
            self._dispatcher.mark_delete_moved()
        if self._context.source.is_terminated:
            self._notify_end()
        await self.cursor.flush()
        return max(0, before - self.cursor.backlog_entries())

    async def peek(self, number: int) -> LogEntry | None:
        """Returns the unacknowledged entry with this number, from 1 on, even if a consumer has it."""
        return await peek(self._context, number)

    def _fence(self, why: str) -> None:
        self._check_open()
        self._fenced = why

    def _unfence(self) -> None:
        self._fenced = ""

    # --- calls of the topic ------------------------------------------------------------------------------------------

    def update_limits(self, limits: DispatchLimits) -> None:
        self._context.limits = limits
        self._apply_rate()
        if self._dispatcher is not None:
            self._dispatcher.limits_changed()

    def _apply_rate(self) -> None:
        self._rate.set_rate(self._context.limits.rate, asyncio.get_running_loop().time())

    def cursor_moved(self) -> None:
        """The cursor's mark-delete position was moved without this subscription: the topic was truncated, for
        example."""
        if self._dispatcher is not None:
            self._dispatcher.mark_delete_moved()

    def on_topic_terminated(self) -> None:
        self._notify_end()

    def _notify_end(self) -> None:
        """Tells each consumer once that no message will come any more."""
        if not self._context.source.is_terminated or self.cursor.backlog_entries():
            return
        now_s = asyncio.get_running_loop().time()
        for consumer in self.consumers:
            self._end_notices.notify(self.name, consumer, now_s)

    def send_away(self, why: str) -> None:
        """Disconnects the consumers and accepts no others, forever. `aclose` ends the rest."""
        self._is_closed = True
        self._stop_awaiting()
        self.disconnect_all(why)

    async def aclose(self, why: str = "the topic is unloaded") -> None:
        """Disconnects consumers and ends reading. The topic closes the cursor."""
        self.send_away(why)
        await self._drop_dispatcher()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _drop_dispatcher(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            await dispatcher.aclose()

    # --- what can be asked --------------------------------------------------------------------------------------------

    def statistics(self) -> SubscriptionStatistics:
        return statistics_of(self._context, self._dispatcher, self._departed)

    async def count_backlog(self) -> Backlog:
        """Counts what is not acknowledged, in messages if that takes few reads, which succeed soon."""
        return await count_backlog(self._context, self._next_read)

    async def count_before(self, position: Position) -> int | None:
        """Returns the unacknowledged messages before an unacknowledged entry; None if that is not known."""
        return await count_before(self._context, position)

    def explain(self, backlog: Backlog | None = None) -> Explanation:
        """Returns what blocks delivery at this moment. `backlog` was counted just before; None counts entries only."""
        backlog = backlog or backlog_in_entries(self._context, self._next_read)
        return explain(self._context, self._dispatcher, self._fenced, backlog)

    def state_of(self, position: Position) -> PositionState:
        """Returns where one entry is: acknowledged, with a consumer, delayed, waiting for redelivery, or not read
        yet."""
        return state_of(self._context, self._dispatcher, position)
