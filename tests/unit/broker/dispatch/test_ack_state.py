"""Delivery that waits while more is acknowledged out of order than a cursor can store
(`dispatcherPauseOnAckStatePersistent`)."""

from __future__ import annotations

import pytest

from magnetar.broker.dispatch.blockers import BlockerKind
from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.config.topic import CursorConfig
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from tests.unit.admin.admin_world import TOPIC, admin_world
from tests.unit.broker.dispatch.world import SHARED, Inbox, World, settle

pytestmark = pytest.mark.virtual_time

PAUSES = DispatchLimits(pause_on_ack_state=True)


async def with_holes(world: World) -> Inbox:
    """A consumer that has acknowledged every other one of 20 entries: ten runs, where the cursor stores five."""
    world.cursor.ranges_max = 5
    consumer = world.connect("c", SHARED)
    world.publish(20)
    await settle()
    consumer.ack(*range(1, 20, 2))
    return consumer


async def test_nothing_further_is_delivered_until_what_is_acknowledged_can_be_stored_again() -> None:
    world = World(limits=PAUSES)
    consumer = await with_holes(world)
    await settle()
    assert BlockerKind.ACK_STATE not in world.blockers()  # There is nothing that it could hold.
    world.publish(5)
    await settle()
    assert len(consumer.ids) == 20
    blocker = world.blockers()[BlockerKind.ACK_STATE]
    assert "acknowledge" in blocker.advice

    consumer.ack(0, 2, 4, 6)  # Six runs are left.
    await settle()
    assert len(consumer.ids) == 20
    consumer.ack(8)
    await settle()
    assert consumer.ids[20:] == [20, 21, 22, 23, 24]
    assert BlockerKind.ACK_STATE not in world.blockers()


async def test_what_was_given_back_is_delivered_all_the_same_else_the_gaps_would_stay() -> None:
    world = World(limits=PAUSES)
    consumer = await with_holes(world)
    world.publish(5)
    consumer.nack(0, 2)
    await settle()
    assert consumer.ids[20:] == [0, 2]

    consumer.close()
    other = world.connect("other", SHARED)
    await settle()
    assert sorted(other.ids) == list(range(0, 20, 2))
    other.ack(*other.ids)
    await settle()
    assert other.ids[10:] == [20, 21, 22, 23, 24]


async def test_without_the_policy_delivery_goes_on_and_with_it_as_soon_as_it_is_switched_off() -> None:
    world = World()
    consumer = await with_holes(world)
    world.publish(1)
    await settle()
    assert len(consumer.ids) == 21
    world.subscription.update_limits(PAUSES)
    world.publish(1)
    await settle()
    assert len(consumer.ids) == 21
    world.subscription.update_limits(DispatchLimits())
    await settle()
    assert len(consumer.ids) == 22


async def test_a_reader_has_nothing_that_could_be_stored_and_never_waits_for_it() -> None:
    world = World(limits=PAUSES, is_durable=False)
    consumer = await with_holes(world)
    world.publish(1)
    await settle()
    assert len(consumer.ids) == 21


async def test_the_policy_of_a_topic_and_the_settings_of_cursors_decide() -> None:
    async with admin_world(cursor=CursorConfig(ranges_stored_max=1, ranges_in_metadata_max=1)) as world:
        await world.done("PUT", TOPIC)
        await world.done("POST", f"{TOPIC}/dispatcherPauseOnAckStatePersistent")
        talker = await world.talker()
        await talker.producer("t")
        ids = [await talker.published(1, number, b"x") for number in range(5)]
        await talker.subscribe("t", kind=CommandSubscribe.Shared, initialPosition=CommandSubscribe.Earliest)
        talker.flow(10)
        for _ in ids:
            await talker.message()
        talker.ack(ids[1], ids[3], request_id=1)
        await talker.answer(BaseCommand.ACK_RESPONSE)
        await talker.published(1, 5, b"x")
        subscription = (await world.world.topic("t")).subscriptions.require("s")
        await until(
            lambda: BlockerKind.ACK_STATE in [each.kind for each in subscription.explain().blockers], "it waits"
        )
        assert not [command for command, _ in talker.received if command.type == BaseCommand.MESSAGE]
        talker.ack(ids[0], request_id=2)
        await talker.answer(BaseCommand.ACK_RESPONSE)
        assert (await talker.message())[0].entryId == 5
