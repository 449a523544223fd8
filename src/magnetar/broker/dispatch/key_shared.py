"""Key_Shared: all entries of one key to one consumer at a time, in order.

Rule:      an entry is delivered to the consumer its key's hash belongs to, unless an earlier entry of the same hash
           waits in the replay queue, or another consumer still has entries of that hash unacknowledged (the hash
           *drains* there). Then it waits in the replay queue, and entries of other keys go on, up to the look-ahead
           limit.
Books:     hash → who has entries of it, and how many. That is all that is needed when consumers come and go: no key is
           ever with two of them.
Choice:    consumers may allow delivery out of order; then only the assignment counts.
"""

from __future__ import annotations

from magnetar.broker.consumer import Consumer, KeySharedMode, KeySharedSettings, SubscriptionType
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.hashing import hash_of_entry
from magnetar.broker.dispatch.holding import Holding
from magnetar.broker.dispatch.multi import MultiConsumerDispatcher, Share
from magnetar.broker.dispatch.multi_holdings import key_holdings
from magnetar.broker.dispatch.scan import special_of
from magnetar.broker.dispatch.selectors import RingSelector, Selector, SplitSelector, StickySelector
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position


class KeySharedDispatcher(MultiConsumerDispatcher):
    type = SubscriptionType.KEY_SHARED

    def __init__(self, context: DispatchContext, settings: KeySharedSettings) -> None:
        super().__init__(context)
        self.mode = settings.mode
        self.is_ordered = not settings.allow_out_of_order
        self.selector = _selector_for(settings.mode, context)
        self.holders: dict[int, tuple[Consumer, int]] = {}
        """Hash → the consumer that has entries of it, and how many."""

    # --- consumers ----------------------------------------------------------------------------------------------------

    def _join(self, consumer: Consumer) -> None:
        self.selector.add(consumer)

    def _leave(self, consumer: Consumer) -> None:
        self.selector.remove(consumer)

    def _let_go(self, key_hash: int) -> None:
        holder = self.holders.get(key_hash)
        if holder is None:
            return
        if holder[1] > 1:
            self.holders[key_hash] = (holder[0], holder[1] - 1)
            return
        del self.holders[key_hash]
        if self.replay.has_hash(key_hash):
            self.replay_is_stuck = False
            self.schedule()

    def _take(self, consumer: Consumer, key_hash: int) -> None:
        if self.is_ordered:
            holder = self.holders.get(key_hash)
            assert holder is None or holder[0] is consumer, "a key is with one consumer at a time"
            self.holders[key_hash] = (consumer, 1 if holder is None else holder[1] + 1)

    def _all_have_left(self) -> None:
        assert not self.holders
        super()._all_have_left()

    # --- who may have it ----------------------------------------------------------------------------------------------

    def _target(self, key_hash: int) -> Consumer | None:
        """Who may get an entry of this hash now, apart from the order within the replay queue and from room."""
        consumer = self.selector.select(key_hash)
        if consumer is not None and self.is_ordered:
            holder = self.holders.get(key_hash)
            if holder is not None and holder[0] is not consumer:
                return None
        return consumer

    def _has_room(self, consumer: Consumer, rooms: dict[Consumer, int]) -> bool:
        room = rooms.get(consumer)
        if room is None:
            room = rooms[consumer] = self._room(consumer) if consumer.is_available else 0
        return room > 0 and self._room_of_all() > 0

    def _wanted_of_replay(self, entries_max: int) -> list[Position]:
        rooms: dict[Consumer, int] = {}
        held: set[int] = set()
        wanted: list[Position] = []
        for position in self.replay:
            key_hash = self.replay.hash_of(position)
            if key_hash in held:
                continue
            if key_hash:  # Else it has to be read first.
                consumer = self._target(key_hash)
                if consumer is None or not self._has_room(consumer, rooms):
                    if self.is_ordered:
                        held.add(key_hash)
                    continue
                rooms[consumer] -= 1
            wanted.append(position)
            if len(wanted) >= entries_max:
                break
        return wanted

    # --- handing out --------------------------------------------------------------------------------------------------

    def look_ahead_limit(self) -> int:
        """How many entries may wait in the replay queue while reading goes on; 0: no limit."""
        config = self._config
        limits = [
            limit
            for limit in (
                config.key_shared_look_ahead_per_consumer * max(1, len(self.consumers)),
                config.key_shared_look_ahead_per_subscription,
            )
            if limit > 0
        ]
        return min(limits, default=0)

    def _read_ahead_room(self) -> int:
        limit = self.look_ahead_limit()
        return limit - len(self.replay) if limit else super()._read_ahead_room()

    def _replay_room(self, entries_max: int) -> int:
        return max(self.look_ahead_limit(), entries_max) - len(self.replay)

    def _hand_out(self, entries: list[LogEntry], *, is_replay: bool) -> int:
        shares: dict[Consumer, Share] = {}
        rooms: dict[Consumer, int] = {}
        held: set[int] = set()
        handled = 0
        has_room = True
        for entry in entries:
            if not has_room and not is_replay and not self._anybody_has_room(rooms):
                break
            if not self._is_done_with(entry, is_replay=is_replay):
                key_hash = hash_of_entry(entry, self.selector.first_hash)
                consumer = None if key_hash in held else self._who_now(entry.position, key_hash, rooms, is_replay)
                if consumer is None:
                    held.add(key_hash)
                    self.replay.add(entry.position, key_hash)
                    has_room = False  # Perhaps: somebody has to look.
                else:
                    self._give(consumer, shares, rooms, entry, key_hash)
                    if is_replay:
                        self.replay.remove(entry.position)
            elif self.transactional is not None:
                break
            handled += 1
        self._finish(shares, is_replay=is_replay)
        return handled

    def _is_done_with(self, entry: LogEntry, *, is_replay: bool) -> bool:
        if entry.position <= self._acked_high and self._cursor.is_acknowledged(entry.position):
            self.replay.remove(entry.position)
            return True
        special = special_of(entry)
        if special is not None and self._specially(entry, special, is_replay=is_replay):
            if special.is_marker:
                self.replay.remove(entry.position)
            return True
        return False

    def _who_now(
        self, position: Position, key_hash: int, rooms: dict[Consumer, int], is_replay: bool
    ) -> Consumer | None:
        if self.is_ordered and self.replay.has_hash(key_hash) and not (is_replay and self._knows(position)):
            return None  # Others of this key come first.
        consumer = self._target(key_hash)
        return consumer if consumer is not None and self._has_room(consumer, rooms) else None

    def _knows(self, position: Position) -> bool:
        """Whether its place among those of its key is known: then the queue's order has seen to it."""
        return position in self.replay and self.replay.hash_of(position) != 0

    def _anybody_has_room(self, rooms: dict[Consumer, int]) -> bool:
        return any(self._has_room(consumer, rooms) for consumer in self.consumers)

    def _give(
        self,
        consumer: Consumer,
        shares: dict[Consumer, Share],
        rooms: dict[Consumer, int],
        entry: LogEntry,
        key_hash: int,
    ) -> None:
        delivery, messages = self._delivery_of(entry)
        consumer.pending[entry.position] = (messages, key_hash)
        self._take(consumer, key_hash)
        share = shares.get(consumer)
        if share is None:
            share = shares[consumer] = Share()
        share.deliveries.append(delivery)
        share.messages += messages
        rooms[consumer] -= messages
        self._book(consumer, messages)

    def holdings(self) -> list[Holding]:
        return [*super().holdings(), *key_holdings(self)]


def _selector_for(mode: KeySharedMode, context: DispatchContext) -> Selector:
    if mode is KeySharedMode.STICKY:
        return StickySelector()
    if context.config.key_shared_consistent_hashing:
        return RingSelector(context.config.key_shared_points)
    return SplitSelector()
