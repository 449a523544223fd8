from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.dispatch.blockers import Progress
from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.dispatch.rate_bucket import RateBucket
from magnetar.broker.policies.values import DispatchRate
from magnetar.errors import ConsumerBusyError, EntryUnavailableError, SubscriptionFencedError
from magnetar.topic.position import EARLIEST, LATEST, Position
from tests.unit.broker.dispatch.world import EXCLUSIVE, SHARED, World, settle
from tests.virtual_time import run

pytestmark = pytest.mark.virtual_time


async def test_seek_disconnects_consumers_and_whoever_comes_back_reads_from_there() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(10)
    await settle()
    consumer.ack(*range(10))
    await world.subscription.seek(world.topic.position(4))
    assert consumer.disconnects
    assert not world.subscription.consumers
    again = world.connect("again", SHARED)
    await settle()
    assert again.ids == [4, 5, 6, 7, 8, 9]
    await world.subscription.seek(EARLIEST)
    first = world.connect("first", SHARED, permits=2)
    await settle()
    assert first.ids == [0, 1]
    await world.subscription.seek(LATEST)
    last = world.connect("last", SHARED)
    await settle()
    assert last.ids == []
    world.publish(1)
    await settle()
    assert last.ids == [10]


async def test_seek_into_a_batch_delivers_the_rest_of_it() -> None:
    world = World()
    world.publish(2, batch=4)
    await world.subscription.seek(world.topic.position(0), [0b1100], 4)
    consumer = world.connect("c", EXCLUSIVE)
    await settle()
    assert [ack_set for _, _, ack_set in consumer.deliveries] == [[0b1100], None]


async def test_consumers_are_refused_until_a_seek_has_ended() -> None:
    world = World()
    world.publish(3)
    world.cursor.reset_gate = asyncio.Event()
    seeking = asyncio.create_task(world.subscription.seek(world.topic.position(2)))
    await settle()
    assert world.subscription.is_fenced
    with pytest.raises(SubscriptionFencedError, match="reset"):
        world.connect("c", SHARED)
    with pytest.raises(SubscriptionFencedError):
        await world.subscription.seek(EARLIEST)
    world.cursor.reset_gate.set()
    await seeking
    consumer = world.connect("c", SHARED)
    await settle()
    assert consumer.ids == [2]


async def test_acknowledgements_from_before_a_seek_do_not_count_after_it() -> None:
    world = World()
    consumer = world.connect("c", SHARED)
    world.publish(3)
    await settle()
    await world.subscription.seek(EARLIEST)
    consumer.ack(0, 1, 2)
    assert world.backlog == 3


async def test_unsubscribe_is_refused_while_others_are_connected() -> None:
    world = World()
    one, other = world.connect("one", SHARED), world.connect("other", SHARED)
    with pytest.raises(ConsumerBusyError, match="'other'"):
        await world.subscription.unsubscribe(one.consumer)
    assert len(world.subscription.consumers) == 2
    await world.subscription.unsubscribe(one.consumer, force=True)
    assert other.disconnects
    assert not one.disconnects
    with pytest.raises(SubscriptionFencedError):
        world.connect("late", SHARED)


async def test_clearing_the_backlog_takes_messages_out_of_consumers_hands() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=4)
    world.publish(10)
    await settle()
    consumer.nack(0)
    assert await world.subscription.clear_backlog() == 10
    assert (world.backlog, consumer.consumer.unacked_messages) == (0, 0)
    consumer.flow(10)
    world.publish(1)
    await settle()
    assert consumer.ids[4:] == [10]
    assert world.cursor.flushes


async def test_skipping_counts_unacknowledged_entries_only() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=5)
    world.publish(100)
    await settle()
    consumer.ack(1, 3)
    assert await world.subscription.skip(3) == 3
    assert world.cursor.mark_delete == world.topic.position(4)
    assert await world.subscription.skip(1_000) == 95
    assert await world.subscription.skip(1) == 0


async def test_expiry_acknowledges_what_was_published_before_a_time() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=2)
    world.publish(10)  # Published at 1000, 1001, …
    await settle()
    assert await world.subscription.expire(1_000) == 0
    assert await world.subscription.expire(1_004) == 4
    assert consumer.consumer.unacked_messages == 0
    consumer.flow(100)
    await settle()
    assert consumer.ids == [0, 1, 4, 5, 6, 7, 8, 9]
    assert await world.subscription.expire(10**9) == 6
    assert world.subscription.statistics().expired_entries == 10


