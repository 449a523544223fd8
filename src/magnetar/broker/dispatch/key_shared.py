"""Key_Shared: all entries of one key go to one consumer at a time, in order.

Order:     an entry goes to the consumer that its key's hash is assigned to, unless an earlier entry of the same hash is
           in the replay queue, or another consumer still has entries of that hash unacknowledged (the hash *drains*
           there). Then the entry waits in the replay queue, and entries of other keys are delivered, up to the
           look-ahead limit. Consumers may allow delivery out of order; then the assignment alone decides.
Read next: unacked_book.py (which consumer has entries of a hash), next_consumer.py (the assignment)
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from magnetar.broker.dispatch.blockers import Blocker, BlockerKind
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.next_consumer import hash_of_entry, make_assignment
from magnetar.broker.dispatch.shared_base import Share, SharedBase
from magnetar.broker.subscriptions.consumer import Consumer, KeySharedSettings, SubscriptionType
from magnetar.topic.entry_format.traits import traits_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.words import counted

_HASHES_SHOWN_MAX: Final = 100  # Hashes that an explanation names; others are facts of the same kind.


class KeySharedDispatcher(SharedBase):
    type = SubscriptionType.KEY_SHARED

    def __init__(self, context: DispatchContext, settings: KeySharedSettings) -> None:
        super().__init__(context)
        self.mode = settings.mode
        self.is_ordered = not settings.allow_out_of_order
        self.assignment = make_assignment(settings.mode, context.config)

    # --- consumers ----------------------------------------------------------------------------------------------------

    def _join(self, consumer: Consumer) -> None:
        self.assignment.add(consumer)

    def _leave(self, consumer: Consumer) -> None:
        self.assignment.remove(consumer)

    # --- which consumer may have an entry -----------------------------------------------------------------------------

    def _target(self, key_hash: int) -> Consumer | None:
        """Returns the consumer that may get an entry of this hash, whatever waits in the replay queue and has room."""
        consumer = self.assignment.owner_of(key_hash)
        if consumer is not None and self.is_ordered:
            holder = self.book.holders.get(key_hash)
            if holder is not None and holder[0] is not consumer:
                return None
        return consumer

    def _has_room(self, consumer: Consumer, rooms: dict[Consumer, int]) -> bool:
        room = rooms.get(consumer)
        if room is None:
            room = rooms[consumer] = self._room(consumer) if consumer.is_available else 0
        return room > 0 and self._room_of_all() > 0

    def _wanted_of_replay(self, entries_max: int) -> list[Position]:
        replay = self.book.replay
        rooms: dict[Consumer, int] = {}
        held: set[int] = set()
        wanted: list[Position] = []
        for position in replay:
            key_hash = replay.hash_of(position)
            if key_hash in held:
                continue
            if key_hash:  # Otherwise it must be read first.
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
        """Returns how many entries may be in the replay queue while reading continues. 0: no limit."""
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
        return limit - len(self.book.replay) if limit else super()._read_ahead_room()

    def _replay_room(self, entries_max: int) -> int:
        return max(self.look_ahead_limit(), entries_max) - len(self.book.replay)

    def _hand_out(self, entries: list[LogEntry], *, is_replay: bool) -> int:
        shares: dict[Consumer, Share] = {}
        rooms: dict[Consumer, int] = {}
        held: set[int] = set()
        handled = 0
        may_have_room = True
        for entry in entries:
            if not may_have_room and not is_replay and not self._any_has_room(rooms):
                break
            if not self._is_done_with(entry, is_replay=is_replay):
                key_hash = hash_of_entry(entry, self.assignment.first_hash)
                consumer = None if key_hash in held else self._taker_of(entry.position, key_hash, rooms, is_replay)
                if consumer is None:
                    held.add(key_hash)
                    self.book.replay.add(entry.position, key_hash)
                    may_have_room = False
                else:
                    self._give(consumer, shares, rooms, entry, key_hash)
                    if is_replay:
                        self.book.replay.remove(entry.position)
            elif self.transactional is not None:
                break
            handled += 1
        self._finish(shares, is_replay=is_replay)
        return handled

    def _is_done_with(self, entry: LogEntry, *, is_replay: bool) -> bool:
        if entry.position <= self._acked_high and self._cursor.is_acknowledged(entry.position):
            self.book.replay.remove(entry.position)
            return True
        traits = traits_of(entry)
        if traits is not None and self._is_set_aside(entry, traits, is_replay=is_replay):
            if traits.is_marker:
                self.book.replay.remove(entry.position)
            return True
        return False

    def _taker_of(
        self, position: Position, key_hash: int, rooms: dict[Consumer, int], is_replay: bool
    ) -> Consumer | None:
        if self.is_ordered and self.book.replay.has_hash(key_hash) and not (is_replay and self._is_in_order(position)):
            return None  # Other entries of this key come first.
        consumer = self._target(key_hash)
        return consumer if consumer is not None and self._has_room(consumer, rooms) else None

    def _is_in_order(self, position: Position) -> bool:
        """Returns whether the replay queue knows the key of this entry, and so has put it in order among its key's."""
        replay = self.book.replay
        return position in replay and replay.hash_of(position) != 0

    def _any_has_room(self, rooms: dict[Consumer, int]) -> bool:
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
        share = shares.get(consumer)
        if share is None:
            share = shares[consumer] = Share()
        share.deliveries.append(delivery)
        share.messages += messages
        rooms[consumer] -= messages
        consumer.permits -= messages
        self._budget -= messages
        self.book.deliver(consumer, entry.position, messages, key_hash)
        if self.is_ordered:
            self.book.hold_key(consumer, key_hash)

    # --- questions ----------------------------------------------------------------------------------------------------

    def blockers(self) -> list[Blocker]:
        return [*super().blockers(), *self._key_blockers(), *self._look_ahead_blockers()]

    def _key_blockers(self) -> list[Blocker]:
        """Looks at everything that waits, so it is only for people's questions."""
        replay = self.book.replay
        waiting = Counter(replay.hash_of(position) for position in replay)
        held: Counter[int] = Counter()  # A hash has one holder.
        for each in self.consumers:
            for messages, key_hash in each.pending.values():
                held[key_hash] += messages
        found: list[Blocker] = []
        for key_hash, entries in sorted(waiting.items()):
            consumer = self.assignment.owner_of(key_hash) if key_hash else None
            holder = self.book.holders.get(key_hash)
            if key_hash and consumer is None:
                found.append(
                    Blocker(
                        kind=BlockerKind.HASH_UNASSIGNED,
                        text=f"no consumer takes key hash {key_hash}",
                        key_hash=key_hash,
                        entries=entries,
                        advice="connect a consumer whose ranges include it",
                    )
                )
            elif consumer is not None and holder is not None and holder[0] is not consumer:
                found.append(
                    Blocker(
                        kind=BlockerKind.HASH_DRAINING,
                        text=f"key hash {key_hash} belongs to consumer {consumer.shown} now, and consumer "
                        f"{holder[0].shown} still has {counted(held[key_hash], 'message')} of it unacknowledged",
                        consumer=holder[0].name,
                        key_hash=key_hash,
                        entries=entries,
                        advice=f"let consumer {holder[0].shown} acknowledge, or close it",
                    )
                )
        return found[:_HASHES_SHOWN_MAX]

    def _look_ahead_blockers(self) -> list[Blocker]:
        limit, waiting = self.look_ahead_limit(), len(self.book.replay)
        if not limit or waiting < limit:
            return []
        return [
            Blocker(
                kind=BlockerKind.LOOK_AHEAD_LIMIT,
                text=f"{counted(waiting, 'entry', 'entries')} (each a message or a batch) must go to the consumers of "
                "their keys first; nothing further is read",
                entries=waiting,
                position=self.next_read,
                advice="let the consumers of these keys receive and acknowledge",
            )
        ]
