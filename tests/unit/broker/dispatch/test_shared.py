from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.subscriptions.consumer import SubscriptionType
from magnetar.errors import ConsumerBusyError, EntryAbsentError, NotAllowedError, SubscriptionTypeError
from tests.unit.broker.dispatch.world import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, World, settle

pytestmark = pytest.mark.virtual_time


async def test_entries_are_spread_over_consumers_and_none_is_given_twice() -> None:
    world = World(round_robin_messages_max=5)
    consumers = [world.connect(name, SHARED) for name in "abc"]
    world.publish(120)
    await settle()
    assert sorted(index for consumer in consumers for index in consumer.ids) == list(range(120))
    assert [len(consumer.ids) for consumer in consumers] == [40, 40, 40]


async def test_one_turn_is_one_delivery_per_consumer() -> None:
    world = World(round_robin_messages_max=5)
    consumers = [world.connect(name, SHARED) for name in "ab"]
    world.publish(100)
    await settle()
    assert [consumer.calls for consumer in consumers] == [1, 1]


async def test_a_consumer_gets_no_more_than_its_permits() -> None:
    world = World()
    slow, fast = world.connect("slow", SHARED, permits=3), world.connect("fast", SHARED, permits=50)
    world.publish(60)
    await settle()
    assert len(slow.ids) == 3
    assert len(fast.ids) == 50
    slow.flow(10)
    await settle()
    assert len(slow.ids) == 10
    assert world.subscription.statistics().unacked_messages == 60


async def test_a_batch_takes_a_permit_per_message_and_the_last_one_may_exceed_them() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=25)
    world.publish(10, batch=10)
    await settle()
    assert consumer.ids == [0, 1, 2]
    assert consumer.consumer.permits == -5
    consumer.flow(5)
    await settle()
    assert consumer.ids == [0, 1, 2]
    consumer.flow(1)
    await settle()
    assert consumer.ids == [0, 1, 2, 3]


async def test_lower_priorities_get_something_only_when_higher_ones_have_no_permits() -> None:
    world = World(round_robin_messages_max=1)
    low = world.connect("low", SHARED, priority=1, permits=100)
    first, second = (world.connect(name, SHARED, priority=0, permits=10) for name in ("first", "second"))
    world.publish(30)
    await settle()
    assert (len(first.ids), len(second.ids), len(low.ids)) == (10, 10, 10)
    assert max(first.ids + second.ids) < min(low.ids)


async def test_what_a_leaving_consumer_had_goes_to_the_others_and_is_not_counted_as_given_back() -> None:
    world = World()
    leaving = world.connect("leaving", SHARED, permits=5)
    world.publish(5)
    await settle()
    leaving.ack(1)
    other = world.connect("other", SHARED)
    leaving.close()
    await settle()
    assert other.ids == [0, 2, 3, 4]
    assert other.counts == [0, 0, 0, 0]


async def test_redelivery_goes_first_and_is_counted_until_acknowledged() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=5)
    world.publish(10)
    await settle()
    consumer.nack(1, 3)
    consumer.flow(3)
    await settle()
    assert consumer.ids[5:] == [1, 3, 5]
    assert consumer.counts[5:] == [1, 1, 0]
    consumer.nack(3)
    consumer.flow(1)
    await settle()
    assert (consumer.ids[-1], consumer.counts[-1]) == (3, 2)
    consumer.ack(3)
    consumer.nack(3)
    consumer.flow(1)
    await settle()
    assert consumer.ids[-1] == 6


async def test_only_what_a_consumer_has_can_be_given_back_by_it() -> None:
    world = World()
    one, other = world.connect("one", SHARED, permits=1), world.connect("other", SHARED, permits=1)
    world.publish(3)
    await settle()
    one.nack(*other.ids, 2, 99)
    one.flow(1)
    await settle()
    assert sorted(one.ids + other.ids) == [0, 1, 2]


async def test_everything_can_be_given_back_at_once() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=4)
    world.publish(4)
    await settle()
    consumer.ack(2)
    consumer.nack_all()
    consumer.flow(10)
    await settle()
    assert consumer.ids[4:] == [0, 1, 3]
    assert consumer.consumer.redelivered_messages == 3


@pytest.mark.parametrize("is_cached", [True, False])
async def test_what_is_given_back_between_entries_that_wait_for_permits_is_delivered_again(is_cached: bool) -> None:
    world = World()
    a = world.connect("a", SHARED, permits=10)
    world.publish(10)
    await settle()
    b, c = world.connect("b", SHARED, permits=0), world.connect("c", SHARED, permits=0)
    world.topic.is_cached = is_cached
    a.nack(0, 2, 4, 6, 8)
    for each in (a, b, c):
        each.flow(1)  # 0, 2 and 4 go out; 6 and 8 were read and wait.
    await asyncio.sleep(1)
    assert world.subscription.statistics().waiting_for_redelivery == 2
    a.nack(7)
    b.flow(100)
    await asyncio.sleep(1)
    assert sorted(b.ids[1:]) == [6, 7, 8]


