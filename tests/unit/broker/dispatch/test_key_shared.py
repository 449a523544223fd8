from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.next_consumer import (
    KeyAssignment,
    RingAssignment,
    SplitAssignment,
    StickyAssignment,
    hash_of_entry,
    key_hash,
)
from magnetar.broker.subscriptions.consumer import Consumer, KeySharedMode, KeySharedSettings
from magnetar.errors import ConsumerAssignError, SubscriptionTypeError
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from tests.unit.broker.dispatch.world import KEY_SHARED, Inbox, World, message, settle
from tests.unit.wire.pulsar.samples import spoiled

pytestmark = pytest.mark.virtual_time

STICKY = KeySharedMode.STICKY
KEYS = "abcdefghijklmnopqrstuvwxyz"


def keys_of(world: World, consumer: Inbox) -> list[str]:
    return [world.topic.entries[index].head.metadata.partition_key for index in consumer.ids]


async def test_a_key_stays_with_one_consumer_and_in_order() -> None:
    world = World()
    consumers = [world.connect(name, KEY_SHARED) for name in ("one", "two", "three")]
    world.publish_keys(KEYS * 4)
    await settle()
    seen = [set(keys_of(world, consumer)) for consumer in consumers]
    assert sum(map(len, seen)) == len(KEYS)
    assert all(seen)
    assert all(consumer.ids == sorted(consumer.ids) for consumer in consumers)


@pytest.mark.parametrize("is_base64", [False, True])
async def test_a_key_that_is_not_utf_8_has_one_consumer_too_and_holds_nobody_up(is_base64: bool) -> None:
    world = World()
    consumers = [world.connect(name, KEY_SHARED) for name in ("one", "two", "three")]
    for index in range(2):
        world.topic.append(spoiled(message(index, key="KKKK", partition_key_b64_encoded=is_base64)))
    world.publish_keys(KEYS)
    await settle()
    assert sorted(each for consumer in consumers for each in consumer.ids) == list(range(28))
    assert any(consumer.ids[:2] == [0, 1] for consumer in consumers)


def test_a_key_in_base64_that_is_not_even_ascii_has_a_hash() -> None:
    entry = LogEntry(Position(1, 0), message(0, key="é", partition_key_b64_encoded=True))
    assert hash_of_entry(entry) == key_hash(b"NONE_KEY")


async def test_a_key_moves_to_a_new_consumer_only_when_the_old_one_has_acknowledged_it() -> None:
    world = World()
    old = world.connect("old", KEY_SHARED)
    world.publish_keys(KEYS)
    await settle()
    new = world.connect("new", KEY_SHARED)
    world.publish_keys(KEYS)
    await settle()
    assert not new.ids
    moved = [at for at in range(26) if 26 + at not in old.ids]
    assert moved
    old.ack(moved[0])
    await settle()
    assert new.ids == [26 + moved[0]]
    old.ack(*moved[1:])
    await settle()
    assert sorted(new.ids) == [26 + at for at in moved]


async def test_keys_of_a_consumer_that_leaves_go_to_the_others_in_order() -> None:
    world = World()
    consumers = [world.connect(name, KEY_SHARED) for name in ("one", "two")]
    world.publish_keys("abcdabcdabcd")
    await settle()
    leaving, staying = consumers
    had = list(leaving.ids)
    assert had
    staying.clear()
    leaving.close()
    await settle()
    assert staying.ids == had


async def test_a_slow_consumer_does_not_hold_the_keys_of_others_up_to_the_look_ahead_limit() -> None:
    world = World(key_shared_look_ahead_per_consumer=10, key_shared_look_ahead_per_subscription=15)
    slow, fast = world.connect("slow", KEY_SHARED, permits=1), world.connect("fast", KEY_SHARED)
    world.publish_keys(KEYS * 20)
    await settle()
    waiting = world.subscription.statistics().waiting_for_redelivery
    assert waiting == 15
    assert len(slow.ids) == 1
    read = len(slow.ids) + len(fast.ids) + waiting
    assert read < 26 * 20
    slow.flow(10_000)
    await settle()
    assert sorted(slow.ids + fast.ids) == list(range(26 * 20))
    for consumer in (slow, fast):
        by_key: dict[str, list[int]] = {}
        for key, index in zip(keys_of(world, consumer), consumer.ids, strict=True):
            by_key.setdefault(key, []).append(index)
        assert all(indexes == sorted(indexes) for indexes in by_key.values())


async def test_later_messages_of_a_key_wait_for_one_that_was_given_back() -> None:
    world = World()
    consumer = world.connect("c", KEY_SHARED, permits=2)
    world.publish_keys("aab")
    await settle()
    consumer.nack(0)
    consumer.is_writable = False
    world.publish_keys("a")
    consumer.flow(10)
    await settle()
    consumer.is_writable = True
    world.subscription.resume(consumer.consumer)
    await settle()
    assert consumer.ids == [0, 1, 0, 2, 3]
    assert consumer.counts == [0, 0, 1, 0, 0]


async def test_later_messages_of_a_key_wait_while_an_earlier_one_is_being_read_again() -> None:
    world = World()
    consumer = world.connect("c", KEY_SHARED)
    world.publish_keys("ab")
    await settle()
    world.topic.cold_before = 2
    world.topic.gate = asyncio.Event()
    consumer.nack(0)
    await settle()
    world.publish_keys("abc")
    await settle()
    assert consumer.ids == [0, 1, 3, 4]
    world.topic.gate.set()
    await asyncio.sleep(1)
    assert consumer.ids == [0, 1, 3, 4, 0, 2]