async def test_peeking_shows_unacknowledged_entries_and_changes_nothing() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=60)
    world.publish(60)
    await settle()
    consumer.ack(0, 2, *range(40, 55))
    peeked = [await world.subscription.peek(number) for number in range(1, 46)]
    shown = [world.topic.index(entry.position) for entry in peeked if entry is not None]
    assert shown == [1, *range(3, 40), *range(55, 60)]
    assert peeked[43:] == [None, None]
    assert world.backlog == 43


async def test_peeking_far_into_a_backlog_reads_the_one_entry_that_is_shown() -> None:
    world = World()
    for _ in range(30):
        world.publish(400)
    world.topic.is_cached = False
    peeked = await world.subscription.peek(12_000)
    assert peeked is not None
    assert world.topic.index(peeked.position) == 11_999
    assert len(world.topic.reads) == 1
    assert await world.subscription.peek(12_001) is None
    assert len(world.topic.reads) == 1


async def test_each_consumer_is_told_once_that_a_terminated_topic_is_read_to_its_end() -> None:
    world = World()
    one = world.connect("one", SHARED)
    world.publish(2)
    await settle()
    world.topic.is_terminated = True
    world.subscription.on_topic_terminated()
    one.ack(0)
    assert one.ends == 0
    one.ack(1)
    assert one.ends == 1
    later = world.connect("later", SHARED)
    assert (one.ends, later.ends) == (1, 1)


async def test_a_consumer_whose_connection_breaks_when_it_is_told_of_the_end_is_not_told_when_it_comes_back() -> None:
    world = World()
    world.topic.is_terminated = True
    first = world.connect("c", SHARED)
    assert first.ends == 1
    first.consumer.is_lost = True
    world.subscription.remove_consumer(first.consumer)
    again = world.connect("c", SHARED)
    assert again.ends == 0
    world.subscription.remove_consumer(again.consumer)  # It closes itself: another run of the program follows.
    assert world.connect("c", SHARED).ends == 1


async def test_a_consumer_that_is_lost_long_after_it_was_told_of_the_end_is_told_again() -> None:
    world = World()
    world.topic.is_terminated = True
    first = world.connect("c", SHARED)
    await asyncio.sleep(2.0)
    first.consumer.is_lost = True
    world.subscription.remove_consumer(first.consumer)
    assert world.connect("c", SHARED).ends == 1


async def test_a_dispatch_rate_holds_over_time() -> None:
    world = World(limits=DispatchLimits(rate=DispatchRate(10, -1)))
    consumer = world.connect("c", SHARED)
    world.publish(100)
    await settle()
    assert len(consumer.ids) == 10
    await asyncio.sleep(5.0)
    await settle()
    assert 55 <= len(consumer.ids) <= 61
    world.subscription.update_limits(DispatchLimits())
    await settle()
    assert len(consumer.ids) == 100


async def test_a_rate_of_bytes_holds_too_and_exclusive_consumers_are_no_exception() -> None:
    world = World(limits=DispatchLimits(rate=DispatchRate(-1, 1_000)))
    consumer = world.connect("c", EXCLUSIVE)
    world.publish(200)
    await asyncio.sleep(4.0)
    await settle()
    assert 2_500 < consumer.consumer.delivered_bytes < 7_000 + 1_000


def test_rates_wait_exactly_as_long_as_they_must() -> None:
    rate = RateBucket("r", now=0.0)
    rate.set_rate(DispatchRate(10, -1), 0.0)
    assert rate.available(0.0)[0] == 10
    rate.take(25, 0)
    assert rate.available(0.0)[0] == 0
    assert rate.wait_s(0.0) == pytest.approx(1.6)
    assert rate.available(1.6)[0] == 1
    assert rate.available(1_000.0)[0] == 10


