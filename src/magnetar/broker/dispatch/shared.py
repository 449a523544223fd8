"""Shared: each entry to one of the consumers, whose turn it is.

Turn:      a consumer gets a few entries, as its permits go, then the next one; alone it gets all it can take.
Chunks:    all chunks of one message go to the consumer that got the first, in order; they wait for it if they must, and
           others are served meanwhile.
Owner:     that consumer is known until the last chunk is delivered, not merely read, or until it leaves. A message
           whose last chunk never comes, or is acknowledged unread, is forgotten when too many are followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.broker.consumer import Consumer, SubscriptionType
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.holding import Holding
from magnetar.broker.dispatch.multi import MultiConsumerDispatcher, Share
from magnetar.broker.dispatch.multi_holdings import chunk_holdings
from magnetar.broker.dispatch.round_robin import RoundRobin
from magnetar.broker.dispatch.scan import Special, special_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_CHUNKED_MESSAGES_MAX: Final = 10_000  # Messages whose chunks are followed at a time; the longest idle is forgotten.
_WAITING_CHUNKS_MAX: Final = 1_000  # Beyond this, reading stops until their consumers take some.


class SharedDispatcher(MultiConsumerDispatcher):
    type = SubscriptionType.SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._ring = RoundRobin()
        self._chunk_owner: dict[str, Consumer] = {}
        self.waiting_chunks: dict[Consumer, list[Position]] = {}
        """Read, and kept for a consumer that cannot take them now."""
        self._replays_chunks = False  # Then the replay goes first, or chunks would overtake each other.

    # --- consumers ----------------------------------------------------------------------------------------------------

    def _join(self, consumer: Consumer) -> None:
        self._ring.add(consumer)

    def _leave(self, consumer: Consumer) -> None:
        self._ring.remove(consumer)
        self._release_chunks(consumer)
        for uuid in self._incomplete_of(consumer):
            del self._chunk_owner[uuid]
            self._replays_chunks = True  # Those it has of it are about to be queued there.

    def flow(self, consumer: Consumer, permits: int) -> None:
        self._release_chunks(consumer)
        super().flow(consumer, permits)

    def resume(self, consumer: Consumer) -> None:
        self._release_chunks(consumer)
        super().resume(consumer)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:
        self._release_chunks(consumer)  # It is not blocked any more, whatever it gives back.
        if self._incomplete_of(consumer):
            self._replays_chunks = True
        super().redeliver(consumer, positions, epoch)

    def _unblock(self) -> None:
        blocked = [consumer for consumer in self.waiting_chunks if consumer.is_blocked]
        super()._unblock()
        for consumer in blocked:
            if not consumer.is_blocked:
                self._release_chunks(consumer)

    def mark_delete_moved(self) -> None:
        mark_delete = self._cursor.mark_delete
        waiting = {c: [p for p in positions if p > mark_delete] for c, positions in self.waiting_chunks.items()}
        self.waiting_chunks = {consumer: positions for consumer, positions in waiting.items() if positions}
        super().mark_delete_moved()

    def rewind(self) -> None:
        super().rewind()
        self.waiting_chunks.clear()
        self._chunk_owner.clear()

    def _placed(self, positions: set[Position]) -> set[Position]:
        return super()._placed(positions).union(*(positions.intersection(w) for w in self.waiting_chunks.values()))

    def _incomplete_of(self, consumer: Consumer) -> list[str]:
        """Messages of which it has chunks, and is to get more."""
        return [uuid for uuid, owner in self._chunk_owner.items() if owner is consumer]

    def _release_chunks(self, consumer: Consumer) -> None:
        for position in self.waiting_chunks.pop(consumer, ()):
            self.replay.add(position)
            self._replays_chunks = True

    # --- handing out --------------------------------------------------------------------------------------------------

    def _read_ahead_room(self) -> int:
        if self._replays_chunks:
            self._replays_chunks = len(self.replay) > 0
        if self._replays_chunks or sum(map(len, self.waiting_chunks.values())) >= _WAITING_CHUNKS_MAX:
            return 0
        return super()._read_ahead_room()

    def _hand_out(self, entries: list[LogEntry], *, is_replay: bool) -> int:
        ring = self._ring
        ring.begin()
        shares: dict[Consumer, Share] = {}
        index = 0
        while index < len(entries) and self.transactional is None:
            consumer = ring.next() if self._room_of_all() > 0 else None
            if consumer is None:
                break
            room = min(self._room(consumer), self._room_of_all())
            if room <= 0:
                consumer.is_blocked = True
                continue
            share = shares.get(consumer)
            if share is None:
                share = shares[consumer] = Share()
            end = min(index + self._config.round_robin_messages_max, len(entries)) if ring.has_choice else len(entries)
            start, index = index, self._fill(consumer, shares, entries, index, end, room, is_replay=is_replay)
            if is_replay:
                for entry in entries[start:index]:
                    self.replay.remove(entry.position)
        self._finish(shares, is_replay=is_replay)
        return index

    def _fill(
        self,
        consumer: Consumer,
        shares: dict[Consumer, Share],
        entries: list[LogEntry],
        index: int,
        end: int,
        room: int,
        *,
        is_replay: bool,
    ) -> int:
        """Gives the consumer entries from `index` on, up to `end` and its room. Returns the first that is left."""
        share = shares[consumer]
        pending, deliveries = consumer.pending, share.deliveries
        acked_high, redeliveries = self._acked_high, self.redeliveries
        given = 0
        while index < end and given < room:
            entry = entries[index]
            position = entry.position
            special = special_of(entry)
            if special is not None or redeliveries or position <= acked_high:
                if special is not None and not self._passes(consumer, shares, entry, special, is_replay=is_replay):
                    if self.transactional is not None:
                        break
                elif position > acked_high or not self._cursor.is_acknowledged(position):
                    delivery, messages = self._delivery_of(entry)
                    pending[position] = (messages, 0)
                    deliveries.append(delivery)
                    given += messages
            else:
                messages = entry.messages
                pending[position] = (messages, 0)
                deliveries.append((entry, 0, None))
                given += messages
            index += 1
        share.messages += given
        self._book(consumer, given)
        return index

    def holdings(self) -> list[Holding]:
        return [*super().holdings(), *chunk_holdings(self)]

    # --- chunks -------------------------------------------------------------------------------------------------------

    def _passes(
        self,
        consumer: Consumer,
        shares: dict[Consumer, Share],
        entry: LogEntry,
        special: Special,
        *,
        is_replay: bool,
    ) -> bool:
        """Whether this consumer gets it now."""
        if entry.position <= self._acked_high and self._cursor.is_acknowledged(entry.position):
            return False
        if self._specially(entry, special, is_replay=is_replay):
            return False
        if not special.uuid:
            return True
        owner = self._owner_of(special.uuid, consumer)
        if owner is consumer and owner not in self.waiting_chunks:
            self._chunk_is_delivered(special)
            return True
        self._give_chunk(owner, shares, entry, special)
        return False

    def _owner_of(self, uuid: str, consumer: Consumer) -> Consumer:
        owner = self._chunk_owner.pop(uuid, consumer)
        if len(self._chunk_owner) >= _CHUNKED_MESSAGES_MAX:
            del self._chunk_owner[next(iter(self._chunk_owner))]
        self._chunk_owner[uuid] = owner  # Behind the others: the first one is the longest idle.
        return owner

    def _chunk_is_delivered(self, special: Special) -> None:
        if special.is_last_chunk:  # One that waits does not count: on its way through the replay it needs the owner.
            del self._chunk_owner[special.uuid]

    def _give_chunk(self, owner: Consumer, shares: dict[Consumer, Share], entry: LogEntry, special: Special) -> None:
        """To another one than whose turn it is, or to nobody yet."""
        if owner.is_available and self._room(owner) <= 0:
            owner.is_blocked = True  # So that acknowledgements, which make room, are heard of here.
        if owner in self.waiting_chunks or not owner.is_available:
            self.waiting_chunks.setdefault(owner, []).append(entry.position)
            return
        share = shares.setdefault(owner, Share())
        delivery, messages = self._delivery_of(entry)
        owner.pending[entry.position] = (messages, 0)
        share.deliveries.append(delivery)
        share.messages += messages
        self._book(owner, messages)
        self._chunk_is_delivered(special)
