from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.dispatch.blockers import BlockerKind
from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.subscriptions.consumer import SubscriptionType
from tests.unit.broker.dispatch.world import KEY_SHARED, SHARED, Topic, World, message, settle

pytestmark = pytest.mark.virtual_time


async def after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    await settle()


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_an_entry_waits_for_its_time_and_those_behind_it_do_not(kind: SubscriptionType) -> None:
    world = World(delayed_strict=True)
    consumer = world.connect("c", kind)
    world.publish(1, deliver_at_time=world.now_ms + 5_000)
    world.publish(2)
    await settle()
    assert consumer.ids == [1, 2]
    await after(4.99)
    assert consumer.ids == [1, 2]
    await after(0.02)
    assert consumer.ids == [1, 2, 0]
    assert consumer.counts == [0, 0, 0]


async def test_without_strict_times_an_entry_may_come_up_to_one_tick_early() -> None:
    world = World(limits=DispatchLimits(delayed_tick_ms=1_000))
    consumer = world.connect("c", SHARED)
    world.publish(1, deliver_at_time=world.now_ms + 900)
    world.publish(1, deliver_at_time=world.now_ms + 3_000)
    await settle()
    assert consumer.ids == [0]
    await after(1.9)
    assert consumer.ids == [0]
    await after(0.2)
    assert consumer.ids == [0, 1]


async def test_entries_come_in_the_order_of_their_times() -> None:
    world = World(delayed_strict=True)
    consumer = world.connect("c", SHARED)
    for seconds in (30, 10, 20, 10):
        world.publish(1, deliver_at_time=world.now_ms + seconds * 1_000)
    await after(60)
    assert consumer.ids == [1, 3, 2, 0]


async def test_due_entries_wait_for_permits_and_a_slow_consumer_loses_none() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=3)
    for index in range(20):
        world.publish(1, deliver_at_time=world.now_ms + 2_000 + index)
    await after(10)
    assert len(consumer.ids) == 0 or consumer.ids == [0, 1, 2]
    consumer.flow(50)
    await after(1)
    assert consumer.ids == list(range(20))


async def test_switched_off_nothing_waits() -> None:
    world = World(limits=DispatchLimits(delayed_delivery=False))
    consumer = world.connect("c", SHARED)
    world.publish(1, deliver_at_time=world.now_ms + 60_000)
    await settle()
    assert consumer.ids == [0]


async def test_switching_it_off_lets_those_go_that_wait() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(2, deliver_at_time=world.now_ms + 60_000)
    await settle()
    assert consumer.ids == []
    world.subscription.update_limits(DispatchLimits(delayed_delivery=False))
    await settle()
    assert consumer.ids == [0, 1]


async def test_the_index_is_kept_when_the_last_consumer_leaves_and_nothing_is_read_again() -> None:
    world = World(delayed_strict=True)
    consumer = world.connect("c", SHARED)
    world.publish(5, deliver_at_time=world.now_ms + 10_000)
    world.publish(2)
    await settle()
    assert consumer.ids == [5, 6]
    consumer.close()
    world.topic.is_cached = False
    later = world.connect("later", SHARED)
    await after(1)
    assert later.ids == [5, 6]
    assert [first for first, _ in world.topic.reads] == [world.topic.position(5)]
    await after(10)
    assert later.ids == [5, 6, 0, 1, 2, 3, 4]


async def test_it_is_rebuilt_after_a_restart_by_reading_from_the_mark_delete_position() -> None:
    world = World(delayed_strict=True)
    consumer = world.connect("c", SHARED)
    world.publish(3, deliver_at_time=world.now_ms + 10_000)
    world.publish(1)
    await settle()
    consumer.ack(3)
    await world.subscription.aclose()
    restarted = World(topic=world.topic, delayed_strict=True)
    restarted.cursor.acks = world.cursor.acks
    later = restarted.connect("later", SHARED)
    await settle()
    assert later.ids == []
    assert restarted.subscription.statistics().delayed_entries == 3
    await after(10.1)
    assert later.ids == [0, 1, 2]


async def test_a_delayed_entry_that_was_skipped_is_not_delivered() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(2, deliver_at_time=world.now_ms + 10_000)
    await settle()
    await world.subscription.clear_backlog()
    await after(20)
    assert consumer.ids == []
    assert world.subscription.statistics().delayed_entries == 0


async def test_a_delayed_entry_that_is_given_back_does_not_wait_again() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(1, deliver_at_time=world.now_ms + 5_000)
    await after(6)
    consumer.nack(0)
    await settle()
    assert (consumer.ids, consumer.counts) == ([0, 0], [0, 1])