async def test_an_unreadable_entry_is_found_and_everything_before_it_is_delivered() -> None:
    world = World(read_retry_initial_ms=1_000, read_retry_max_ms=4_000)
    world.topic.is_cached = False
    world.publish(20)
    world.topic.failures[world.topic.position(7)] = EntryUnavailableError("all three bookies are down")
    consumer = world.connect("c", SHARED)
    await asyncio.sleep(10)
    assert consumer.ids == list(range(7))
    world.topic.failures.clear()
    await asyncio.sleep(10)
    assert consumer.ids == list(range(20))


def test_what_is_lost_for_certain_is_skipped_if_the_operator_wants_that() -> None:
    class LostError(EntryUnavailableError):
        retryable = False

    async def scene(skip: bool) -> list[int]:
        world = World(skip_unreadable=skip)
        world.topic.is_cached = False
        world.publish(20)
        world.topic.failures[world.topic.position(7)] = LostError("no bookie has it")
        consumer = world.connect("c", SHARED)
        await asyncio.sleep(200)
        return consumer.ids

    assert run(scene(False)) == list(range(7))
    assert run(scene(True)) == [index for index in range(20) if index != 7]


async def test_a_read_that_never_ends_is_given_up_and_tried_again() -> None:
    world = World(read_timeout_ms=2_000)
    world.topic.is_cached = False
    world.topic.gate = asyncio.Event()
    world.publish(3)
    consumer = world.connect("c", SHARED)
    await asyncio.sleep(5)
    assert len(world.topic.reads) >= 2
    world.topic.gate.set()
    await asyncio.sleep(10)
    assert consumer.ids == [0, 1, 2]


async def test_closing_ends_reading_and_disconnects_everybody() -> None:
    world = World()
    world.topic.is_cached = False
    world.topic.gate = asyncio.Event()
    consumer = world.connect("c", SHARED)
    world.publish(3)
    await settle()
    await world.subscription.aclose("bye")
    assert consumer.disconnects == ["bye"]
    world.topic.gate.set()
    await asyncio.sleep(1)
    assert consumer.ids == []
    consumer.ack(0)
    consumer.flow(1)
    assert len(asyncio.all_tasks()) == 1


async def test_the_state_of_one_entry_is_known() -> None:
    world = World(delayed_strict=True)
    world.publish(1, deliver_at_time=world.now_ms + 10_000)
    world.publish(6)
    consumer = world.connect("c", SHARED, permits=3)
    await settle()
    assert consumer.ids == [1, 2, 3]
    consumer.ack(1)
    consumer.nack(2)
    state = world.subscription.state_of
    position = world.topic.position
    assert state(position(0)).progress is Progress.DELAYED
    assert state(position(1)).progress is Progress.ACKNOWLEDGED
    assert (state(position(2)).progress, state(position(2)).redelivery_count) == (Progress.WAITS_FOR_REDELIVERY, 1)
    assert (state(position(3)).progress, state(position(3)).consumer) == (Progress.WITH_CONSUMER, "c")
    assert (state(position(5)).progress, state(position(5)).entries_before) == (Progress.NOT_READ, 5)
    assert state(Position(99, 0)).progress is Progress.NOT_THERE


async def test_statistics_keep_what_consumers_did_that_have_left() -> None:
    world = World()
    consumer = world.connect("c", SHARED, permits=6)
    world.publish(10)
    await settle()
    consumer.nack(0)
    consumer.ack(1, 2)
    consumer.close()
    world.connect("d", SHARED, permits=1)
    await settle()
    statistics = world.subscription.statistics()
    assert (statistics.delivered_entries, statistics.acked_messages, statistics.redelivered_messages) == (7, 2, 1)
    assert [one.name for one in statistics.consumers] == ["d"]
    assert statistics.backlog_entries == 8


async def test_a_subscription_is_active_when_it_is_opened_and_when_somebody_comes_acknowledges_or_leaves() -> None:
    world = World()
    assert world.subscription.last_active_ms == world.now_ms
    await asyncio.sleep(10)
    consumer = world.connect("c", SHARED)
    assert world.subscription.last_active_ms == world.now_ms
    await asyncio.sleep(10)
    world.publish(1)
    await settle()
    assert world.subscription.last_active_ms < world.now_ms
    consumer.ack(0)
    assert world.subscription.last_active_ms == world.now_ms
    await asyncio.sleep(10)
    consumer.close()
    assert world.subscription.last_active_ms == world.now_ms
