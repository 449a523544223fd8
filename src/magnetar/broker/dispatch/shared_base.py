"""What Shared and Key_Shared have in common: several consumers at a time, each entry acknowledged by itself.

Invariant: an entry after the mark-delete position is acknowledged, in the book (unacked_book.py), delayed
           (delayed_delivery.py), or not read yet (at or after `next_read`), and in one of these places alone.
Order:     in a turn, entries whose time has come join the replay queue; then a run of neighbours of that queue is read
           and handed out; when nothing of it can be handed out, the next run of the topic is. One run is one turn. A
           turn that changed nothing is not repeated until something happens: `replay_is_stuck` saves searching the
           replay queue in vain.
Limits:    at a limit on unacknowledged messages nothing new is delivered until half of them are acknowledged; entries
           of the replay queue need only room in the subscription. If the policies say so, what is acknowledged out of
           order is limited, too: to what the cursor stores.
Read next: unacked_book.py, shared.py, key_shared.py
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import Final

from magnetar.broker.dispatch.blockers import Blocker, BlockerKind, PositionState, Progress
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.delayed_delivery import DelayedDelivery
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.entry_reader import EntryReader
from magnetar.broker.dispatch.unacked_book import UnackedBook
from magnetar.broker.subscriptions.consumer import UNLIMITED, Consumer, Delivery, messages_of
from magnetar.topic.entry_format.traits import EntryTraits
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.words import counted

_REPLAY_GAP_MAX: Final = 8  # Unwanted entries that are read to join two runs of a replay to one read.


class Share:
    """What one consumer gets in one turn."""

    __slots__ = ("deliveries", "messages")

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.messages = 0


class SharedBase(Dispatcher):
    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._replay_reader = EntryReader(context.source, context.config, self.schedule)
        self.book = UnackedBook(self.consumers)
        self.delayed: DelayedDelivery | None = None
        self.waits_for_gaps = False
        """Whether only entries that may close a gap between acknowledged ones are delivered."""
        self.replay_is_stuck = False
        """Nothing in the replay queue can be handed out until a consumer or an acknowledgement changes that."""
        self._budget = 0  # Messages that the rates allow in this turn.
        self._set_limits()

    def _wake(self) -> None:
        """An entry may be handed out that could not be handed out before."""
        self.replay_is_stuck = False
        self.schedule()

    # --- consumers ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self._check_room()
        self._join(consumer)
        self.consumers.append(consumer)
        self._set_limits()
        self._wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._leave(consumer)
        self.book.take_all(consumer)
        if not self.consumers:
            self._on_all_left()
        self._wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        self._wake()
        super().flow(consumer, permits)

    def resume(self, consumer: Consumer) -> None:
        self._wake()
        super().resume(consumer)

    def _on_all_left(self) -> None:
        """The next consumer begins at the first unacknowledged entry. Only what is delayed is worth keeping: to find it
        again, all of it must be read."""
        assert not self.book.holders
        self.book.redeliveries.clear()
        if self.delayed is None or not (len(self.delayed) or self.delayed.has_more):
            self.rewind()

    @abstractmethod
    def _join(self, consumer: Consumer) -> None:
        """Raises if the consumer cannot be one of these."""

    @abstractmethod
    def _leave(self, consumer: Consumer) -> None: ...

    def rewind(self) -> None:
        super().rewind()
        self.book.replay.clear()
        self._replay_reader.retry_now()
        if self.delayed is not None:
            self.delayed.clear()

    def _set_limits(self) -> None:
        limits = self._context.limits
        self.book.set_limits(self._context.unacked_per_consumer_max, limits.unacked_messages_per_subscription_max)

    def limits_changed(self) -> None:
        self._set_limits()
        self._wake()
        super().limits_changed()

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        self._note_acked(max(positions))
        makes_room = self.book.acknowledge(consumer, positions)
        self._cursor.acknowledge(positions)
        self._continue_after_acknowledging(makes_room)

    def acknowledge_batch(
        self, consumer: Consumer, position: Position, still_unacked: Sequence[int], batch_size: int
    ) -> None:
        self._note_acked(position)
        if self._cursor.acknowledge_batch(position, still_unacked, batch_size):
            makes_room = self.book.acknowledge(consumer, (position,))
        else:
            left = self._cursor.ack_set_of(position)
            makes_room = self.book.acknowledge_part(
                consumer, position, UNLIMITED if left is None else messages_of(left)
            )
        self._continue_after_acknowledging(makes_room)

    def _continue_after_acknowledging(self, makes_room: bool) -> None:
        if makes_room:
            self._wake()
        elif self.waits_for_gaps:
            self.schedule()  # The turn finds out whether enough gaps are closed.

    def mark_delete_moved(self) -> None:
        mark_delete = self._cursor.mark_delete
        self.book.drop_through(mark_delete)
        if self.delayed is not None and self._cursor.next_unacknowledged(mark_delete) >= self.next_read:
            self.delayed.clear()  # Everything that was read is acknowledged.
        self._wake()
        super().mark_delete_moved()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:  # noqa: ARG002
        given_back = list(consumer.pending) if positions is None else positions
        self.book.give_back(consumer, given_back, self._cursor.is_acknowledged)
        self._wake()

    # --- a turn -------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> bool:
        self._budget, bytes_max = self._allowance()
        entries_max = min(self._entries_wanted(), self._budget, self._config.read_entries_max)
        if entries_max <= 0:
            return False
        self._queue_due(entries_max)
        if len(self.book.replay) and self._dispatch_replay(entries_max, bytes_max):
            return True
        if self.book.total.is_blocked or (self.delayed is not None and self.delayed.pauses_reading):
            return False
        allowed = self._context.entries_allowed_from(self.next_read)
        self.waits_for_gaps = not allowed
        entries_max = min(entries_max, self._read_ahead_room(), allowed)
        return entries_max > 0 and self._dispatch_next(entries_max, bytes_max)

    def _dispatch_next(self, entries_max: int, bytes_max: int) -> bool:
        entries = self._read_on(entries_max, bytes_max)
        if entries is None:
            return False
        handled = self._hand_out(entries, is_replay=False)
        if handled < len(entries):
            self.next_read = entries[handled].position
            self._reader.give_back(entries, self.next_read)
            return self.transactional is None and self._entries_wanted() > 0
        self.next_read = entries[-1].position.next
        return True

    def _entries_wanted(self) -> int:
        """Returns how many entries all available consumers may take together, if batches stay as large as they were."""
        wanted = 0
        for consumer in self.consumers:
            if consumer.is_available:
                wanted += int(consumer.permits / max(1.0, consumer.messages_per_entry)) + 1
        return wanted

    def _read_ahead_room(self) -> int:
        """Returns how many further entries may be read, although some wait already."""
        return self._config.read_entries_max

    def _room(self, consumer: Consumer) -> int:
        """Returns how many messages its permits and its limit leave to the consumer; the last entry may exceed that."""
        return min(consumer.permits, consumer.unacked.room)

    def _room_of_all(self) -> int:
        """Returns how many messages may be delivered to all consumers together."""
        return min(self.book.total.room, self._budget)

    @abstractmethod
    def _hand_out(self, entries: list[LogEntry], *, is_replay: bool) -> int:
        """Gives entries to consumers. Returns how many of them, from the first on, are placed now: with a consumer,
        delayed, or in the replay queue. An entry of a replay that is placed elsewhere is removed from the queue."""

    def _is_set_aside(self, entry: LogEntry, traits: EntryTraits, *, is_replay: bool) -> bool:
        """Returns whether the entry is not for a consumer now. A transactional one sets `transactional`."""
        if traits.is_marker:
            self._skip_marker(entry.position)
            return True
        if traits.is_transactional:
            self.transactional = entry.position
            return True
        if traits.deliver_at_ms and not is_replay:  # An entry of a replay was due, or was delivered before.
            if self.delayed is None:
                self.delayed = DelayedDelivery(self._context, self._wake, self._already_placed)
            return self.delayed.delay(entry.position, traits.deliver_at_ms)
        return False

    def _delivery_of(self, entry: LogEntry) -> tuple[Delivery, int]:
        """Returns the delivery and the number of its messages that are not acknowledged."""
        position = entry.position
        ack_set = self._cursor.ack_set_of(position) if position <= self._acked_high else None
        messages = entry.messages if ack_set is None else messages_of(ack_set)
        return (entry, self.book.redeliveries.get(position, 0), ack_set), messages

    def _finish(self, shares: dict[Consumer, Share], *, is_replay: bool) -> None:
        """Sends what was handed out in this turn, with one call for each consumer."""
        for consumer, share in shares.items():
            if not share.deliveries:
                continue
            self._send(consumer, share.deliveries, share.messages)
            if self.delayed is not None and not is_replay:
                self.delayed.saw_undelayed()

    # --- replay -------------------------------------------------------------------------------------------------------

    def _queue_due(self, entries_max: int) -> None:
        delayed = self.delayed
        if delayed is None:
            return
        room = min(entries_max, self._replay_room(entries_max))
        if room > 0:
            for position in delayed.pop_due(room):
                self.replay_is_stuck = False
                self.book.replay.add(position)
        delayed.refill_if_low(self.next_read)

    def _already_placed(self, positions: set[Position]) -> set[Position]:
        """Returns those that a scan for delayed entries must not bring again."""
        return self.book.placed_among(positions)

    def _replay_room(self, entries_max: int) -> int:
        """Returns how many due entries may be queued: the delayed index needs less memory for them than the queue."""
        return entries_max - len(self.book.replay)

    def _wanted_of_replay(self, entries_max: int) -> list[Position]:
        """Returns positions of the replay queue, in order, that a consumer could take now."""
        return list(islice(self.book.replay, entries_max))

    def _dispatch_replay(self, entries_max: int, bytes_max: int) -> bool:
        """Hands out one run of neighbours. Returns whether anything changed."""
        if self.replay_is_stuck:
            return False
        wanted = self._wanted_of_replay(entries_max)
        if not wanted:
            self.replay_is_stuck = True
            return False
        run = _first_run(wanted)
        before = self.book.replay.shape
        entries = self._replay_reader.get(run[0], run[-1].entry_id - run[0].entry_id + 1, bytes_max)
        if entries is None:
            return self._on_empty_replay(run[0])
        expected = frozenset(run)
        matching = [entry for entry in entries if entry.position in expected]
        handled = self._hand_out(matching, is_replay=True)
        if len(matching) < len(run):
            self._drop_missing(run)
        if handled < len(matching):
            self._replay_reader.give_back(entries, matching[handled].position)
        return self.book.replay.shape != before

    def _drop_missing(self, run: list[Position]) -> None:
        """Forgets entries that the topic no longer has. Only the topic decides that: an answer without an entry may be
        a short one, and to forget an entry that exists is to lose it."""
        chain = self._context.source.chain
        for position in run:
            if not chain.contains(position):
                self.book.replay.remove(position)

    def _on_empty_replay(self, first: Position) -> bool:
        """Reading brought nothing, for now or for good. The lost entry may be another one than the one wanted now."""
        if self._replay_reader.lost is not None:
            for position in self._skip_lost(self._replay_reader):
                self.book.replay.remove(position)
            return True
        if self._context.source.chain.contains(first):
            return False
        self.book.replay.remove(first)
        return True

    # --- questions and the end ----------------------------------------------------------------------------------------

    @property
    def reader(self) -> EntryReader:
        return self._replay_reader if self._replay_reader.trouble is not None else self._reader

    @property
    def waiting_entries(self) -> int:
        return len(self.book.replay)

    @property
    def delayed_entries(self) -> int:
        return 0 if self.delayed is None else len(self.delayed)

    def state_of(self, position: Position) -> PositionState | None:
        count = self.book.redeliveries.get(position, 0)
        consumer = self.book.where(position)
        if consumer is not None:
            return PositionState(
                position=position,
                progress=Progress.WITH_CONSUMER,
                consumer=consumer.name,
                unacked_messages=consumer.pending[position][0],
                redelivery_count=count,
            )
        if position in self.book.replay:
            return PositionState(position=position, progress=Progress.WAITS_FOR_REDELIVERY, redelivery_count=count)
        if self.delayed is not None and self.delayed.contains(position):
            return PositionState(position=position, progress=Progress.DELAYED)
        return None

    def blockers(self) -> list[Blocker]:
        delays = [] if self.delayed is None else self.delayed.blockers(self.next_read)
        return [*self._limit_blockers(), *self._gap_blockers(), *delays]

    def _limit_blockers(self) -> list[Blocker]:
        total = self.book.total
        if not total.is_blocked:
            return []
        return [
            Blocker(
                kind=BlockerKind.UNACKED_LIMIT_SUBSCRIPTION,
                text=f"the subscription has {counted(total.messages, 'message')} unacknowledged, the limit is "
                f"{total.limit}",
                advice=f"acknowledge until fewer than {max(1, total.limit // 2)} are left, or raise "
                "maxUnackedMessagesPerSubscription",
            )
        ]

    def _gap_blockers(self) -> list[Blocker]:
        if not self.waits_for_gaps or self.next_read > self._context.source.last_confirmed:
            return []
        return [
            Blocker(
                kind=BlockerKind.ACK_STATE,
                text="more entries are acknowledged out of order than the cursor stores, and the policy "
                "dispatcherPauseOnAckStatePersistent lets nothing further be delivered then",
                position=self.next_read,
                advice="acknowledge the oldest ones that are delivered, or raise cursor.ranges_stored_max",
            )
        ]

    async def aclose(self) -> None:
        if self.delayed is not None:
            await self.delayed.aclose()
        await self._replay_reader.aclose()
        await super().aclose()


def _first_run(wanted: list[Position]) -> list[Position]:
    """Returns the first positions of one ledger that are near enough to each other to be read at once."""
    run = [wanted[0]]
    for position in islice(wanted, 1, None):
        if position.ledger_id != run[-1].ledger_id or position.entry_id - run[-1].entry_id > _REPLAY_GAP_MAX:
            break
        run.append(position)
    return run