async def test_an_entry_that_is_lost_does_not_take_others_that_were_given_back_with_it() -> None:
    world = World(skip_unreadable=True)
    consumer = world.connect("c", SHARED)
    world.publish(30)
    await settle()
    consumer.clear()
    world.topic.is_cached = False
    world.topic.failures[world.topic.position(3)] = EntryAbsentError("no bookie has it")
    consumer.nack(3, 15, 16)
    await asyncio.sleep(60)
    assert consumer.ids == [15, 16]
    consumer.nack(15, 16)
    await asyncio.sleep(60)
    assert consumer.ids == [15, 16, 15, 16]


async def test_counts_are_lost_when_the_last_consumer_leaves() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(2)
    await settle()
    consumer.nack(0, 1)
    await settle()
    assert consumer.counts[-2:] == [1, 1]
    consumer.close()
    again = world.connect("again", SHARED)
    await settle()
    assert (again.ids, again.counts) == ([0, 1], [0, 0])


async def test_a_consumer_may_acknowledge_what_another_one_got() -> None:
    world = World(round_robin_messages_max=1)
    one, other = world.connect("one", SHARED), world.connect("other", SHARED)
    world.publish(4)
    await settle()
    one.ack(*other.ids)
    assert other.consumer.unacked_messages == 0
    assert one.consumer.unacked_messages == 2
    assert world.backlog == 2


async def test_a_consumer_with_too_many_unacknowledged_messages_waits_until_half_are_acknowledged() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=10))
    consumer = world.connect("c", SHARED)
    world.publish(30)
    await settle()
    assert consumer.ids == list(range(10))
    consumer.ack(0, 1, 2, 3)
    await settle()
    assert len(consumer.ids) == 10
    consumer.ack(4)
    await settle()
    assert len(consumer.ids) == 15


async def test_a_subscription_with_too_many_unacknowledged_messages_waits_until_half_are_acknowledged() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_subscription_max=10))
    one, other = world.connect("one", SHARED), world.connect("other", SHARED)
    world.publish(30)
    await settle()
    assert len(one.ids) + len(other.ids) == 10
    one.ack(*one.ids[:5])
    other.ack(*other.ids[:5])
    one.ack(*one.ids)
    other.ack(*other.ids)
    await settle()
    assert len(one.ids) + len(other.ids) == 20


async def test_a_raised_limit_lets_delivery_go_on() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=5))
    consumer = world.connect("c", SHARED)
    world.publish(20)
    await settle()
    assert len(consumer.ids) == 5
    world.subscription.update_limits(DispatchLimits(unacked_messages_per_consumer_max=0))
    await settle()
    assert len(consumer.ids) == 20


async def test_a_cursor_that_is_not_durable_has_no_limit_per_consumer() -> None:
    world = World(is_durable=False, limits=DispatchLimits(unacked_messages_per_consumer_max=5))
    consumer = world.connect("c", SHARED)
    world.publish(20)
    await settle()
    assert len(consumer.ids) == 20


async def test_nothing_is_sent_into_a_connection_that_is_not_writable() -> None:
    world = World()
    stuck, fine = world.connect("stuck", SHARED), world.connect("fine", SHARED, permits=3)
    stuck.is_writable = False
    world.publish(10)
    await settle()
    assert (stuck.ids, fine.ids) == ([], [0, 1, 2])
    stuck.is_writable = True
    world.subscription.resume(stuck.consumer)
    await settle()
    assert stuck.ids == [3, 4, 5, 6, 7, 8, 9]


async def test_messages_of_a_batch_are_acknowledged_one_by_one_and_the_rest_is_delivered_again() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=4)
    world.publish(1, batch=4)
    await settle()
    position = world.topic.position(0)
    world.subscription.acknowledge_batch(consumer.consumer, position, [0b1010], 4)
    assert consumer.consumer.unacked_messages == 2
    world.subscription.acknowledge_batch(consumer.consumer, position, [0b1000], 4)
    assert consumer.consumer.unacked_messages == 1
    consumer.nack(0)
    consumer.flow(10)
    await settle()
    assert consumer.deliveries[-1][2] == [0b1000]
    assert consumer.consumer.permits == 9
    world.subscription.acknowledge_batch(consumer.consumer, position, [0], 4)
    assert (consumer.consumer.unacked_messages, world.backlog) == (0, 0)
    assert not consumer.consumer.pending


async def test_markers_are_acknowledged_and_never_delivered() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(1)
    world.publish(2, marker_type=10)
    world.publish(1)
    await settle()
    assert consumer.ids == [0, 3]
    consumer.ack(0, 3)
    assert world.backlog == 0


