from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.broker.dispatch.non_persistent import NonPersistentSubscription
from magnetar.broker.subscriptions.consumer import Consumer, Delivery, KeySharedSettings, SubscriptionType
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import ConsumerBusyError, SubscriptionTypeError
from magnetar.sim.machine import SimEntropy, WallClock
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from tests.unit.broker.dispatch.world import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, message

pytestmark = pytest.mark.virtual_time


class Sink:
    def __init__(self) -> None:
        self.is_writable = True
        self.ids: list[int] = []
        self.active: list[bool] = []

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.ids.extend(entry.position.entry_id for entry, _, _ in deliveries)

    def active_changed(self, is_active: bool) -> None:
        self.active.append(is_active)

    def reached_end_of_topic(self) -> None: ...
    def disconnect(self, why: str) -> None: ...


class Scene:
    def __init__(self) -> None:
        entropy = SimEntropy("x", WallClock(time=asyncio.get_running_loop().time))
        self.subscription = NonPersistentSubscription("sub", DispatchConfig(), entropy, topic="t", partition=0)

    def connect(self, name: str, kind: SubscriptionType, permits: int = 100) -> tuple[Consumer, Sink]:
        sink = Sink()
        consumer = Consumer(1, name, sink, kind, key_shared=KeySharedSettings())
        self.subscription.add_consumer(consumer)
        self.subscription.flow(consumer, permits)
        return consumer, sink

    def publish(self, count: int, first: int = 0, keys: str = "a", batch: int = 1) -> None:
        self.subscription.publish(
            [
                LogEntry(Position(0, index), message(index, key=keys[index % len(keys)], batch=batch))
                for index in range(first, first + count)
            ]
        )


async def test_what_nobody_can_take_is_dropped_and_counted_in_messages() -> None:
    world = Scene()
    world.publish(2, batch=3)
    _, sink = world.connect("c", SHARED, permits=3)
    world.publish(5)
    assert sink.ids == [0, 1, 2]
    statistics = world.subscription.statistics()
    assert (statistics.dropped_messages, statistics.delivered_messages) == (8, 3)


async def test_shared_consumers_take_turns_and_a_full_connection_gets_nothing() -> None:
    world = Scene()
    (_, one), (_, two), (_, stuck) = (world.connect(name, SHARED) for name in "abc")
    stuck.is_writable = False
    world.publish(10)
    assert (len(one.ids), len(two.ids), stuck.ids) == (5, 5, [])


async def test_a_key_has_one_consumer() -> None:
    world = Scene()
    sinks = [world.connect(name, KEY_SHARED)[1] for name in ("one", "two")]
    world.publish(52, keys="abcdefghijklmnopqrstuvwxyz")
    assert all(sink.ids for sink in sinks)
    assert not {index % 26 for index in sinks[0].ids} & {index % 26 for index in sinks[1].ids}


async def test_failover_and_exclusive_have_one_active_consumer() -> None:
    world = Scene()
    (first, one), (_, two) = world.connect("a", FAILOVER), world.connect("b", FAILOVER)
    world.publish(2)
    world.subscription.remove_consumer(first)
    world.publish(2, first=2)
    assert (one.ids, two.ids) == ([0, 1], [2, 3])
    assert (one.active, two.active) == ([True], [False, True])
    with pytest.raises(SubscriptionTypeError):
        world.connect("c", SHARED)
    exclusive = Scene()
    exclusive.connect("a", EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        exclusive.connect("b", EXCLUSIVE)


async def test_a_consumer_that_cannot_be_chosen_among_the_others_is_not_added() -> None:
    world = Scene()
    first, sink = world.connect("first", FAILOVER)
    with pytest.raises(TypeError):
        world.connect(b"no text", FAILOVER)  # type: ignore[arg-type]
    assert world.subscription.consumers == [first]
    world.publish(1)
    assert sink.ids == [0]
