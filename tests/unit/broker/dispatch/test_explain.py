"""Each thing that can hold delivery is named by a fact of its own, with what would end it."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.dispatch.blockers import BlockerKind
from magnetar.broker.dispatch.context import DispatchLimits
from magnetar.broker.policies.values import DispatchRate
from magnetar.broker.subscriptions.consumer import ConsumerAbout, KeySharedMode, KeySharedSettings, SubscriptionType
from magnetar.errors import EntryUnavailableError
from tests.unit.broker.dispatch.world import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, World, message, settle

pytestmark = pytest.mark.virtual_time


async def test_caught_up() -> None:
    world = World()
    assert set(world.blockers()) == {BlockerKind.CAUGHT_UP}
    assert not world.subscription.explain().is_blocked


async def test_no_consumer() -> None:
    world = World()
    world.publish(3)
    blocker = world.blockers()[BlockerKind.NO_CONSUMER]
    assert (blocker.entries, blocker.position) == (3, world.topic.position(0))
    assert world.subscription.explain().is_blocked


async def test_no_permits() -> None:
    world = World()
    world.connect("lazy", SHARED, permits=2)
    world.publish(5)
    await settle()
    found = world.blockers()
    assert set(found) == {BlockerKind.NO_PERMITS, BlockerKind.UNACKED}
    assert (found[BlockerKind.NO_PERMITS].consumer, found[BlockerKind.NO_PERMITS].entries) == ("lazy", 3)
    assert (found[BlockerKind.UNACKED].consumer, found[BlockerKind.UNACKED].entries) == ("lazy", 2)


async def test_a_consumer_without_a_name_is_named_by_its_id_and_address() -> None:
    world = World()
    inbox = world.connect("", SHARED, permits=2, about=ConsumerAbout(address="127.0.0.1:5000"))
    world.publish(5)
    await settle()
    found = world.blockers()
    no_permits = found[BlockerKind.NO_PERMITS]
    assert f"consumer {inbox.consumer.consumer_id} of 127.0.0.1:5000 has granted" in no_permits.text
    assert "consumer ''" not in "".join(blocker.text for blocker in found.values())


async def test_everything_is_with_a_consumer() -> None:
    world = World()
    world.connect("busy", EXCLUSIVE)
    world.publish(5)
    await settle()
    found = world.blockers()
    assert set(found) == {BlockerKind.UNACKED}
    assert (found[BlockerKind.UNACKED].consumer, found[BlockerKind.UNACKED].entries) == ("busy", 5)
    assert not world.subscription.explain().is_blocked


async def test_unacked_limit_of_a_consumer() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=4))
    world.connect("full", SHARED)
    world.publish(9)
    await settle()
    blocker = world.blockers()[BlockerKind.UNACKED_LIMIT_CONSUMER]
    assert blocker.consumer == "full"
    assert "4" in blocker.text
    assert "until 2 are left" in blocker.advice


async def test_unacked_limit_of_the_subscription() -> None:
    world = World(limits=DispatchLimits(unacked_messages_per_subscription_max=4))
    world.connect("c", SHARED)
    world.publish(9)
    await settle()
    assert "limit is 4" in world.blockers()[BlockerKind.UNACKED_LIMIT_SUBSCRIPTION].text


async def test_a_connection_that_takes_nothing() -> None:
    world = World()
    consumer = world.connect("slow", SHARED)
    consumer.is_writable = False
    world.publish(1)
    await settle()
    assert world.blockers()[BlockerKind.CONNECTION_FULL].consumer == "slow"


async def test_a_rate_that_is_used_up() -> None:
    world = World(limits=DispatchLimits(rate=DispatchRate(2, -1)))
    world.connect("c", SHARED)
    world.publish(9)
    await settle()
    assert "2 messages/s" in world.blockers()[BlockerKind.RATE_LIMIT].text


async def test_the_delay_of_a_failover() -> None:
    world = World(partition=0, failover_delay_ms=1_000)
    first = world.connect("a", FAILOVER)
    world.connect("b", FAILOVER)
    world.publish(2)
    await settle()
    first.close()
    await settle()
    blocker = world.blockers()[BlockerKind.FAILOVER_DELAY]
    assert blocker.consumer == "b"
    assert blocker.until_ms == world.now_ms + 1_000


async def test_a_hash_that_drains_on_another_consumer() -> None:
    world = World()
    world.connect("old", KEY_SHARED)
    world.publish_keys("abcdefghijkl")
    await settle()
    new = world.connect("new", KEY_SHARED)
    world.publish_keys("abcdefghijkl")
    await settle()
    draining = [
        blocker for blocker in world.subscription.explain().blockers if blocker.kind is BlockerKind.HASH_DRAINING
    ]
    assert draining
    assert {blocker.consumer for blocker in draining} == {"old"}
    assert all("'new'" in blocker.text and blocker.entries == 1 for blocker in draining)
    statistics = {one.name: one for one in world.subscription.statistics().consumers}
    assert {one.key_hash for one in statistics["old"].draining_hashes} == {one.key_hash for one in draining}
    assert not new.ids


async def test_a_hash_that_nobody_takes() -> None:
    world = World()
    sticky = KeySharedSettings(KeySharedMode.STICKY, ((0, 1),))
    world.connect("narrow", KEY_SHARED, key_shared=sticky)
    world.publish_keys("a")
    await settle()
    blocker = world.blockers()[BlockerKind.HASH_UNASSIGNED]
    assert blocker.entries == 1
    assert str(blocker.key_hash) in blocker.text


async def test_the_look_ahead_limit() -> None:
    world = World(key_shared_look_ahead_per_consumer=3, key_shared_look_ahead_per_subscription=3)
    world.connect("narrow", KEY_SHARED, key_shared=KeySharedSettings(KeySharedMode.STICKY, ((0, 1),)))
    world.publish_keys("abcdef")
    await settle()
    assert world.blockers()[BlockerKind.LOOK_AHEAD_LIMIT].position == world.topic.position(3)


async def test_chunks_that_wait_for_their_consumer() -> None:
    world = World(round_robin_messages_max=1)
    one, other = world.connect("one", SHARED, permits=1), world.connect("other", SHARED, permits=1)
    for chunk in range(3):
        world.publish(1, uuid="u", chunk_id=chunk, num_chunks_from_msg=3)
    await settle()
    holder, free = (one, other) if one.ids else (other, one)
    free.flow(5)
    await settle()
    blocker = world.blockers()[BlockerKind.CHUNKS_WAIT]
    assert (blocker.consumer, blocker.entries) == (holder.name, 2)
    assert not free.ids


async def test_delays() -> None:
    world = World()
    world.connect("c", SHARED)
    due_ms = world.now_ms + 60_000
    world.publish(2, deliver_at_time=due_ms)
    await settle()
    found = world.blockers()
    assert set(found) == {BlockerKind.DELAYED}
    assert (found[BlockerKind.DELAYED].entries, found[BlockerKind.DELAYED].until_ms) == (2, due_ms)


async def test_reading_that_is_paused_by_delays() -> None:
    world = World(delayed_lookahead_entries=5, read_entries_max=5)
    world.connect("c", SHARED)
    for index in range(20):
        world.topic.append(message(index, deliver_at_time=world.now_ms + 60_000 + index * 1_000))
    world.topic.tell()
    await settle()
    assert world.blockers()[BlockerKind.DELAY_PAUSED].position == world.topic.position(5)


async def test_a_ledger_that_cannot_be_read() -> None:
    world = World()
    world.topic.is_cached = False
    world.connect("c", SHARED)
    world.topic.failures[world.topic.position(1)] = EntryUnavailableError("bookies b1, b2 are down")
    world.publish(3)
    await asyncio.sleep(5)
    blocker = world.blockers()[BlockerKind.UNREADABLE]
    assert blocker.position == world.topic.position(1)
    assert "ledger 1 cannot be read at entry 1" in blocker.text
    assert "b1, b2 are down" in blocker.text


async def test_a_read_under_way() -> None:
    world = World()
    world.topic.is_cached = False
    world.topic.gate = asyncio.Event()
    world.connect("c", SHARED)
    world.publish(3)
    await settle()
    assert world.blockers()[BlockerKind.READING].position == world.topic.position(0)
    world.topic.gate.set()


async def test_an_entry_of_a_transaction() -> None:
    world = World()
    world.connect("c", SHARED)
    world.publish(1, txnid_most_bits=1, txnid_least_bits=1)
    await settle()
    assert world.blockers()[BlockerKind.TRANSACTIONAL].position == world.topic.position(0)


async def test_a_seek_under_way() -> None:
    world = World()
    world.publish(1)
    world.cursor.reset_gate = asyncio.Event()
    seeking = asyncio.create_task(world.subscription.seek(world.topic.position(0)))
    await settle()
    assert "reset" in world.blockers()[BlockerKind.FENCED].text
    world.cursor.reset_gate.set()
    await seeking


async def test_delayed_entries_that_are_being_found_again() -> None:
    world = World(delayed_index_entries_max=1_000, delayed_lookahead_entries=0, delayed_strict=True)
    world.connect("c", SHARED, permits=100_000)
    due_ms = world.now_ms + 60_000
    for index in range(6_000):
        world.topic.append(message(index, deliver_at_time=due_ms + index))
    world.topic.tell()
    await settle(10_000)
    assert "more" in world.blockers()[BlockerKind.DELAYED].text
    world.topic.gate = asyncio.Event()
    await asyncio.sleep(63)
    assert BlockerKind.DELAY_SCAN in world.blockers()
    world.topic.gate.set()


# --- messages, not entries --------------------------------------------------------------------------------------------


async def texts(world: World) -> list[str]:
    return [blocker.text for blocker in (await world.explain()).blockers]


async def test_a_batch_that_waits_for_a_consumer_counts_as_its_messages() -> None:
    world = World()
    world.publish(1, batch=995)
    explained = await world.explain()
    assert (explained.backlog_entries, explained.backlog_messages, explained.is_exact) == (1, 995, True)
    (blocker,) = explained.blockers
    assert blocker.text == "no consumer is connected; 995 messages wait"
    assert (blocker.entries, blocker.messages) == (1, 995)


async def test_messages_of_a_batch_that_are_acknowledged_do_not_wait() -> None:
    world = World()
    inbox = world.connect("c", SHARED)
    world.publish(2, batch=10)
    await settle()
    world.subscription.acknowledge_batch(inbox.consumer, world.topic.position(0), [0b1111], 10)
    assert await texts(world) == ["consumer 'c' has not acknowledged 14 messages"]
    inbox.close()
    assert await texts(world) == ["no consumer is connected; 14 messages wait"]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_messages_with_a_consumer_and_messages_that_wait_are_told_apart(kind: SubscriptionType) -> None:
    world = World()
    inbox = world.connect("c", kind, permits=8)
    world.publish(5, batch=4)
    await settle()
    found = {each.kind: each for each in (await world.explain()).blockers}
    assert (found[BlockerKind.UNACKED].entries, found[BlockerKind.UNACKED].messages) == (2, 8)
    assert (found[BlockerKind.NO_PERMITS].entries, found[BlockerKind.NO_PERMITS].messages) == (3, 12)
    inbox.ack(0)
    found = {each.kind: each for each in (await world.explain()).blockers}
    assert found[BlockerKind.UNACKED].text == "consumer 'c' has not acknowledged 4 messages"


async def test_messages_that_were_given_back_wait_again() -> None:
    world = World()
    inbox = world.connect("c", SHARED, permits=8)
    world.publish(5, batch=4)
    await settle()
    inbox.nack(0)
    await settle()
    found = {each.kind: each for each in (await world.explain()).blockers}
    assert (found[BlockerKind.NO_PERMITS].entries, found[BlockerKind.NO_PERMITS].messages) == (4, 16)


async def test_a_key_that_drains_says_how_many_messages_are_left() -> None:
    world = World()
    world.connect("old", KEY_SHARED)
    for key in "abcdefghijkl":
        world.publish(1, key=key, batch=3)
    await settle()
    world.connect("new", KEY_SHARED)
    for key in "abcdefghijkl":
        world.publish(1, key=key, batch=3)
    await settle()
    found = (await world.explain()).blockers
    draining = [each.text for each in found if each.kind is BlockerKind.HASH_DRAINING]
    assert draining
    assert all("still has 3 messages of it unacknowledged" in text for text in draining)


async def test_entries_without_an_index_are_the_least_that_waits() -> None:
    world = World()
    world.topic.has_index = False
    world.publish(2, batch=7)
    explained = await world.explain()
    assert (explained.backlog_entries, explained.backlog_messages, explained.is_exact) == (2, 2, False)
    assert await texts(world) == ["no consumer is connected; at least 2 messages wait"]


async def test_bookies_that_do_not_answer_hold_an_explanation_for_a_second() -> None:
    world = World()
    world.publish(2, batch=7)
    world.topic.gate = asyncio.Event()
    began = asyncio.get_running_loop().time()
    assert not (await world.explain()).is_exact
    assert asyncio.get_running_loop().time() - began <= 1.1
