from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.dispatch import shared
from magnetar.broker.dispatch.blockers import BlockerKind
from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.dispatch.shared import SharedDispatcher
from tests.unit.broker.dispatch.world import SHARED, Inbox, World, settle

pytestmark = pytest.mark.virtual_time


def publish_chunks(world: World, first: int, end: int, *, of: int, uuid: str = "u") -> None:
    for chunk in range(first, end):
        world.publish(1, uuid=uuid, chunk_id=chunk, num_chunks_from_msg=of)


def dispatcher_of(world: World) -> SharedDispatcher:
    dispatcher = world.subscription._dispatcher
    assert isinstance(dispatcher, SharedDispatcher)
    return dispatcher


async def waiting_for_the_first(world: World, *, permits: int = 1) -> tuple[Inbox, Inbox, Inbox]:
    """Chunk 0 is with the first of these, which can take no more; 1 to 3, the last, wait for it although the others
    could take them. The third one is next, as it has waited longest."""
    next_one = world.connect("next", SHARED, permits=0)
    owner = world.connect("owner", SHARED, permits=permits)
    publish_chunks(world, 0, 1, of=4)
    await settle()
    other = world.connect("other", SHARED, permits=20)
    publish_chunks(world, 1, 4, of=4)
    await settle()
    next_one.flow(20)
    await settle()
    assert (owner.ids, other.ids, next_one.ids) == ([0], [], [])
    assert world.blockers()[BlockerKind.CHUNKS_WAIT].entries == 3
    return owner, other, next_one


async def test_chunks_that_waited_with_the_last_one_go_to_the_consumer_that_has_the_first() -> None:
    world = World(round_robin_messages_max=1)
    owner, other, next_one = await waiting_for_the_first(world)
    owner.flow(20)
    await settle()
    assert (owner.ids, other.ids, next_one.ids) == ([0, 1, 2, 3], [], [])


async def test_chunks_that_waited_go_one_by_one_as_the_permits_of_their_consumer_come() -> None:
    world = World(round_robin_messages_max=1)
    owner, _, _ = await waiting_for_the_first(world)
    for received in range(2, 5):
        owner.flow(1)
        await settle()
        assert owner.ids == list(range(received))


async def test_chunks_that_waited_for_acknowledgements_go_to_the_consumer_that_has_the_first() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=1), round_robin_messages_max=1)
    owner, _, _ = await waiting_for_the_first(world, permits=20)
    for received in range(1, 5):
        assert owner.ids == list(range(received))
        owner.ack(received - 1)
        await settle()


async def test_chunks_that_waited_for_a_consumer_that_leaves_go_to_one_other_in_order() -> None:
    world = World(round_robin_messages_max=1)
    owner, other, next_one = await waiting_for_the_first(world)
    third = world.connect("third", SHARED, permits=2)
    owner.close()
    await settle()
    third.flow(20)
    await settle()
    assert sorted([other.ids, next_one.ids, third.ids]) == [[], [], [0, 1, 2, 3]]


async def test_the_consumer_of_a_message_is_forgotten_when_its_last_chunk_is_delivered() -> None:
    world = World(round_robin_messages_max=1)
    owner, _, _ = await waiting_for_the_first(world)
    assert dispatcher_of(world)._chunk_owner == {"u": owner.consumer}
    owner.flow(20)
    publish_chunks(world, 0, 2, of=2, uuid="v")
    await settle()
    assert dispatcher_of(world)._chunk_owner == {}


async def test_a_message_whose_last_chunk_never_comes_is_forgotten_with_its_consumer() -> None:
    world = World()
    owner = world.connect("owner", SHARED)
    world.connect("other", SHARED, permits=0)
    publish_chunks(world, 0, 2, of=4)
    await settle()
    assert dispatcher_of(world)._chunk_owner == {"u": owner.consumer}
    owner.ack(0, 1)
    owner.close()
    assert dispatcher_of(world)._chunk_owner == {}


async def test_of_messages_whose_last_chunks_never_come_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_CHUNKED_MESSAGES_MAX", 3)
    world = World()
    world.connect("owner", SHARED)
    for uuid in "abc":
        publish_chunks(world, 0, 1, of=3, uuid=uuid)
    publish_chunks(world, 1, 2, of=3, uuid="a")
    for uuid in "de":
        publish_chunks(world, 0, 1, of=3, uuid=uuid)
    await settle()
    assert list(dispatcher_of(world)._chunk_owner) == ["a", "d", "e"]