async def test_an_entry_that_is_no_message_is_acknowledged_and_never_delivered() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.topic.append(b"\x00")
    world.topic.append(b"\x0e\x02\xff\xff\xff\xff not an entry")
    world.publish(1)
    await settle()
    assert consumer.ids == [2]
    assert world.backlog == 1


async def test_delivery_stops_at_an_entry_of_a_transaction() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(2)
    world.publish(1, txnid_most_bits=1, txnid_least_bits=2)
    world.publish(2)
    await settle()
    assert consumer.ids == [0, 1]
    await world.subscription.skip(3)
    await settle()
    assert consumer.ids == [0, 1, 3, 4]


async def test_chunks_of_one_message_go_to_one_consumer_in_order_and_others_go_on_meanwhile() -> None:
    world = World(round_robin_messages_max=1)
    one, other = world.connect("one", SHARED, permits=2), world.connect("other", SHARED, permits=20)
    for chunk in range(4):
        world.publish(1, uuid="u", chunk_id=chunk, num_chunks_from_msg=4)
        world.publish(1)
    await settle()
    chunks = {0, 2, 4, 6}
    holder, free = (one, other) if 0 in one.ids else (other, one)
    assert not chunks & set(free.ids)
    holder.flow(10)
    await settle()
    assert [index for index in holder.ids if index in chunks] == [0, 2, 4, 6]
    assert sorted(one.ids + other.ids) == list(range(8))


async def test_chunks_of_a_consumer_that_leaves_go_to_another_one_all_together() -> None:
    world = World(round_robin_messages_max=1)
    one = world.connect("one", SHARED, permits=2)
    for chunk in range(4):
        world.publish(1, uuid="u", chunk_id=chunk, num_chunks_from_msg=4)
    await settle()
    assert one.ids == [0, 1]
    others = [world.connect(name, SHARED, permits=20) for name in "xy"]
    await settle()
    one.close()
    await settle()
    assert sorted(consumer.ids for consumer in others) == [[], [0, 1, 2, 3]]


async def test_chunks_that_wait_for_their_consumer_have_a_place_and_no_scan_may_bring_them_again() -> None:
    world = World()
    one = world.connect("one", SHARED, permits=2)
    world.connect("other", SHARED, permits=0)
    for chunk in range(4):
        world.publish(1, uuid="u", chunk_id=chunk, num_chunks_from_msg=4)
    await settle()
    world.connect("third", SHARED, permits=1)
    await settle()
    dispatcher = world.subscription._dispatcher
    assert isinstance(dispatcher, SharedDispatcher)
    (waiting,) = dispatcher.waiting_chunks.values()
    assert waiting
    assert dispatcher._already_placed({*one.positions(0, 1), *waiting, world.topic.position(9)}) == {
        *one.positions(0, 1),
        *waiting,
    }


async def test_cumulative_acknowledgement_is_refused() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    with pytest.raises(NotAllowedError, match="acknowledge each message"):
        consumer.ack_to(0)


async def test_another_type_is_refused_while_consumers_are_connected() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    with pytest.raises(SubscriptionTypeError, match="Exclusive"):
        world.connect("other", EXCLUSIVE)
    world.publish(2)
    await settle()
    consumer.ack(0)
    consumer.close()
    other = world.connect("other", EXCLUSIVE)
    await settle()
    assert other.ids == [1]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED, FAILOVER])
async def test_no_more_consumers_than_the_limit_are_accepted(kind: SubscriptionType) -> None:
    world = World(limits=DispatchLimits(consumers_max=2))
    first = world.connect("a", kind)
    world.connect("b", kind)
    with pytest.raises(ConsumerBusyError, match="limit"):
        world.connect("c", kind)
    first.close()
    world.connect("c", kind)


async def test_what_is_not_cached_is_read_in_the_background() -> None:
    world = World()
    world.topic.is_cached = False
    world.publish(120)
    consumers = [world.connect(name, SHARED, permits=50) for name in "ab"]
    for _ in range(20):
        await settle()
        for consumer in consumers:
            consumer.ack(*consumer.ids)
            consumer.flow(10)
        await asyncio.sleep(0.01)
    assert sorted(index for consumer in consumers for index in consumer.ids) == list(range(120))


async def test_acknowledged_entries_are_not_delivered_to_whoever_comes_after_a_restart() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(10)
    await settle()
    consumer.ack(0, 3, 4, 7)
    again = World(topic=world.topic)
    again.cursor.acks = world.cursor.acks
    later = again.connect("later", SHARED)
    await settle()
    assert later.ids == [1, 2, 5, 6, 8, 9]


async def test_entries_of_a_dropped_ledger_are_forgotten() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=60)
    world.publish(60)
    await settle()
    consumer.nack_all()
    world.topic.chain.drop([1])
    world.cursor.acks.settle()
    consumer.flow(100)
    await settle()
    assert consumer.ids[60:] == list(range(50, 60))
    assert world.subscription.statistics().waiting_for_redelivery == 0
