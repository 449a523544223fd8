"""What the simulator takes for deliverable, and what it says when that is not delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast
from unittest.mock import patch

import pytest

from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.subscriptions.consumer import SubscriptionType
from magnetar.sim.topics.invariants import DELIVERY_LIMIT_S, Delivers
from magnetar.sim.topics.observe import WatchedSubscription
from magnetar.sim.topics.watch import TopicWatch
from tests.unit.broker.dispatch import world as worlds
from tests.unit.broker.dispatch.world import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, World, settle
from tests.virtual_time import run

pytestmark = pytest.mark.virtual_time

every_type = pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED], ids=lambda kind: kind.shown)
individual = pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.shown)


def watched_world(limits: DispatchLimits | None = None, **settings: int) -> tuple[World, WatchedSubscription]:
    subscription_class = type("Watched", (WatchedSubscription,), {"entries_of_world": {}})
    with patch.object(worlds, "Subscription", subscription_class):
        world = World(limits=limits, **settings)
    assert isinstance(world.subscription, WatchedSubscription)
    return world, world.subscription


def publish(world: World, subscription: WatchedSubscription, keys: str) -> None:
    world.publish_keys(keys)
    for entry in world.topic.entries:
        subscription.entries_of_world[subscription.topic, entry.position] = entry


@every_type
async def test_what_is_delivered_does_not_wait_and_what_is_not_does(kind: SubscriptionType) -> None:
    world, subscription = watched_world()
    publish(world, subscription, "ab")
    assert subscription.waiting() is None, "no consumer is connected"
    consumer = world.connect("c", kind, permits=1)
    assert subscription.waiting() == (world.topic.position(0), "c")
    await settle()
    assert subscription.waiting() is None, "it has no permits left"
    with patch.object(Dispatcher, "schedule"):
        consumer.flow(1)
        await settle()
    assert subscription.waiting() == (world.topic.position(1), "c")


@every_type
async def test_what_is_given_back_waits_again(kind: SubscriptionType) -> None:
    world, subscription = watched_world()
    publish(world, subscription, "ab")
    consumer = world.connect("c", kind, permits=10)
    await settle()
    assert subscription.waiting() is None
    with patch.object(Dispatcher, "schedule"):
        consumer.nack(0, 1)
        assert subscription.waiting() == (world.topic.position(0), "c")
        consumer.ack(0)
        assert subscription.waiting() == (world.topic.position(1), "c")


@individual
@pytest.mark.parametrize(
    "limits",
    [DispatchLimits(unacked_messages_per_consumer_max=4), DispatchLimits(unacked_messages_per_subscription_max=6)],
    ids=["consumer", "subscription"],
)
async def test_nothing_waits_for_a_consumer_that_has_more_than_half_of_a_limit(
    kind: SubscriptionType, limits: DispatchLimits
) -> None:
    world, subscription = watched_world(limits)
    consumer = world.connect("c", kind)
    publish(world, subscription, "aaaaaaaa")
    await settle()
    got = len(consumer.ids)
    assert 0 < got < 8
    with patch.object(Dispatcher, "schedule"):
        for index in range(got):
            is_half = got - index <= 2
            assert (subscription.waiting() is not None) is is_half
            consumer.ack(index)


async def test_an_entry_waits_for_its_keys_consumer_alone_and_not_behind_another_of_its_key() -> None:
    world, subscription = watched_world()
    one, other = world.connect("one", KEY_SHARED, permits=0), world.connect("other", KEY_SHARED, permits=0)
    publish(world, subscription, "abcdefgh" * 2)
    await settle()
    with patch.object(Dispatcher, "schedule"):
        one.flow(100)
        found = subscription.waiting()
    assert found is not None
    assert (found.consumer, world.topic.index(found.position) < 8) == ("one", True)
    one.flow(1)
    await settle()
    assert subscription.waiting() is None, "the rest is the other one's"
    with patch.object(Dispatcher, "schedule"):
        other.flow(100)
        assert subscription.waiting() is not None


async def test_an_entry_of_a_key_that_another_consumer_still_has_does_not_wait() -> None:
    world, subscription = watched_world()
    old = world.connect("old", KEY_SHARED)
    publish(world, subscription, "abcdefgh")
    await settle()
    world.connect("new", KEY_SHARED)
    publish(world, subscription, "abcdefgh")
    await settle()
    assert len(old.ids) < 16
    assert subscription.waiting() is None
    with patch.object(Dispatcher, "schedule"):
        old.ack(*range(8))
        found = subscription.waiting()
    assert found is not None
    assert found.consumer == "new"


# --- V6 ---------------------------------------------------------------------------------------------------------------


class FakeWatch:
    def __init__(self, found: list[str]) -> None:
        self.now = 0.0
        self._found = found

    def violated(self, invariant: str, what: str) -> None:
        self._found.append(f"{invariant}: {what}")


def looks(change: Callable[[WatchedSubscription], None], times: int = 2) -> list[str]:
    """What V6 says of a subscription at which an entry waits, looked at this often, one limit after the other."""
    found: list[str] = []

    async def scene() -> None:
        world, subscription = watched_world()
        publish(world, subscription, "ab")
        with patch.object(Dispatcher, "schedule"):
            world.connect("c", SHARED, permits=1)
        watch = FakeWatch(found)
        delivers = Delivers(cast("TopicWatch", watch))
        for number in range(times):
            watch.now = number * DELIVERY_LIMIT_S
            delivers.on_look(subscription)
            change(subscription)

    run(scene())
    return found


def test_what_waits_longer_than_the_limit_is_reported_once() -> None:
    (report,) = looks(lambda _subscription: None, times=5)
    assert report.startswith("V6")
    assert "c has permits and room" in report


def test_a_subscription_that_delivers_something_begins_anew() -> None:
    def deliver(subscription: WatchedSubscription) -> None:
        subscription.deliveries += 1

    assert looks(deliver, times=5) == []


def test_what_waits_for_less_than_the_limit_is_not_reported() -> None:
    assert looks(lambda _subscription: None, times=1) == []
