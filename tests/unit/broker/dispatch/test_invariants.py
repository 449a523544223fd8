"""Any sequence of publishing, connecting, leaving, receiving, acknowledging, giving back and skipping keeps the
promises:

- an entry is never with two consumers at once, and never comes back after it was acknowledged;
- its redelivery count is the number of times it was given back;
- on Shared, chunks of a message go to one consumer in order, unless a consumer has given back a part of it;
- on Key_Shared, everything of a key that was published before an entry is acknowledged, or with the same consumer;
- whenever a consumer has permits and room, and an entry may be delivered to it, it has been delivered;
- at the end everything is delivered and acknowledged: nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.next_consumer import key_hash
from magnetar.broker.subscriptions.consumer import Delivery, KeySharedMode, KeySharedSettings, SubscriptionType
from magnetar.topic.cursor.acks import words_of
from tests.unit.broker.dispatch.world import KEY_SHARED, SHARED, Inbox, Topic, World, settle
from tests.virtual_time import virtual_loop

KEYS = "abcdefgh"
LIMITS = DispatchLimits(unacked_messages_per_consumer_max=12, unacked_messages_per_subscription_max=30)
LOOK_AHEAD = 20
some_fraction = st.floats(0, 1, allow_nan=False)


class Dispatching(RuleBasedStateMachine):
    subscription_type: SubscriptionType
    key_shared: KeySharedSettings | None = None
    consistent_hashing = True
    is_ordered = False
    has_chunks = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = virtual_loop()
        self.loop.set_exception_handler(self._on_exception)
        self.failures: list[str] = []

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(repr(context.get("exception") or context["message"]))

    def run(self, doing: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(doing)
        assert not self.failures, self.failures

    # --- the model ---

    @initialize()
    def begin(self) -> None:
        async def make() -> World:
            return World(
                topic=Topic(ledger_entries=7),
                limits=LIMITS,
                round_robin_messages_max=3,
                read_entries_max=10,
                key_shared_look_ahead_per_consumer=LOOK_AHEAD,
                key_shared_look_ahead_per_subscription=30,
                key_shared_points=3,
                key_shared_consistent_hashing=self.consistent_hashing,
                delayed_index_entries_max=1_000,
            )

        self.world = self.loop.run_until_complete(make())
        self.keys: list[str] = []
        self.batches: list[int] = []
        self.delayed: set[int] = set()
        self.acked: set[int] = set()
        self.partly: dict[int, int] = {}  # Entry → bits of the messages that are not acknowledged.
        self.chunked: dict[int, range] = {}  # Index of a chunk → all chunks of its message.
        self.torn: set[range] = set()  # Messages that were given back in part.
        self.hands: dict[Inbox, set[int]] = {}
        self.given_back: dict[int, int] = {}
        self.permits: dict[Inbox, int] = {}
        self.reads_at_once = True
        """Nothing is read in the background, and nothing was since there was time enough for it."""
        self.names = 0

    def receive(self) -> None:
        for inbox in list(self.hands):
            for delivery in inbox.deliveries:
                self.check(inbox, delivery)
            inbox.clear()

    def check(self, inbox: Inbox, delivery: Delivery) -> None:
        entry, count, ack_set = delivery
        index = self.world.topic.index(entry.position)
        holders = [other.name for other, hand in self.hands.items() if index in hand]
        assert not holders, f"{index} went to {inbox.name} while {holders} had it"
        assert index not in self.acked, f"{index} was delivered to {inbox.name} after it was acknowledged"
        assert count == self.given_back.get(index, 0), f"{index} has count {count}"
        expected = words_of(self.partly[index]) if index in self.partly else None
        assert ack_set == expected
        if self.is_ordered:
            self.check_key(inbox, index)
        if index in self.chunked and self.chunked[index] not in self.torn:
            self.check_chunk(inbox, index)
        self.hands[inbox].add(index)
        self.permits[inbox] -= self.messages_of(index)

    def check_key(self, inbox: Inbox, index: int) -> None:
        for other, hand in self.hands.items():
            shared = [i for i in hand if self.keys[i] == self.keys[index]]
            assert other is inbox or not shared, f"key {self.keys[index]} is with {other.name} and {inbox.name}"
        if index in self.delayed:
            return
        for earlier in range(index):
            if self.keys[earlier] == self.keys[index] and earlier not in self.delayed:
                assert earlier in self.acked or earlier in self.hands[inbox], f"{index} overtook {earlier}"

    def check_chunk(self, inbox: Inbox, index: int) -> None:
        for earlier in range(self.chunked[index].start, index):
            assert earlier in self.acked or earlier in self.hands[inbox], f"{inbox.name} got {index} without {earlier}"

    async def turn(self) -> None:
        await settle()

    def go(self) -> None:
        self.run(self.turn())
        self.receive()
        if self.reads_at_once:
            self.check_nothing_waits()

    # --- a consumer that can take something has it ---

    def check_nothing_waits(self) -> None:
        """From the model alone; of production only the pure assignment of hashes is asked."""
        if not self.hands:
            return
        waiting = [i for i in range(len(self.keys)) if i not in self.acked and not self.is_in_hand(i)]
        if sum(map(self.unacked_of, self.hands)) >= LIMITS.unacked_messages_per_subscription_max // 2:
            return
        for at, index in enumerate(waiting):
            if index in self.delayed or index in self.chunked:
                continue  # Its time may not have come, or its consumer has no room: the end decides.
            takers = [inbox.name for inbox in self.takers_of(index, waiting[:at]) if self.can_take(inbox)]
            assert not takers, f"{index} waits although {takers} can take it: {self.world.subscription.explain()}"

    def is_in_hand(self, index: int) -> bool:
        return any(index in hand for hand in self.hands.values())

    def unacked_of(self, inbox: Inbox) -> int:
        return sum(self.messages_of(index) for index in self.hands[inbox])

    def messages_of(self, index: int) -> int:
        return self.partly[index].bit_count() if index in self.partly else self.batches[index]

    def can_take(self, inbox: Inbox) -> bool:
        has_room = self.unacked_of(inbox) <= LIMITS.unacked_messages_per_consumer_max // 2
        return inbox.is_writable and self.permits[inbox] > 0 and has_room

    def takers_of(self, index: int, waiting_before: list[int]) -> list[Inbox]:
        """To which consumers it may be delivered now, as far as order and keys go."""
        if self.subscription_type is SHARED:
            return list(self.hands)
        if len(waiting_before) >= LOOK_AHEAD:
            return []
        dispatcher = self.world.subscription._dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        key = self.keys[index]
        consumer = dispatcher.assignment.owner_of(key_hash(key.encode(), dispatcher.assignment.first_hash))
        owners = [inbox for inbox in self.hands if inbox.consumer is consumer]
        if self.is_ordered:
            if any(self.keys[i] == key for i in waiting_before):
                return []
            others = (hand for inbox, hand in self.hands.items() if inbox not in owners)
            if any(self.keys[i] == key for hand in others for i in hand):
                return []
        return owners

    # --- what happens ---

    @rule(keys=st.text(KEYS, min_size=1, max_size=8), batch=st.sampled_from([1, 1, 1, 4]))
    def publish(self, keys: str, batch: int) -> None:
        for key in keys:
            self.keys.append(key)
            self.batches.append(batch)
            self.world.publish(1, key=key, batch=batch)
        self.go()

    @rule(key=st.sampled_from(KEYS), seconds=st.integers(2, 30))
    def publish_delayed(self, key: str, seconds: int) -> None:
        async def publish() -> None:
            self.world.publish(1, key=key, deliver_at_time=self.world.now_ms + seconds * 1_000)

        self.delayed.add(len(self.keys))
        self.keys.append(key)
        self.batches.append(1)
        self.run(publish())
        self.go()

    @precondition(lambda self: self.has_chunks)
    @rule(chunks=st.integers(2, 6), at_once=st.booleans())
    def publish_chunks(self, chunks: int, at_once: bool) -> None:
        message = range(len(self.keys), len(self.keys) + chunks)
        for index in message:
            self.keys.append(KEYS[0])
            self.batches.append(1)
            self.chunked[index] = message
            self.world.publish(1, uuid=str(message), chunk_id=index - message.start, num_chunks_from_msg=chunks)
            if not at_once:
                self.go()
        self.go()

    @precondition(lambda self: len(self.hands) < 5)
    @rule(permits=st.integers(0, 20), priority=st.integers(0, 1))
    def connect(self, permits: int, priority: int) -> None:
        async def connect() -> None:
            self.names += 1
            inbox = self.world.connect(
                f"c{self.names}",
                self.subscription_type,
                permits=permits,
                priority=priority,
                key_shared=self.key_shared,
            )
            self.hands[inbox] = set()
            self.permits[inbox] = permits

        self.run(connect())
        self.go()

    def pick(self, fraction: float) -> Inbox | None:
        inboxes = list(self.hands)
        return inboxes[min(int(fraction * len(inboxes)), len(inboxes) - 1)] if inboxes else None

    @rule(who=some_fraction)
    def leave(self, who: float) -> None:
        async def leave() -> None:
            inbox.close()

        if (inbox := self.pick(who)) is not None:
            del self.hands[inbox]
            self.run(leave())
            if not self.hands:
                self.given_back.clear()
            self.go()

    @rule(who=some_fraction, permits=st.integers(1, 20))
    def flow(self, who: float, permits: int) -> None:
        if (inbox := self.pick(who)) is not None:
            self.permits[inbox] += permits
            inbox.flow(permits)
            self.go()

    @rule(who=some_fraction, which=st.sets(st.integers(0, 30), max_size=12))
    def acknowledge(self, who: float, which: set[int]) -> None:
        if (inbox := self.pick(who)) is not None:
            self.acknowledge_by(inbox, [i for n, i in enumerate(sorted(self.hands[inbox])) if n in which])

    def acknowledge_by(self, inbox: Inbox, indexes: list[int]) -> None:
        self.acked.update(indexes)
        self.hands[inbox].difference_update(indexes)
        for index in indexes:
            self.given_back.pop(index, None)
            self.partly.pop(index, None)
        if indexes:
            inbox.ack(*indexes)
        self.go()

    @rule(who=some_fraction, words=st.integers(0, 15))
    def acknowledge_part(self, who: float, words: int) -> None:
        inbox = self.pick(who)
        batches = sorted(i for i in self.hands[inbox] if self.batches[i] > 1) if inbox is not None else []
        if inbox is None or not batches:
            return
        index = batches[0]
        left = self.partly.get(index, 0b1111) & words
        if left == 0b1111:
            return  # That says nothing.
        if left:
            self.partly[index] = left
        else:
            self.partly.pop(index, None)
            self.acked.add(index)
            self.given_back.pop(index, None)
            self.hands[inbox].discard(index)
        position = self.world.topic.position(index)
        self.world.subscription.acknowledge_batch(inbox.consumer, position, [words], 4)
        self.go()

    @rule(who=some_fraction, which=st.sets(st.integers(0, 30), max_size=8), everything=st.booleans())
    def give_back(self, who: float, which: set[int], everything: bool) -> None:
        inbox = self.pick(who)
        if inbox is None:
            return
        hand = sorted(self.hands[inbox])
        indexes = hand if everything else [i for n, i in enumerate(hand) if n in which]
        for index in indexes:
            self.given_back[index] = self.given_back.get(index, 0) + 1
        self.hands[inbox].difference_update(indexes)
        given_back = {self.chunked[index] for index in indexes if index in self.chunked}
        self.torn.update(message for message in given_back if self.hands[inbox].intersection(message))
        if everything:
            inbox.nack_all()
        else:
            inbox.nack(*indexes, 10_000)
        self.go()

    @rule(entries=st.integers(1, 5))
    def skip(self, entries: int) -> None:
        async def skip() -> None:
            await self.world.subscription.skip(entries)

        self.run(skip())
        self.forget_acknowledged()
        self.go()

    def forget_acknowledged(self) -> None:
        for index in range(len(self.keys)):
            if self.world.cursor.is_acknowledged(self.world.topic.position(index)):
                self.acked.add(index)
                self.given_back.pop(index, None)
                self.partly.pop(index, None)
                for hand in self.hands.values():
                    hand.discard(index)

    @rule(back=st.integers(0, 12))
    def seek(self, back: int) -> None:
        async def seek() -> None:
            await self.world.subscription.seek(self.world.topic.position(first))

        first = max(0, len(self.keys) - back)
        self.hands.clear()
        self.given_back.clear()
        self.partly.clear()
        self.run(seek())
        self.acked = set(range(min(first, len(self.keys))))
        self.go()

    @rule(is_cached=st.booleans(), cold=some_fraction)
    def cache(self, is_cached: bool, cold: float) -> None:
        self.world.topic.is_cached = is_cached
        self.world.topic.cold_before = int(cold * len(self.keys))
        self.reads_at_once = False

    @rule(who=some_fraction, is_writable=st.booleans())
    def connection(self, who: float, is_writable: bool) -> None:
        if (inbox := self.pick(who)) is not None:
            inbox.is_writable = is_writable
            if is_writable:
                self.world.subscription.resume(inbox.consumer)
            self.go()

    @rule(seconds=st.sampled_from([0.002, 0.01, 3.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        self.reads_at_once = self.reads_at_once or (seconds > 1 and self.world.topic.is_cached and self.is_all_warm)
        self.go()
        if seconds > 1:
            self.check_nothing_waits()

    @property
    def is_all_warm(self) -> bool:
        return self.world.topic.cold_before == 0

    # --- the end ---

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            self.loop.close()
            return
        try:
            self.drain()
            self.run(self.world.subscription.aclose())
        finally:
            self.loop.close()

    def drain(self) -> None:
        """All consumers receive and acknowledge: nothing may be left."""
        if not self.hands:
            self.connect(0, 0)
        for _ in range(40 + len(self.keys)):
            if len(self.acked) == len(self.keys):
                break
            for inbox in list(self.hands):
                inbox.is_writable = True
                self.world.subscription.resume(inbox.consumer)
                self.acknowledge_by(inbox, sorted(self.hands[inbox]))
                self.permits[inbox] += 5
                inbox.flow(5)
            self.run(asyncio.sleep(2))
            self.go()
        self.run(asyncio.sleep(40))  # Longer than any delay: of those that were skipped nothing stays, either.
        self.go()
        left = sorted(set(range(len(self.keys))) - self.acked)
        why = self.world.subscription.explain()
        assert not left, f"{left} were never delivered: {why}"
        statistics = self.world.subscription.statistics()
        assert (statistics.backlog_entries, statistics.unacked_messages) == (0, 0)
        assert (statistics.waiting_for_redelivery, statistics.delayed_entries) == (0, 0)
        assert all(inbox.consumer.unacked_messages == 0 for inbox in self.hands)


class Shared(Dispatching):
    subscription_type = SHARED
    has_chunks = True


class KeyShared(Dispatching):
    subscription_type = KEY_SHARED
    is_ordered = True


class KeySharedBySplitting(KeyShared):
    consistent_hashing = False


class KeySharedOutOfOrder(Dispatching):
    subscription_type = KEY_SHARED
    key_shared = KeySharedSettings(KeySharedMode.AUTO_SPLIT, (), allow_out_of_order=True)


_settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
for machine in (Shared, KeyShared, KeySharedBySplitting, KeySharedOutOfOrder):
    machine.TestCase.settings = _settings
TestShared = Shared.TestCase
TestKeyShared = KeyShared.TestCase
TestKeySharedBySplitting = KeySharedBySplitting.TestCase
TestKeySharedOutOfOrder = KeySharedOutOfOrder.TestCase
