from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.dispatch.next_consumer import choose_active, hash_of_entry
from magnetar.broker.subscriptions.consumer import KeySharedSettings
from magnetar.errors import ConsumerBusyError, InvalidCursorPositionError
from tests.unit.broker.dispatch.world import EXCLUSIVE, FAILOVER, World, settle

pytestmark = pytest.mark.virtual_time


async def test_an_exclusive_consumer_gets_everything_in_order_as_its_permits_go() -> None:
    world = World(read_entries_max=7)
    consumer = world.connect("c", EXCLUSIVE, permits=30)
    world.publish(120)
    await settle()
    assert consumer.ids == list(range(30))
    consumer.flow(1_000)
    await settle()
    assert consumer.ids == list(range(120))


async def test_a_second_exclusive_consumer_is_refused_until_the_first_has_left() -> None:
    world = World()
    first = world.connect("first", EXCLUSIVE)
    with pytest.raises(ConsumerBusyError, match="first"):
        world.connect("second", EXCLUSIVE)
    first.close()
    first.close()
    world.connect("second", EXCLUSIVE)


async def test_whoever_comes_next_gets_everything_that_is_unacknowledged() -> None:
    world = World()
    consumer = world.connect("c", EXCLUSIVE)
    world.publish(10)
    await settle()
    consumer.ack_to(3)
    consumer.ack(5)
    consumer.close()
    later = world.connect("later", EXCLUSIVE)
    await settle()
    assert later.ids == [4, 6, 7, 8, 9]
    assert later.counts == [0] * 5


async def test_giving_one_message_back_reads_again_from_the_first_unacknowledged_one() -> None:
    world = World()
    consumer = world.connect("c", EXCLUSIVE)
    world.publish(6)
    await settle()
    consumer.ack_to(1)
    consumer.clear()
    consumer.nack(4)
    await settle()
    assert consumer.ids == [2, 3, 4, 5]


async def test_the_epoch_of_the_consumer_rises_with_its_redelivery_request() -> None:
    world = World()
    consumer = world.connect("c", EXCLUSIVE)
    consumer.nack_all(epoch=3)
    assert consumer.consumer.epoch == 3
    consumer.nack_all(epoch=2)
    assert consumer.consumer.epoch == 3


async def test_part_of_a_batch_is_acknowledged_cumulatively() -> None:
    world = World()
    consumer = world.connect("c", EXCLUSIVE)
    world.publish(3, batch=4)
    await settle()
    world.subscription.acknowledge_to(consumer.consumer, world.topic.position(1), [0b1100], 4)
    consumer.clear()
    consumer.nack_all()
    await settle()
    assert consumer.ids == [1, 2]
    assert [ack_set for _, _, ack_set in consumer.deliveries] == [[0b1100], None]


async def test_a_delivery_time_does_not_hold_an_exclusive_consumer() -> None:
    world = World()
    consumer = world.connect("c", EXCLUSIVE)
    world.publish(1, deliver_at_time=world.now_ms + 3_600_000)
    world.publish(1)
    await settle()
    assert consumer.ids == [0, 1]


async def test_markers_are_not_delivered_and_a_transaction_stops_delivery() -> None:
    world = World()
    consumer = world.connect("c", EXCLUSIVE)
    world.publish(1)
    world.publish(1, marker_type=1)
    world.publish(1)
    world.publish(1, txnid_most_bits=1, txnid_least_bits=1)
    world.publish(1)
    await settle()
    assert consumer.ids == [0, 2]


async def test_an_exclusive_consumer_may_ask_for_some_keys_only() -> None:
    world = World()
    world.publish_keys("abcabcabc")
    hashes = {key: hash_of_entry(world.topic.entries[at]) for at, key in enumerate("abc")}
    wanted = KeySharedSettings(ranges=((hashes["b"], hashes["b"]),))
    consumer = world.connect("c", EXCLUSIVE, key_shared=wanted, permits=3)
    await settle()
    assert consumer.ids == [1, 4, 7]
    assert consumer.consumer.permits == 0


