"""Limits on what is delivered and not acknowledged: a consumer or a subscription is held exactly while it has too much,
and whatever makes room lets delivery continue, without anything else having to happen."""

from __future__ import annotations

import pytest

from magnetar.broker.dispatch.blockers import BlockerKind
from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.subscriptions.consumer import SubscriptionType
from tests.unit.broker.dispatch.world import KEY_SHARED, SHARED, World, settle
from tests.virtual_time import run

pytestmark = pytest.mark.virtual_time

both_types = pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.shown)
PER_CONSUMER = DispatchLimits(unacked_messages_per_consumer_max=5)


@both_types
async def test_what_was_given_back_above_the_limit_is_delivered_once_the_rest_is_acknowledged(
    kind: SubscriptionType,
) -> None:
    world = World(limits=PER_CONSUMER)
    consumer = world.connect("c", kind)
    world.publish(1, batch=4, key="a")
    world.publish(1, batch=10, key="b")
    await settle()
    assert consumer.ids == [0, 1]
    consumer.nack(0)
    await settle()
    assert consumer.ids == [0, 1], "ten messages are unacknowledged still"
    assert BlockerKind.UNACKED_LIMIT_CONSUMER in world.blockers()
    consumer.ack(1)
    await settle()
    assert consumer.ids == [0, 1, 0]


@both_types
async def test_what_was_given_back_below_the_limit_is_delivered_at_once(kind: SubscriptionType) -> None:
    world = World(limits=PER_CONSUMER)
    consumer = world.connect("c", kind)
    world.publish(5, key="a")
    await settle()
    consumer.nack(0)
    await settle()
    assert consumer.ids == [0, 1, 2, 3, 4, 0]


@both_types
@pytest.mark.parametrize("is_given_back", [False, True], ids=["unread", "given back"])
def test_a_subscription_whose_limit_was_lowered_below_what_it_has_continues_after_acknowledgements(
    kind: SubscriptionType, is_given_back: bool
) -> None:
    async def scene() -> None:
        world = World(limits=DispatchLimits(unacked_messages_per_subscription_max=10))
        consumer = world.connect("c", kind)
        world.publish(9, key="a")
        await settle()
        if is_given_back:
            consumer.consumer.permits = 0  # It has no room now, and FLOW comes after the limit was lowered.
            consumer.nack(0)
            await settle()
        world.subscription.update_limits(DispatchLimits(unacked_messages_per_subscription_max=4))
        world.publish(1, key="a")
        if is_given_back:
            consumer.flow(100)
        await settle()
        assert len(consumer.ids) == 9
        assert BlockerKind.UNACKED_LIMIT_SUBSCRIPTION in world.blockers()
        consumer.ack(*range(1, 9))
        await settle()
        consumer.ack(0)
        await settle()
        assert consumer.ids[9:] == ([0, 9] if is_given_back else [9])

    run(scene())


@both_types
async def test_a_consumer_whose_limit_was_lowered_below_what_it_has_waits_until_half_of_that_is_left(
    kind: SubscriptionType,
) -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=10))
    consumer = world.connect("c", kind)
    world.publish(9, key="a")
    await settle()
    world.subscription.update_limits(DispatchLimits(unacked_messages_per_consumer_max=4))
    world.publish(1, key="a")
    await settle()
    assert len(consumer.ids) == 9
    consumer.ack(*range(6))
    await settle()
    assert len(consumer.ids) == 9
    consumer.ack(6)
    await settle()
    assert len(consumer.ids) == 10


@both_types
async def test_what_was_given_back_waits_for_room_in_the_subscription_and_no_longer(kind: SubscriptionType) -> None:
    """New entries wait until half of the limit is acknowledged."""

    world = World(limits=DispatchLimits(unacked_messages_per_subscription_max=10))
    consumer = world.connect("c", kind)
    world.publish(1, batch=7, key="a")
    world.publish(1, batch=3, key="b")
    world.publish(1, key="c")
    await settle()
    assert consumer.ids == [0, 1]
    world.subscription.update_limits(DispatchLimits(unacked_messages_per_subscription_max=5))
    consumer.nack(1)
    await settle()
    assert consumer.ids == [0, 1], "seven messages are unacknowledged, the limit is five"
    world.subscription.acknowledge_batch(consumer.consumer, world.topic.position(0), [0b1111], 7)
    await settle()
    assert consumer.ids == [0, 1, 1], "four are left, which is below the limit and above half of it"
    consumer.ack(0, 1)
    await settle()
    assert consumer.ids == [0, 1, 1, 2]


async def test_reading_continues_when_what_waited_at_the_look_ahead_limit_is_acknowledged_by_somebody_else() -> None:
    world = World(key_shared_look_ahead_per_consumer=2, key_shared_look_ahead_per_subscription=4)
    slow, quick = world.connect("slow", KEY_SHARED, permits=0), world.connect("quick", KEY_SHARED)
    world.publish_keys("abcdefghijklmnopqrstuvwxyz" * 2)
    await settle()
    waiting = len(quick.ids)
    assert waiting < 40
    assert BlockerKind.LOOK_AHEAD_LIMIT in world.blockers()
    quick.ack(*(set(range(26)) - set(quick.ids)))
    await settle()
    assert len(quick.ids) > waiting
    assert not slow.ids


async def test_gaps_that_are_closed_by_another_consumer_message_by_message_let_delivery_continue() -> None:
    world = World(limits=DispatchLimits(pause_on_ack_state=True))
    world.cursor.ranges_max = 0
    slow, quick = world.connect("slow", KEY_SHARED, permits=0), world.connect("quick", KEY_SHARED)
    for key in "abcdefgh":
        world.publish(1, batch=2, key=key)
    await settle()
    waiting = sorted(set(range(8)) - set(quick.ids))
    quick.ack(*quick.ids)
    quick.clear()
    world.publish_keys("abcdefgh")
    await settle()
    assert waiting
    assert not quick.ids
    for index in waiting:
        world.subscription.acknowledge_batch(quick.consumer, world.topic.position(index), [0], 2)
    await settle()
    assert quick.ids
    assert not slow.ids