async def test_chunks_that_waited_and_were_skipped_no_longer_hold_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_WAITING_CHUNKS_MAX", 3)
    world = World(round_robin_messages_max=1)
    owner, other, next_one = await waiting_for_the_first(world)
    world.publish(1)
    await settle()
    assert other.ids + next_one.ids == []
    await world.subscription.skip(3)
    await settle()
    assert other.ids + next_one.ids == [4]
    assert world.blockers()[BlockerKind.CHUNKS_WAIT].position == world.topic.position(3)
    await world.subscription.clear_backlog()
    assert BlockerKind.CHUNKS_WAIT not in world.blockers()
    owner.flow(20)
    await settle()
    assert owner.ids == [0]


async def test_a_consumer_that_gives_messages_back_gets_the_chunks_that_waited_for_it() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=3), round_robin_messages_max=1)
    owner = world.connect("owner", SHARED)
    world.publish(2)
    publish_chunks(world, 0, 1, of=3)
    await settle()
    other = world.connect("other", SHARED)
    publish_chunks(world, 1, 3, of=3)
    await settle()
    assert (owner.ids, other.ids) == ([0, 1, 2], [])
    owner.nack(0, 1)
    await settle()
    assert [index for index in owner.ids if index > 1] == [2, 3]
    owner.ack(*set(owner.ids))
    await settle()
    assert [index for index in owner.ids if index > 1] == [2, 3, 4]


async def test_chunks_wait_for_acknowledgements_also_after_a_consumer_gave_back_what_it_did_not_have() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=1), round_robin_messages_max=1)
    owner, _, _ = await waiting_for_the_first(world, permits=20)
    owner.nack(99)
    await settle()
    assert owner.ids == [0]
    for received in range(1, 5):
        assert owner.ids == list(range(received))
        owner.ack(received - 1)
        await settle()


async def test_chunks_of_a_consumer_that_leaves_are_not_overtaken_by_those_that_were_read_behind_them() -> None:
    world = World(round_robin_messages_max=1)
    world.topic.is_cached = False
    owner = world.connect("owner", SHARED, permits=1)
    publish_chunks(world, 0, 4, of=4)
    await asyncio.sleep(1)
    assert owner.ids == [0]
    other = world.connect("other", SHARED, permits=0)
    owner.close()
    other.flow(20)
    await asyncio.sleep(1)
    assert other.ids == [0, 1, 2, 3]


@pytest.mark.parametrize("everything", [False, True])
async def test_chunks_that_are_given_back_are_not_overtaken_by_those_that_were_read_behind_them(
    everything: bool,
) -> None:
    world = World(round_robin_messages_max=1)
    world.topic.is_cached = False
    owner = world.connect("owner", SHARED, permits=2)
    publish_chunks(world, 0, 4, of=4)
    await asyncio.sleep(1)
    assert owner.ids == [0, 1]
    other = world.connect("other", SHARED)
    if everything:
        owner.nack_all()
    else:
        owner.nack(1)
    owner.flow(20)
    await asyncio.sleep(1)
    assert owner.ids[2:] == ([0, 1, 2, 3] if everything else [1, 2, 3])
    assert other.ids == []


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_message_whose_chunks_are_all_given_back_goes_to_one_consumer_in_order(is_cached: bool) -> None:
    world = World(round_robin_messages_max=1)
    world.topic.is_cached = is_cached
    first = world.connect("first", SHARED, permits=4)
    publish_chunks(world, 0, 4, of=4)
    await asyncio.sleep(1)
    assert first.ids == [0, 1, 2, 3]
    small, large = world.connect("small", SHARED, permits=2), world.connect("large", SHARED, permits=20)
    first.nack(3, 1, 0, 2)
    world.publish(3)
    await asyncio.sleep(1)
    assert [index for index in large.ids if index > 3]
    assert small.ids == [0, 1]
    small.flow(20)
    await asyncio.sleep(1)
    assert small.ids[:4] == [0, 1, 2, 3]