async def test_sticky_ranges_are_kept_and_what_nobody_takes_waits() -> None:
    world = World()
    low = KeySharedSettings(STICKY, ((0, 29_999),))
    high = KeySharedSettings(STICKY, ((30_000, 65_535),))
    one = world.connect("one", KEY_SHARED, key_shared=low)
    world.publish_keys(KEYS)
    await settle()
    hashes = [hash_of_entry(entry) for entry in world.topic.entries]
    assert one.ids == [at for at, value in enumerate(hashes) if value < 30_000]
    two = world.connect("two", KEY_SHARED, key_shared=high)
    await settle()
    assert two.ids == [at for at, value in enumerate(hashes) if value >= 30_000]


@pytest.mark.parametrize(
    ("ranges", "complaint"),
    [
        ((), "names none"),
        (((5, 4),), "not a key range"),
        (((0, 65_536),), "not a key range"),
        (((-1, 5),), "not a key range"),
        (((0, 10), (10, 20)), "overlap"),
        (((90, 110),), "overlaps 100–200"),
        (((150, 160),), "overlaps 100–200"),
        (((0, 65_535),), "overlaps 100–200"),
    ],
)
async def test_bad_sticky_ranges_are_refused_with_a_reason(ranges: tuple[tuple[int, int], ...], complaint: str) -> None:
    world = World()
    world.connect("one", KEY_SHARED, key_shared=KeySharedSettings(STICKY, ((100, 200),)))
    with pytest.raises(ConsumerAssignError, match=complaint):
        world.connect("two", KEY_SHARED, key_shared=KeySharedSettings(STICKY, ranges))
    assert len(world.subscription.consumers) == 1


async def test_consumers_of_one_subscription_agree_on_mode_and_order() -> None:
    world = World()
    world.connect("one", KEY_SHARED)
    with pytest.raises(SubscriptionTypeError, match="STICKY"):
        world.connect("two", KEY_SHARED, key_shared=KeySharedSettings(STICKY, ((0, 1),)))
    with pytest.raises(SubscriptionTypeError, match="out of order"):
        world.connect("three", KEY_SHARED, key_shared=KeySharedSettings(allow_out_of_order=True))


async def test_out_of_order_lets_a_moved_key_go_on_at_once() -> None:
    world = World()
    settings = KeySharedSettings(allow_out_of_order=True)
    old = world.connect("old", KEY_SHARED, key_shared=settings)
    world.publish_keys(KEYS)
    await settle()
    new = world.connect("new", KEY_SHARED, key_shared=settings)
    world.publish_keys(KEYS)
    await settle()
    assert new.ids
    assert sorted(old.ids + new.ids) == list(range(52))


# --- selectors ---


class _Sink:
    is_writable = True


def consumer(name: str, ranges: tuple[tuple[int, int], ...] = ()) -> Consumer:
    return Consumer(1, name, _Sink(), KEY_SHARED, key_shared=KeySharedSettings(ranges=ranges))  # type: ignore[arg-type]


some_names = st.lists(st.sampled_from(["a", "a", "b", "c", "d"]), min_size=1, max_size=6)


@given(some_names, st.data(), st.sampled_from(["ring", "split"]))
def test_every_hash_has_one_consumer_whoever_comes_and_goes(names: list[str], data: st.DataObject, kind: str) -> None:
    assignment: KeyAssignment = RingAssignment(20) if kind == "ring" else SplitAssignment()
    present: list[Consumer] = []
    for name in names:
        present.append(consumer(name))
        assignment.add(present[-1])
        if len(present) > 1 and data.draw(st.booleans()):
            leaving = present.pop(data.draw(st.integers(0, len(present) - 1)))
            assignment.remove(leaving)
    ranges = assignment.ranges()
    assert ranges[0][0][0] == assignment.first_hash
    assert ranges[-1][0][1] == 65_535
    assert all(before[1] + 1 == after[0] for (before, _), (after, _) in pairwise(ranges))
    for (first, last), owner in ranges:
        assert assignment.owner_of(first) is owner
        assert assignment.owner_of(last) is owner
    assert {id(owner) for _, owner in ranges} <= {id(one) for one in present}


def test_the_ring_is_as_pulsar_makes_it() -> None:
    assignment = RingAssignment(3)
    one = consumer("consumer1")
    assignment.add(one)
    expected = sorted(key_hash(f"consumer1\0000\000{point}".encode(), 1) for point in range(3))
    assert assignment._points == expected
    same_name = consumer("consumer1")
    assignment.add(same_name)
    assert set(assignment._points) > set(expected)
    assignment.remove(one)
    assignment.remove(same_name)
    assert assignment.owner_of(5) is None


def test_a_new_consumer_takes_the_lower_part_of_the_largest_range_as_pulsar_does() -> None:
    assignment = SplitAssignment()
    one, two, three = consumer("one"), consumer("two"), consumer("three")
    assignment.add(one)
    assignment.add(two)
    assert assignment.ranges() == [((0, 32_768), two), ((32_769, 65_535), one)]
    assignment.add(three)
    assert [owner.name for _, owner in assignment.ranges()] == ["three", "two", "one"]
    assignment.remove(one)
    assert [owner.name for _, owner in assignment.ranges()] == ["three", "two"]
    assert assignment.owner_of(65_535) is two


def test_sticky_ranges_find_their_owner_at_both_ends() -> None:
    assignment = StickyAssignment()
    one, two = consumer("one", ((10, 20), (40, 50))), consumer("two", ((21, 39),))
    assignment.add(one)
    assignment.add(two)
    found = [assignment.owner_of(value) for value in (9, 10, 20, 21, 39, 40, 50, 51)]
    assert found == [None, one, one, two, two, one, one, None]
    assignment.remove(one)
    assert [assignment.owner_of(value) for value in (10, 30, 45)] == [None, two, None]
