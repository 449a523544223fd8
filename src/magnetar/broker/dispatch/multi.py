"""The turn of Shared and Key_Shared: first what waits to be delivered again, then what comes next in the topic.

Order:     entries whose time has come join the replay queue; a run of neighbours of that queue is read and handed out;
           when nothing of it can be handed out, the next run of the topic is. One run per turn.
Rest:      a turn that changed nothing is not repeated until something happens; `replay_is_stuck` saves looking through
           the replay queue in vain.
Read next: individual.py (the books), shared.py, key_shared.py
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import islice
from typing import Final

from magnetar.broker.consumer import Consumer, Delivery, messages_of
from magnetar.broker.dispatch.delay import DelayedDelivery
from magnetar.broker.dispatch.holding import Holding
from magnetar.broker.dispatch.individual import IndividualDispatcher
from magnetar.broker.dispatch.multi_holdings import multi_holdings
from magnetar.broker.dispatch.reading import EntryReader
from magnetar.broker.dispatch.scan import Special
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_REPLAY_GAP_MAX: Final = 8  # Entries that are read for nothing, to read two runs of a replay as one.


class Share:
    """What one consumer gets in one turn."""

    __slots__ = ("deliveries", "messages")

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.messages = 0


class MultiConsumerDispatcher(IndividualDispatcher):
    # --- a turn -------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> bool:
        self._budget, bytes_max = self._allowance()
        entries_max = min(self._entries_wanted(), self._budget, self._config.read_entries_max)
        if entries_max <= 0:
            return False
        self._queue_due(entries_max)
        if len(self.replay) and self._dispatch_replay(entries_max, bytes_max):
            return True
        if self.is_blocked or (self.delayed is not None and self.delayed.pauses_reading):
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
        last = entries[-1].position
        self.next_read = Position(last.ledger_id, last.entry_id + 1)
        return True

    def _entries_wanted(self) -> int:
        """How many entries the consumers that can take any may take together, as their batches were so far."""
        wanted = 0
        for consumer in self.consumers:
            if consumer.is_available:
                wanted += int(consumer.permits / max(1.0, consumer.messages_per_entry)) + 1
        return wanted

    def _read_ahead_room(self) -> int:
        """How many further entries may be read, although some wait already."""
        return self._config.read_entries_max

    @abstractmethod
    def _hand_out(self, entries: list[LogEntry], *, is_replay: bool) -> int:
        """Gives them to consumers. Returns how many, from the first on, have their place now: with a consumer, delayed,
        or waiting in the replay queue; those of a replay that went elsewhere are taken out of the queue."""

    def _specially(self, entry: LogEntry, special: Special, *, is_replay: bool) -> bool:
        """Whether the entry is not for a consumer now. A transactional one sets `transactional`."""
        if special.is_marker:
            self._skip_marker(entry.position)
            return True
        if special.is_transactional:
            self.transactional = entry.position
            return True
        if special.deliver_at_ms and not is_replay:  # A replayed one was due, or was delivered before.
            if self.delayed is None:
                self.delayed = DelayedDelivery(self._context, self._on_due, self._placed)
            return self.delayed.delay(entry.position, special.deliver_at_ms)
        return False

    def _delivery_of(self, entry: LogEntry) -> tuple[Delivery, int]:
        """With the number of its messages that are not acknowledged."""
        position = entry.position
        ack_set = self._cursor.ack_set_of(position) if position <= self._acked_high else None
        messages = entry.messages if ack_set is None else messages_of(ack_set)
        return (entry, self.redeliveries.get(position, 0), ack_set), messages

    def _finish(self, shares: dict[Consumer, Share], *, is_replay: bool) -> None:
        """Sends what was given out in this turn, once per consumer."""
        per_consumer = self._context.unacked_per_consumer_max
        for consumer, share in shares.items():
            if not share.deliveries:
                continue
            if per_consumer and consumer.unacked_messages >= per_consumer:
                consumer.is_blocked = True
            self._send(consumer, share.deliveries, share.messages)
            if self.delayed is not None and not is_replay:
                self.delayed.saw_undelayed()
        limit = self._context.limits.unacked_messages_per_subscription_max
        if limit and self.unacked_messages >= limit:
            self.is_blocked = True

    def _book(self, consumer: Consumer, messages: int) -> None:
        """They are the consumer's from now on."""
        consumer.permits -= messages
        consumer.unacked_messages += messages
        self.unacked_messages += messages
        self._budget -= messages

    # --- replay -------------------------------------------------------------------------------------------------------

    def _on_due(self) -> None:
        self.replay_is_stuck = False
        self.schedule()

    def _queue_due(self, entries_max: int) -> None:
        delayed = self.delayed
        if delayed is None:
            return
        room = min(entries_max, self._replay_room(entries_max))
        if room > 0:
            for position in delayed.pop_due(room):
                self.replay_is_stuck = False
                self.replay.add(position)
        delayed.refill_if_low(self.next_read)

    def _placed(self, positions: set[Position]) -> set[Position]:
        """Those of them that are with a consumer or queued, so that no scan may bring them once more. For a whole run
        of a scan: each consumer costs the shorter of the two, and nothing is kept."""
        placed = {position for position in positions if position in self.replay}
        for consumer in self.consumers:
            placed |= positions & consumer.pending.keys()
        return placed

    def _replay_room(self, entries_max: int) -> int:
        """How many that are due may be queued: the index keeps them in less memory than the queue."""
        return entries_max - len(self.replay)

    def _wanted_of_replay(self, entries_max: int) -> list[Position]:
        """Those positions, in order, that somebody could take now."""
        return list(islice(self.replay, entries_max))

    def _dispatch_replay(self, entries_max: int, bytes_max: int) -> bool:
        """One run of neighbours. Whether anything changed."""
        if self.replay_is_stuck:
            return False
        wanted = self._wanted_of_replay(entries_max)
        if not wanted:
            self.replay_is_stuck = True
            return False
        run = _first_run(wanted)
        before = self.replay.shape
        entries = self._replay_reader.get(run[0], run[-1].entry_id - run[0].entry_id + 1, bytes_max)
        if entries is None:
            return self._replay_has_nothing(run[0])
        expected = frozenset(run)
        matching = [entry for entry in entries if entry.position in expected]
        handled = self._hand_out(matching, is_replay=True)
        if len(matching) < len(run):
            self._drop_missing(run)
        if handled < len(matching):
            self._replay_reader.give_back(entries, matching[handled].position)
        return self.replay.shape != before

    def _drop_missing(self, run: list[Position]) -> None:
        """Forgets those that the topic no longer has. Only the topic can say so: an answer that lacks an entry may be
        short, and forgetting one that is there would be losing it."""
        chain = self._context.source.chain
        for position in run:
            if not chain.contains(position):
                self.replay.remove(position)

    def _replay_has_nothing(self, first: Position) -> bool:
        """Reading has brought nothing, yet or at all. What it lost may be another entry than the one wanted now."""
        if self._replay_reader.lost is not None:
            for position in self._skip_lost(self._replay_reader):
                self.replay.remove(position)
            return True
        if self._context.source.chain.contains(first):
            return False
        self.replay.remove(first)
        return True

    # --- questions and the end ----------------------------------------------------------------------------------------

    @property
    def reader(self) -> EntryReader:
        return self._replay_reader if self._replay_reader.trouble is not None else self._reader

    def holdings(self) -> list[Holding]:
        return multi_holdings(self, self._context)

    async def aclose(self) -> None:
        if self.delayed is not None:
            await self.delayed.aclose()
        await self._replay_reader.aclose()
        await super().aclose()


def _first_run(wanted: list[Position]) -> list[Position]:
    """The first positions of one ledger that are near enough to each other to be read at once."""
    run = [wanted[0]]
    for position in islice(wanted, 1, None):
        if position.ledger_id != run[-1].ledger_id or position.entry_id - run[-1].entry_id > _REPLAY_GAP_MAX:
            break
        run.append(position)
    return run