# --- Failover ---


async def test_only_the_active_consumer_gets_messages_and_each_is_told() -> None:
    world = World(partition=0)
    consumers = [world.connect(name, FAILOVER) for name in "ab"]
    world.publish(5)
    await settle()
    assert [consumer.ids for consumer in consumers] == [[0, 1, 2, 3, 4], []]
    assert [consumer.active for consumer in consumers] == [[True], [False]]


async def test_the_first_consumer_does_not_wait_and_the_next_one_does() -> None:
    world = World(partition=0, failover_delay_ms=1_000)
    first, second = world.connect("a", FAILOVER), world.connect("b", FAILOVER)
    world.publish(5)
    await settle()
    first.ack_to(1)
    first.close()
    await settle()
    assert second.ids == []
    await asyncio.sleep(0.99)
    assert second.ids == []
    await asyncio.sleep(0.02)
    await settle()
    assert second.ids == [2, 3, 4]
    assert second.active == [False, True]


async def test_a_consumer_that_cannot_be_chosen_among_the_others_is_not_added() -> None:
    world = World()
    first = world.connect("first", FAILOVER)
    with pytest.raises(TypeError):
        world.connect(b"no text", FAILOVER)  # type: ignore[arg-type]
    assert world.subscription.consumers == [first.consumer]
    second = world.connect("second", FAILOVER)
    first.close()
    second.close()
    assert not world.subscription.consumers


async def test_a_consumer_of_higher_priority_takes_over() -> None:
    world = World(partition=3, failover_delay_ms=0)
    low = world.connect("low", FAILOVER, priority=5)
    world.publish(2)
    await settle()
    high = world.connect("high", FAILOVER, priority=1)
    await settle()
    assert (low.ids, high.ids) == ([0, 1], [0, 1])
    assert (low.active, high.active) == ([True, False], [True])


async def test_partitions_are_spread_over_the_consumers_of_the_highest_priority() -> None:
    world = World()
    consumers = [world.connect(name, FAILOVER).consumer for name in ("c", "a", "b")]
    low = world.connect("aa", FAILOVER, priority=1).consumer
    chosen = [
        choose_active([low, *consumers], "persistent://t/n/x-partition-0", partition, by_ring=False).name
        for partition in range(4)
    ]
    assert chosen == ["a", "b", "c", "a"]


async def test_topics_without_partitions_are_spread_by_a_ring_that_moves_few_of_them() -> None:
    world = World()
    consumers = [world.connect(name, FAILOVER).consumer for name in ("one", "two", "three")]
    topics = [f"persistent://public/default/t{n}" for n in range(300)]
    before = {topic: choose_active(consumers[:2], topic, -1, by_ring=False) for topic in topics}
    after = {topic: choose_active(consumers, topic, -1, by_ring=False) for topic in topics}
    moved = [topic for topic in topics if before[topic] is not after[topic]]
    assert {after[topic].name for topic in moved} == {"three"}
    assert 40 < len(moved) < 160


async def test_permits_of_the_one_that_waits_count_when_it_becomes_active() -> None:
    world = World(partition=0, failover_delay_ms=0)
    first, second = world.connect("a", FAILOVER, permits=0), world.connect("b", FAILOVER, permits=3)
    world.publish(5)
    await settle()
    assert (first.ids, second.ids) == ([], [])
    first.close()
    await settle()
    assert second.ids == [0, 1, 2]


# --- acknowledgements ---


async def test_what_is_behind_the_last_message_cannot_be_acknowledged() -> None:
    """The consumer has it from another broker, which took the topic over: to confirm it here would be a lie."""

    world = World()
    consumer = world.connect("c", EXCLUSIVE)
    world.publish(3)
    await settle()
    with pytest.raises(InvalidCursorPositionError, match="look the topic up again"):
        consumer.ack(3)
    with pytest.raises(InvalidCursorPositionError):
        consumer.ack_to(99)
    consumer.ack_to(2)
