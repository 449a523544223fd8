"""Where an entry is: whatever consumers do, and between any two turns of the loop, each unacknowledged entry is in
exactly one place, so that none is forgotten and none is with two:

- pending with one consumer, in the replay queue, in the delayed index, or not read yet (at or after `next_read`);
- or left out of a full delayed index, whose scan will meet it: at or after its horizon, and not before the place where
  the scan begins.

The scenes repeat what once went wrong. They have few permits and many negative acknowledgements, so that replays are
handed out in part; entries that leave the topic or cannot be read; a small index, so that it often overflows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.broker.dispatch.delayed_delivery import DelayedDelivery
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared_base import SharedBase
from magnetar.broker.subscriptions.consumer import SubscriptionType
from magnetar.errors import EntryAbsentError
from magnetar.topic.position import Position
from tests.rows import every_row
from tests.unit.broker.dispatch.world import KEY_SHARED, SHARED, Inbox, Topic, World, message, settle
from tests.virtual_time import virtual_loop

KEYS = "abcd"
CONSUMERS_MAX = 4
INDEX_ENTRIES_MAX = 8  # Less than an operator may set, so that few entries overflow it.
some_entries = st.sets(st.integers(0, 15), max_size=8)
some_seconds = st.sampled_from([0.0, 0.0005, 0.002, 0.5, 2.0, 6.0])


class Replays(RuleBasedStateMachine):
    """Everything was read and is with one consumer; nothing but permits and redelivery happens from there on."""

    subscription_type: SubscriptionType

    def __init__(self) -> None:
        super().__init__()
        self.loop = virtual_loop()
        self.failures: list[str] = []
        self.loop.set_exception_handler(self._on_exception)
        self.small_blocks = patch.multiple("magnetar.broker.dispatch.delayed_index", _BLOCK_ENTRIES=4, _SAMPLE_EVERY=1)
        self.small_blocks.start()
        self.inboxes: list[Inbox] = []
        self.due_ms: dict[Position, int] = {}
        self.names = 0

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(repr(context.get("exception") or context["message"]))

    @initialize(rounds=st.integers(2, 6))
    def begin(self, rounds: int) -> None:
        async def make() -> None:
            self.world = World(
                topic=Topic(ledger_entries=12),
                round_robin_messages_max=2,
                read_entries_max=6,
                skip_unreadable=True,
                key_shared_look_ahead_per_consumer=10,
                delayed_lookahead_entries=0,
            )
            object.__setattr__(self.world.config, "delayed_index_entries_max", INDEX_ENTRIES_MAX)
            self.connect(len(KEYS) * rounds)
            if self.subscription_type is SHARED:  # On Key_Shared the others would have some of the keys.
                self.connect(0)
                self.connect(0)
            self.publish(KEYS * rounds, [0])
            await settle()

        self.loop.run_until_complete(make())

    def do(self, seconds: float, action: Callable[[], None]) -> None:
        """And lets time pass: none at all leaves the next action to the same turn."""

        async def doing() -> None:
            action()
            if seconds:
                await asyncio.sleep(seconds)

        self.loop.run_until_complete(doing())

    # --- what happens ---

    def publish(self, keys: str, delays_s: list[int]) -> None:
        topic = self.world.topic
        for at, key in enumerate(keys):
            delay_s = delays_s[at % len(delays_s)]
            due = self.world.now_ms + delay_s * 1_000
            fields = {"deliver_at_time": due} if delay_s else {}
            position = topic.append(message(len(topic.entries), key=key, **fields))
            self.due_ms[position] = due if delay_s else 0
        topic.tell()

    def connect(self, permits: int) -> None:
        self.names += 1
        self.inboxes.append(self.world.connect(f"c{self.names}", self.subscription_type, permits=permits))

    def some_of(self, inbox: Inbox, which: set[int]) -> list[int]:
        pending = sorted(inbox.consumer.pending)
        return [self.world.topic.index(position) for at, position in enumerate(pending) if at in which]

    @precondition(lambda self: len(self.inboxes) < CONSUMERS_MAX)
    @rule(permits=st.integers(0, 3), seconds=some_seconds)
    def connects(self, permits: int, seconds: float) -> None:
        self.do(seconds, lambda: self.connect(permits))

    @precondition(lambda self: self.inboxes)
    @rule(who=st.integers(0, CONSUMERS_MAX), seconds=some_seconds)
    def leaves(self, who: int, seconds: float) -> None:
        self.do(seconds, self.inboxes.pop(who % len(self.inboxes)).close)

    @precondition(lambda self: self.inboxes)
    @rule(permits=st.lists(st.integers(1, 3), min_size=1, max_size=CONSUMERS_MAX), seconds=some_seconds)
    def ask(self, permits: list[int], seconds: float) -> None:
        """Only who has used up what it was granted before: else all that is given back would go out at once."""

        def flow() -> None:
            for inbox, more in zip(self.inboxes, permits, strict=False):
                if inbox.consumer.permits <= 0:
                    inbox.flow(more)

        self.do(seconds, flow)

    @precondition(lambda self: self.inboxes)
    @rule(who=st.integers(0, CONSUMERS_MAX), which=some_entries, seconds=some_seconds)
    def gives_back(self, who: int, which: set[int], seconds: float) -> None:
        inbox = self.inboxes[who % len(self.inboxes)]
        self.do(seconds, lambda: inbox.nack(*self.some_of(inbox, which)))

    @precondition(lambda self: self.inboxes)
    @rule(who=st.integers(0, CONSUMERS_MAX), which=st.integers(0, 15), seconds=some_seconds)
    def gives_one_back(self, who: int, which: int, seconds: float) -> None:
        inbox = self.inboxes[who % len(self.inboxes)]
        self.do(seconds, lambda: inbox.nack(*self.some_of(inbox, {which})))

    @precondition(lambda self: self.inboxes)
    @rule(who=st.integers(0, CONSUMERS_MAX), which=st.sets(st.integers(0, 15), max_size=2), seconds=some_seconds)
    def acknowledges(self, who: int, which: set[int], seconds: float) -> None:
        inbox = self.inboxes[who % len(self.inboxes)]
        self.do(seconds, lambda: inbox.ack(*self.some_of(inbox, which)))

    @rule(last=st.integers(0, 40))
    def caches(self, last: int) -> None:
        """Caches the last entries, this many of them."""
        self.world.topic.cold_before = max(0, len(self.world.topic.entries) - last)

    # --- what is always true ---

    @property
    def dispatcher(self) -> SharedBase:
        dispatcher = self.world.subscription._dispatcher
        assert isinstance(dispatcher, SharedBase)
        return dispatcher

    def unacknowledged(self) -> list[Position]:
        world = self.world
        positions = (entry.position for entry in world.topic.entries)
        return [p for p in positions if world.topic.chain.contains(p) and not world.cursor.is_acknowledged(p)]

    def places_of(self, position: Position) -> list[str]:
        dispatcher = self.dispatcher
        places = [inbox.name for inbox in self.inboxes if position in inbox.consumer.pending]
        if position in dispatcher.book.replay:
            places.append("replay")
        if dispatcher.delayed is not None and dispatcher.delayed.contains(position):
            places.append("delayed")
        if position >= dispatcher.next_read:
            places.append("not read")
        return places or self.left_out(dispatcher.delayed, position)

    def left_out(self, delayed: DelayedDelivery | None, position: Position) -> list[str]:
        if delayed is None or delayed._index.horizon is None or delayed._index.beyond_first is None:
            return []
        is_behind = (self.due_ms[position], *position) >= delayed._index.horizon
        return ["left out"] if is_behind and position >= delayed._index.beyond_first else []

    @invariant()
    def each_unacknowledged_entry_is_in_one_place(self) -> None:
        assert not self.failures, self.failures
        if hasattr(self, "world"):
            for position in self.unacknowledged():
                places = self.places_of(position)
                assert len(places) == 1, f"{position} is {places}"

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "world"):
            return
        held: Counter[int] = Counter()
        for inbox in self.inboxes:
            pending = inbox.consumer.pending.values()
            assert inbox.consumer.unacked_messages == sum(messages for messages, _ in pending)
            held.update(key_hash for _, key_hash in pending)
        assert self.dispatcher.book.total.messages == held.total()
        if isinstance(self.dispatcher, KeySharedDispatcher):
            assert {key_hash: entries for key_hash, (_, entries) in self.dispatcher.book.holders.items()} == held

    # --- the end ---

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.loop.run_until_complete(self.drain())
                self.loop.run_until_complete(self.world.subscription.aclose())
        finally:
            self.small_blocks.stop()
            self.loop.close()

    async def drain(self) -> None:
        """A consumer that takes and acknowledges everything gets everything that can be read."""
        self.world.topic.failures.clear()
        self.connect(0)
        for _ in range(60):
            for inbox in self.inboxes:
                inbox.flow(20)
                if pending := inbox.consumer.pending:
                    inbox.ack(*map(self.world.topic.index, pending))
            await asyncio.sleep(1)
            if not self.unacknowledged():
                break
        assert self.unacknowledged() == [], self.world.subscription.explain()


class Places(Replays):
    """Entries come with delivery times, get lost, and leave the topic, besides."""

    @rule(
        keys=st.text(KEYS, min_size=1, max_size=12),
        delays_s=st.lists(st.integers(0, 12), min_size=1, max_size=4),
        seconds=some_seconds,
    )
    def publishes(self, keys: str, delays_s: list[int], seconds: float) -> None:
        self.do(seconds, lambda: self.publish(keys, delays_s))

    @rule(index=st.integers(0, 20), seconds=some_seconds)
    def loses(self, index: int, seconds: float) -> None:
        failures = self.world.topic.failures
        self.do(seconds, lambda: failures.update({self.world.topic.position(index): EntryAbsentError("no bookie")}))

    @rule(seconds=some_seconds)
    def trims(self, seconds: float) -> None:
        """The first ledger goes, acknowledged or not."""

        def trim() -> None:
            spans = self.world.topic.chain.spans
            if len(spans) > 1:
                self.world.topic.chain.drop([spans[0].ledger_id])
                self.world.cursor.acks.settle()

        self.do(seconds, trim)


class SharedReplays(Replays):
    subscription_type = SHARED


class SharedPlaces(Places):
    subscription_type = SHARED


class KeySharedPlaces(Places):
    subscription_type = KEY_SHARED


for machine in (SharedPlaces, KeySharedPlaces):
    machine.TestCase.settings = settings(
        max_examples=100,
        stateful_step_count=30,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
TestSharedPlaces = SharedPlaces.TestCase
TestKeySharedPlaces = KeySharedPlaces.TestCase


def _walk(machine: Replays, random: Random, steps: int) -> None:
    for _ in range(steps):
        who, seconds = random.randrange(CONSUMERS_MAX), random.choice([0.0, 0.002])
        match random.randrange(4):
            case 0:
                machine.ask([1] * CONSUMERS_MAX, seconds)
            case 1:
                machine.gives_back(who, set(random.sample(range(16), 6)), seconds)
            case _:
                machine.gives_one_back(who, random.randrange(16), seconds)
        machine.each_unacknowledged_entry_is_in_one_place()
        machine.the_books_agree()


def _walk_with_delays(machine: Places, random: Random, steps: int) -> None:
    for _ in range(steps):
        seconds = random.choice([0.0, 0.002, 1.0, 6.0])
        match random.randrange(6):
            case 0 | 1:
                machine.publishes(KEYS * 3, random.choices(range(1, 13), k=4), seconds)
            case 2 if len(machine.inboxes) < CONSUMERS_MAX:
                machine.connects(random.choice([0, 10]), seconds)
            case 3 if machine.inboxes:
                machine.leaves(random.randrange(CONSUMERS_MAX), seconds)
            case 4:
                machine.caches(random.randrange(20))
            case _ if machine.inboxes:
                machine.ask([10] * CONSUMERS_MAX, seconds)
                for who in range(len(machine.inboxes)):
                    machine.acknowledges(who, set(range(random.choice([0, 10]))), 0.0)
        machine.each_unacknowledged_entry_is_in_one_place()
        machine.the_books_agree()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", [SharedPlaces, KeySharedPlaces])
def test_nothing_is_in_two_places_while_the_delayed_index_overflows(kind: type[Places], seed: int) -> None:
    machine = kind()
    try:
        machine.begin(rounds=2)
        _walk_with_delays(machine, Random(seed), 100)
    finally:
        machine.teardown()


@every_row("seed", range(10))
def test_nothing_is_forgotten_while_replays_are_handed_out_in_part(seed: int) -> None:
    """A walk, because hypothesis hardly ever comes to a replay that is interrupted and then grows in its middle."""
    machine = SharedReplays()
    try:
        machine.begin(rounds=6)
        _walk(machine, Random(seed), 200)
    finally:
        machine.teardown()
