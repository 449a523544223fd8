"""A subscription of a persistent topic: its consumers, its cursor, and the dispatcher between them.

Type:      that of its consumers; it may change whenever none is connected, and a new dispatcher is made then.
Durable:   acknowledgements change the cursor at once and are stored a little later; `flush` waits for that, for clients
           that want a receipt.
Fenced:    while it is reset or deleted, consumers are refused; they try again by themselves. `wait_open` waits for it.
Reader's:  one that is not durable ends with its last consumer. A seek disconnects that one, too, and its client comes
           back with the message it once began at, which is not where it sought: so the subscription waits for it,
           for a while (`awaits_return`), and its cursor says where to go on. `on_left` hears when nobody came.
Read next: dispatch/__init__.py (how entries are handed out), consumer.py, delayed.py; docs/subscriptions.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.consumer import Consumer, SubscriptionType
from magnetar.broker.dispatch.backlog import acknowledge_before, entries_to_skip, peek
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.explain import explain, state_of
from magnetar.broker.dispatch.holding import Explanation, PositionState
from magnetar.broker.dispatch.kinds import check_compatible, make_dispatcher
from magnetar.broker.dispatch.parts import DispatchLimits, EntrySource, SubscriptionCursor
from magnetar.broker.dispatch.rate import DispatchRate
from magnetar.broker.dispatch.snapshot import Departed, snapshot
from magnetar.broker.dispatch.statistics import SubscriptionStatistics
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import (
    ConsumerBusyError,
    InvalidCursorPositionError,
    NotAllowedError,
    SubscriptionFencedError,
)
from magnetar.runtime.entropy import Entropy
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

RETURN_S: Final = 120.0
"""How long a reader that sought may stay away: twice the longest pause that clients make between two attempts."""


class Subscription:
    """All methods that are not `async` return at once; what follows happens in later turns of the loop."""

    def __init__(
        self,
        name: str,
        cursor: SubscriptionCursor,
        log: EntrySource,
        config: DispatchConfig,
        entropy: Entropy,
        *,
        topic: str = "",
        partition: int = -1,
        limits: DispatchLimits | None = None,
        topic_rate: DispatchRate | None = None,
        compacted: EntrySource | None = None,
        on_left: Callable[[Subscription], None] | None = None,
    ) -> None:
        """`limits` are the policies' (None: the configuration's); `topic_rate` is shared by a topic's subscriptions;
        `compacted` is what `read_compacted` consumers read instead of `log`; `on_left`: see above."""
        self.name = name
        self.cursor = cursor
        self.is_replicated = False
        """As its creator asked; nothing is replicated yet."""
        self.last_active_ms = entropy.wall_ms()
        """When somebody last came, left or acknowledged; until then, when it was opened. It is not stored: a cursor's
        node is written too seldom to tell, and whoever was connected until a crash needs time to come back."""
        self._rate = DispatchRate(f"subscription {name}", 0, 0, asyncio.get_running_loop().time())
        rates = (self._rate,) if topic_rate is None else (topic_rate, self._rate)
        self._context = DispatchContext(
            name, topic, partition, cursor, log, compacted, config, entropy, limits or DispatchLimits.of(config), rates
        )
        self._dispatcher: Dispatcher | None = None
        self._fenced = ""  # Why consumers are refused.
        self._opened = asyncio.Event()
        self._opened.set()
        self._is_closed = False
        self._on_left = on_left
        self._return_timer: asyncio.TimerHandle | None = None
        self._sought: Position | None = None  # Where those that are awaited go on.
        self._departed = Departed()
        self._closing: set[asyncio.Task[None]] = set()
        self._apply_rate()

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Those that are connected; read only."""
        return () if self._dispatcher is None else self._dispatcher.consumers

    @property
    def type(self) -> SubscriptionType | None:
        """That of its consumers, or of the last ones; None before the first."""
        return None if self._dispatcher is None else self._dispatcher.type

    @property
    def active_consumer(self) -> Consumer | None:
        """Of Exclusive and Failover."""
        return None if self._dispatcher is None else self._dispatcher.active_consumer

    @property
    def is_fenced(self) -> bool:
        return bool(self._fenced)

    @property
    def awaits_return(self) -> bool:
        """Whether a seek has disconnected the consumers of a reader's subscription and none has come back yet."""
        return self._return_timer is not None

    async def wait_open(self, timeout: float) -> None:
        """Until consumers are accepted. SubscriptionFencedError if that takes too long or will never be."""
        try:
            async with asyncio.timeout(timeout):
                await self._opened.wait()
        except TimeoutError:
            raise SubscriptionFencedError(f"subscription {self.name}: {self._fenced}; connect again later") from None
        self._check_open()

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """`consumer.type` must be the type of those that are connected. ConsumerBusyError, SubscriptionTypeError,
        SubscriptionFencedError, ConsumerAssignError: it was not added."""
        self._check_open()
        dispatcher = self._dispatcher
        if dispatcher is None or not dispatcher.consumers:
            dispatcher = self._dispatcher_for(consumer)
        else:
            check_compatible(dispatcher, consumer)
        if self._sought is not None:
            consumer.start = self._sought  # Not where it once began: its client does not know the place of a time.
        dispatcher.add_consumer(consumer)
        consumer.is_connected = True
        self.last_active_ms = self._context.entropy.wall_ms()
        self._stop_awaiting()
        self._tell_end()

    def _dispatcher_for(self, consumer: Consumer) -> Dispatcher:
        before = self._dispatcher
        dispatcher = make_dispatcher(self._context, consumer, before)
        if before is not None and before is not dispatcher:
            self._close_behind(before)
        self._dispatcher = dispatcher
        return dispatcher

    def _close_behind(self, dispatcher: Dispatcher) -> None:
        task = asyncio.get_running_loop().create_task(dispatcher.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SubscriptionFencedError(f"subscription {self.name} is closed: connect again")
        if self._fenced:
            raise SubscriptionFencedError(f"subscription {self.name}: {self._fenced}; connect again later")

    def remove_consumer(self, consumer: Consumer) -> None:
        """What it had goes to others. Twice is once."""
        if consumer.is_connected and self._dispatcher is not None:
            consumer.is_connected = False
            self._dispatcher.remove_consumer(consumer)
            self._departed.add(consumer)
            self.last_active_ms = self._context.entropy.wall_ms()

    def flow(self, consumer: Consumer, permits: int) -> None:
        if consumer.is_connected and permits > 0 and self._dispatcher is not None:
            self._dispatcher.flow(consumer, permits)

    def resume(self, consumer: Consumer) -> None:
        """Its sink is writable again."""
        if consumer.is_connected and self._dispatcher is not None:
            self._dispatcher.resume(consumer)

    def disconnect_all(self, why: str) -> None:
        """They are removed, and told so."""
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.sink.disconnect(why)

    # --- readers that sought ------------------------------------------------------------------------------------------

    def _await_return(self) -> None:
        """Before they are disconnected: whoever sees that nobody is left must see this, too."""
        if self.cursor.is_durable or not (self.consumers or self.awaits_return):
            return
        self._stop_awaiting()
        self._return_timer = asyncio.get_running_loop().call_later(RETURN_S, self._on_nobody_returned)

    def _stop_awaiting(self) -> None:
        self._sought = None
        if self._return_timer is not None:
            self._return_timer.cancel()
            self._return_timer = None

    def _on_nobody_returned(self) -> None:
        self._stop_awaiting()
        if self._on_left is not None:
            self._on_left(self)

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Whole entries, one by one. Of a consumer that has left they are ignored: the subscription may have been reset
        since."""
        if positions and consumer.is_connected and self._dispatcher is not None:
            self._require_known(max(positions))
            self._dispatcher.acknowledge(consumer, positions)
            self._acknowledged(consumer)

    def acknowledge_batch(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int], batch_size: int = 0
    ) -> None:
        """Some messages of one entry. `still_unacked`: 64-bit words as on the wire; `batch_size` 0: not known."""
        if consumer.is_connected and self._dispatcher is not None:
            self._require_known(position)
            self._dispatcher.acknowledge_batch(consumer, position, still_unacked, batch_size)
            self._acknowledged(consumer)

    def acknowledge_to(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int] = (), batch_size: int = 0
    ) -> None:
        """Cumulative: this and all before. NotAllowedError on Shared and Key_Shared."""
        if consumer.type.is_individual:
            raise NotAllowedError(
                f"subscription {self.name} is {consumer.type.shown}: acknowledge each message, not all up to one"
            )
        if consumer.read_compacted and position < self._context.source.chain.first_position:
            return  # Only the compacted view has it; the cursor would jump over the rest of that.
        if consumer.is_connected and self._dispatcher is not None:
            self._require_known(position)
            self._dispatcher.acknowledge_to(consumer, position, still_unacked, batch_size)
            self._acknowledged(consumer)

    def _require_known(self, position: Position) -> None:
        """A broker that lost the topic and has not noticed must not confirm what it has never heard of."""
        last = self._context.source.last_confirmed
        if position > last:
            raise InvalidCursorPositionError(
                f"subscription {self.name}: {position} is behind {last}, the last message here: look the topic up again"
            )

    def _acknowledged(self, consumer: Consumer) -> None:
        consumer.last_acked_ms = self.last_active_ms = self._context.entropy.wall_ms()
        self.cursor.flush_soon()
        if self._context.source.is_terminated:
            self._tell_end()

    async def flush(self) -> None:
        """Returns when all that was acknowledged before is durable."""
        await self.cursor.flush()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None = None, epoch: int = 0) -> None:
        """None: everything it has. `epoch` is the client's new consumer epoch (Exclusive and Failover)."""
        if consumer.is_connected and self._dispatcher is not None:
            self._dispatcher.redeliver(consumer, positions, epoch)

    # --- operations on the cursor -------------------------------------------------------------------------------------

    async def seek(self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0) -> None:
        """Deliver next the first entry at or behind `position` (EARLIEST, LATEST are positions too), and of it, if it
        is a batch, what is in `still_unacked`. Consumers are disconnected first and come back by themselves. Durable
        when it returns; if it raises, the cursor is where it was."""
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
        """Lets all consumers go and accepts no more; the owner then deletes the cursor. Refused with ConsumerBusyError
        while others than `consumer` are connected, unless forced."""
        others = [other.name for other in self.consumers if other is not consumer]
        if others and not force:
            raise ConsumerBusyError(
                f"subscription {self.name} has {len(others)} other consumers, such as {others[0]!r}: close them first, "
                "or force it"
            )
        self._fence("it is being deleted")
        if consumer is not None:
            self.remove_consumer(consumer)
        self.disconnect_all("the subscription was deleted")
        await self.aclose("the subscription was deleted")

    async def clear_backlog(self) -> int:
        """All of it; how many entries that were."""
        return await self._acknowledge_operation(self._context.source.last_confirmed)

    async def skip(self, entries: int) -> int:
        """So many of those that are unacknowledged, from the first on, whoever may have them."""
        target = await entries_to_skip(self._context, entries)
        return 0 if target is None else await self._acknowledge_operation(target)

    async def expire(self, before_ms: int) -> int:
        """What was published before that wall time; how many entries that were."""
        target = await acknowledge_before(self._context, before_ms)
        return 0 if target is None else await self.expire_to(target)

    async def expire_to(self, position: Position) -> int:
        """This entry and all before it."""
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
            self._tell_end()
        await self.cursor.flush()
        return max(0, before - self.cursor.backlog_entries())

    async def peek(self, number: int) -> LogEntry | None:
        """The entry at this place of those that are unacknowledged, from 1 on, whoever may have it."""
        return await peek(self._context, number)

    def _fence(self, why: str) -> None:
        self._check_open()
        self._fenced = why
        self._opened.clear()

    def _unfence(self) -> None:
        self._fenced = ""
        self._opened.set()

    # --- what the topic tells -----------------------------------------------------------------------------------------

    def update_limits(self, limits: DispatchLimits) -> None:
        self._context.limits = limits
        self._apply_rate()
        if self._dispatcher is not None:
            self._dispatcher.limits_changed()

    def _apply_rate(self) -> None:
        limits = self._context.limits
        period_s = max(1, limits.rate_period_s)
        self._rate.change(
            limits.messages_per_second / period_s,
            limits.bytes_per_second / period_s,
            asyncio.get_running_loop().time(),
            period_s,
        )

    def cursor_moved(self) -> None:
        """Somebody has moved the cursor's mark-delete position past this subscription: truncated the topic, say."""
        if self._dispatcher is not None:
            self._dispatcher.mark_delete_moved()

    def on_topic_terminated(self) -> None:
        self._tell_end()

    def _tell_end(self) -> None:
        """That nothing will come any more, to each consumer once."""
        if not self._context.source.is_terminated or self.cursor.backlog_entries():
            return
        for consumer in self.consumers:
            if not consumer.is_told_end:
                consumer.is_told_end = True
                consumer.sink.reached_end_of_topic()

    def send_away(self, why: str) -> None:
        """Consumers are disconnected, and no others accepted, for ever. `aclose` ends the rest."""
        self._is_closed = True
        self._stop_awaiting()
        self._opened.set()
        self.disconnect_all(why)

    async def aclose(self, why: str = "the topic is unloaded") -> None:
        """Disconnects consumers and ends reading. The cursor is its owner's to close."""
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
        return snapshot(self._context, self._dispatcher, self._departed)

    def explain(self) -> Explanation:
        """What exactly holds delivery, now."""
        return explain(self._context, self._dispatcher, self._fenced)

    def state_of(self, position: Position) -> PositionState:
        """How far one entry has come: acknowledged, with a consumer, delayed, waiting for redelivery, not read yet."""
        return state_of(self._context, self._dispatcher, position)
