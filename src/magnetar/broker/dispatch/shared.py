"""Shared: each entry goes to one of the consumers, in turn.

A consumer gets a few entries, as its permits allow, then the next one. A single consumer gets all it can take.

Order:     all chunks of one message go to the consumer that got the first one, in order. They wait for it if it cannot
           take them, and other consumers are served meanwhile. That consumer is remembered until the last chunk is
           delivered, not merely read, or until it leaves.
Limits:    a message whose last chunk never comes, or is acknowledged unread, is forgotten when too many are followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.broker.dispatch.blockers import Blocker, BlockerKind
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.next_consumer import RoundRobin
from magnetar.broker.dispatch.shared_base import Share, SharedBase
from magnetar.broker.subscriptions.consumer import Consumer, SubscriptionType
from magnetar.topic.entry_format.traits import EntryTraits, traits_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.words import counted

_CHUNKED_MESSAGES_MAX: Final = 10_000  # Messages whose chunks are followed; beyond this the longest idle is forgotten.
_WAITING_CHUNKS_MAX: Final = 1_000  # Beyond this, reading stops until their consumers take some.


class SharedDispatcher(SharedBase):
    type = SubscriptionType.SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._ring = RoundRobin()
        self._chunk_owner: dict[str, Consumer] = {}
        self.waiting_chunks: dict[Consumer, list[Position]] = {}
        """Chunks that were read and that their consumer could not take."""
        self._replays_chunks = False  # Then nothing new is read before the replay, or chunks would overtake each other.

    # --- consumers ----------------------------------------------------------------------------------------------------

    def _join(self, consumer: Consumer) -> None:
        self._ring.add(consumer)

    def _leave(self, consumer: Consumer) -> None:
        self._ring.remove(consumer)
        self._release_chunks(consumer)
        for uuid in self._incomplete_of(consumer):
            del self._chunk_owner[uuid]
            self._replays_chunks = True  # The chunks that it has are about to be queued there.

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:
        if self._incomplete_of(consumer):
            self._replays_chunks = True
        super().redeliver(consumer, positions, epoch)

    def mark_delete_moved(self) -> None:
        mark_delete = self._cursor.mark_delete
        waiting = {c: [p for p in positions if p > mark_delete] for c, positions in self.waiting_chunks.items()}
        self.waiting_chunks = {consumer: positions for consumer, positions in waiting.items() if positions}
        super().mark_delete_moved()

    def rewind(self) -> None:
        super().rewind()
        self.waiting_chunks.clear()
        self._chunk_owner.clear()

    def _already_placed(self, positions: set[Position]) -> set[Position]:
        waiting = (positions.intersection(chunks) for chunks in self.waiting_chunks.values())
        return super()._already_placed(positions).union(*waiting)

    def _incomplete_of(self, consumer: Consumer) -> list[str]:
        """Returns the messages of which the consumer has some chunks and not yet all."""
        return [uuid for uuid, owner in self._chunk_owner.items() if owner is consumer]

    def _release_chunks(self, consumer: Consumer) -> None:
        for position in self.waiting_chunks.pop(consumer, ()):
            self.book.replay.add(position)
            self._replays_chunks = True

    # --- handing out --------------------------------------------------------------------------------------------------

    def _dispatch(self) -> bool:
        for consumer in [consumer for consumer in self.waiting_chunks if consumer.is_available]:
            self._release_chunks(consumer)
        return super()._dispatch()

    def _read_ahead_room(self) -> int:
        if self._replays_chunks:
            self._replays_chunks = len(self.book.replay) > 0
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
            share = shares.get(consumer)
            if share is None:
                share = shares[consumer] = Share()
            end = min(index + self._config.round_robin_messages_max, len(entries)) if ring.has_choice else len(entries)
            start, index = index, self._fill(consumer, shares, entries, index, end, room, is_replay=is_replay)
            if is_replay:
                for entry in entries[start:index]:
                    self.book.replay.remove(entry.position)
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
        acked_high, redeliveries = self._acked_high, self.book.redeliveries
        given = 0
        while index < end and given < room:
            entry = entries[index]
            position = entry.position
            traits = traits_of(entry)
            if traits is not None or redeliveries or position <= acked_high:
                if traits is not None and not self._passes(consumer, shares, entry, traits, is_replay=is_replay):
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
        consumer.permits -= given
        self._budget -= given
        self.book.count(consumer, given)
        return index

    # --- chunks -------------------------------------------------------------------------------------------------------

    def _passes(
        self,
        consumer: Consumer,
        shares: dict[Consumer, Share],
        entry: LogEntry,
        traits: EntryTraits,
        *,
        is_replay: bool,
    ) -> bool:
        """Returns whether this consumer gets the entry now."""
        if entry.position <= self._acked_high and self._cursor.is_acknowledged(entry.position):
            return False
        if self._is_set_aside(entry, traits, is_replay=is_replay):
            return False
        if not traits.uuid:
            return True
        owner = self._owner_of(traits.uuid, consumer)
        if owner is consumer and owner not in self.waiting_chunks:
            self._forget_owner_after(traits)
            return True
        self._give_chunk(owner, shares, entry, traits)
        return False

    def _owner_of(self, uuid: str, consumer: Consumer) -> Consumer:
        owner = self._chunk_owner.pop(uuid, consumer)
        if len(self._chunk_owner) >= _CHUNKED_MESSAGES_MAX:
            del self._chunk_owner[next(iter(self._chunk_owner))]
        self._chunk_owner[uuid] = owner  # At the end: the first one is the longest idle.
        return owner

    def _forget_owner_after(self, chunk: EntryTraits) -> None:
        """The chunk is delivered. One that waits does not count: its replay needs the owner."""
        if chunk.is_last_chunk:
            del self._chunk_owner[chunk.uuid]

    def _give_chunk(self, owner: Consumer, shares: dict[Consumer, Share], entry: LogEntry, traits: EntryTraits) -> None:
        """To another consumer than the one whose turn it is, or to the chunks that wait."""
        if owner in self.waiting_chunks or not owner.is_available:
            self.waiting_chunks.setdefault(owner, []).append(entry.position)
            return
        share = shares.setdefault(owner, Share())
        delivery, messages = self._delivery_of(entry)
        share.deliveries.append(delivery)
        share.messages += messages
        owner.permits -= messages
        self._budget -= messages
        self.book.deliver(owner, entry.position, messages)
        self._forget_owner_after(traits)

    def blockers(self) -> list[Blocker]:
        return [*super().blockers(), *(self._chunk_blocker(consumer) for consumer in self.waiting_chunks)]

    def _chunk_blocker(self, consumer: Consumer) -> Blocker:
        positions = self.waiting_chunks[consumer]
        return Blocker(
            kind=BlockerKind.CHUNKS_WAIT,
            text=f"{counted(len(positions), 'chunk')} for consumer {consumer.shown}, which has the first ones",
            consumer=consumer.name,
            position=positions[0],
            entries=len(positions),
            advice="let that consumer receive, or close it",
        )