async def test_reading_pauses_when_very_many_entries_have_rising_times() -> None:
    world = World(delayed_lookahead_entries=20, read_entries_max=10)
    consumer = world.connect("c", SHARED)
    for index in range(100):
        world.topic.append(message(index, deliver_at_time=world.now_ms + 10_000 + index * 100))
    world.topic.tell()
    await settle()
    assert world.subscription.statistics().delayed_entries == 20
    await after(60)
    assert consumer.ids == list(range(100))


async def test_an_entry_without_a_time_is_not_held_by_the_pause() -> None:
    world = World(delayed_lookahead_entries=20, read_entries_max=10)
    consumer = world.connect("c", SHARED)
    world.publish(1)
    for index in range(1, 100):
        world.topic.append(message(index, deliver_at_time=world.now_ms + 10_000 + index * 100))
    world.publish(1)
    await settle()
    assert consumer.ids == [0, 100]


async def test_more_delayed_entries_than_memory_has_room_for_are_found_again_in_the_topic() -> None:
    total = 12_000
    world = World(
        topic=Topic(ledger_entries=1_000),
        delayed_index_entries_max=2_000,
        delayed_lookahead_entries=0,
        limits=DispatchLimits(unacked_messages_per_consumer_max=0, unacked_messages_per_subscription_max=0),
    )
    consumer = world.connect("c", SHARED, permits=10 * total)
    start = world.now_ms + 100_000
    due = {index: start + index * 7_919 % total * 10 for index in range(total)}
    for index in range(total):
        world.topic.append(message(index, deliver_at_time=due[index]))
    world.topic.tell()
    await settle(100_000)
    statistics = world.subscription.statistics()
    assert statistics.delayed_entries <= 2_000 + 4_096
    assert statistics.delayed_index_bytes < 2_000_000
    acked = 0
    for _ in range(100):
        await asyncio.sleep(4)
        ids = consumer.ids[acked:]
        if ids:
            consumer.ack(*ids)
        acked += len(ids)
    assert sorted(consumer.ids) == list(range(total))
    late = [index for index in consumer.ids[: total // 10] if due[index] > start + total * 3]
    assert not late, "the earliest come first"


async def _overflowed(kind: SubscriptionType) -> tuple[World, int]:
    """No consumer is connected; 2,000 of 6,000 delayed entries did not fit into the index. Then all became due, and
    1,000 more that were published meanwhile: they come after the index's horizon, and are not read yet."""
    unlimited = DispatchLimits(unacked_messages_per_consumer_max=0, unacked_messages_per_subscription_max=0)
    world = World(topic=Topic(ledger_entries=1_000), delayed_index_entries_max=4_000, limits=unlimited)
    consumer = world.connect("before", kind, permits=100_000)
    start = world.now_ms
    for index in range(6_000):
        due = start + 20_000 + index * 5
        world.topic.append(message(index, key=f"k{index % 50}", deliver_at_time=due))
    world.topic.tell()
    await settle(100_000)
    consumer.close()
    for index in range(6_000, 7_000):
        world.topic.append(message(index, key=f"k{index % 50}", deliver_at_time=start + 55_000))
    world.topic.tell()
    await asyncio.sleep(60)
    world.topic.cold_before = 6_000  # Finding again takes longer than delivering the rest.
    return world, 7_000


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_what_was_delivered_without_waiting_is_not_found_again_while_a_consumer_has_it(
    kind: SubscriptionType,
) -> None:
    world, total = await _overflowed(kind)
    consumer = world.connect("c", kind, permits=100_000)
    await asyncio.sleep(30)
    assert sorted(consumer.ids) == list(range(total))
    assert consumer.consumer.unacked_messages == len(consumer.consumer.pending) == total
    consumer.ack(*range(total))
    await settle()
    statistics = world.subscription.statistics()
    assert (statistics.unacked_messages, statistics.backlog_entries) == (0, 0)
    consumer.close()
    assert world.blockers().keys() == {BlockerKind.CAUGHT_UP}


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_what_waits_to_be_delivered_again_is_not_found_again_as_delayed(kind: SubscriptionType) -> None:
    world, total = await _overflowed(kind)
    consumer = world.connect("c", kind, permits=100_000)
    await settle()
    assert sorted(consumer.ids) == list(range(6_000, total))  # While those before them are being read.
    world.topic.cold_before = 0
    world.topic.gate = asyncio.Event()  # The scan waits, others do not.
    await asyncio.sleep(5)
    assert world.blockers().keys() >= {BlockerKind.DELAY_SCAN}
    consumer.is_writable = False
    consumer.nack(*range(6_000, total))
    world.topic.gate.set()
    await asyncio.sleep(5)
    consumer.is_writable = True
    world.subscription.resume(consumer.consumer)
    await asyncio.sleep(5)
    assert sorted(consumer.ids) == sorted([*range(total), *range(6_000, total)])
    assert consumer.consumer.unacked_messages == len(consumer.consumer.pending) == total
    consumer.close()
