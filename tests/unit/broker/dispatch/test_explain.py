"""Each thing that can hold delivery is named by a fact of its own, with what would end it."""

from __future__ import annotations

import asyncio

from magnetar.broker.consumer import KeySharedMode, KeySharedSettings
from magnetar.broker.dispatch.holding import Hold
from magnetar.broker.dispatch.parts import DispatchLimits
from magnetar.errors import EntryUnavailableError
from tests.unit.bookie.virtual_loop import run
from tests.unit.broker.dispatch.world import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, World, message, settle


def test_caught_up() -> None:
    async def scene() -> None:
        world = World()
        assert set(world.holdings()) == {Hold.CAUGHT_UP}
        assert not world.subscription.explain().is_held

    run(scene())


def test_no_consumer() -> None:
    async def scene() -> None:
        world = World()
        world.publish(3)
        holding = world.holdings()[Hold.NO_CONSUMER]
        assert (holding.entries, holding.position) == (3, world.topic.position(0))
        assert world.subscription.explain().is_held

    run(scene())


def test_no_permits() -> None:
    async def scene() -> None:
        world = World()
        world.connect("lazy", SHARED, permits=2)
        world.publish(5)
        await settle()
        found = world.holdings()
        assert set(found) == {Hold.NO_PERMITS, Hold.UNACKED}
        assert (found[Hold.NO_PERMITS].consumer, found[Hold.NO_PERMITS].entries) == ("lazy", 3)
        assert (found[Hold.UNACKED].consumer, found[Hold.UNACKED].entries) == ("lazy", 2)

    run(scene())


def test_everything_is_with_a_consumer() -> None:
    async def scene() -> None:
        world = World()
        world.connect("busy", EXCLUSIVE)
        world.publish(5)
        await settle()
        found = world.holdings()
        assert set(found) == {Hold.UNACKED}
        assert (found[Hold.UNACKED].consumer, found[Hold.UNACKED].entries) == ("busy", 5)
        assert not world.subscription.explain().is_held

    run(scene())


def test_unacked_limit_of_a_consumer() -> None:
    async def scene() -> None:
        world = World(limits=DispatchLimits(unacked_messages_per_consumer_max=4))
        world.connect("full", SHARED)
        world.publish(9)
        await settle()
        holding = world.holdings()[Hold.UNACKED_LIMIT_CONSUMER]
        assert holding.consumer == "full"
        assert "4" in holding.text
        assert "until 2 are left" in holding.advice

    run(scene())


def test_unacked_limit_of_the_subscription() -> None:
    async def scene() -> None:
        world = World(limits=DispatchLimits(unacked_messages_per_subscription_max=4))
        world.connect("c", SHARED)
        world.publish(9)
        await settle()
        assert "limit is 4" in world.holdings()[Hold.UNACKED_LIMIT_SUBSCRIPTION].text

    run(scene())


def test_a_connection_that_takes_nothing() -> None:
    async def scene() -> None:
        world = World()
        consumer = world.connect("slow", SHARED)
        consumer.is_writable = False
        world.publish(1)
        await settle()
        assert world.holdings()[Hold.CONNECTION_FULL].consumer == "slow"

    run(scene())


def test_a_rate_that_is_used_up() -> None:
    async def scene() -> None:
        world = World(limits=DispatchLimits(messages_per_second=2))
        world.connect("c", SHARED)
        world.publish(9)
        await settle()
        assert "2 messages/s" in world.holdings()[Hold.RATE_LIMIT].text

    run(scene())


def test_the_delay_of_a_failover() -> None:
    async def scene() -> None:
        world = World(partition=0, failover_delay_ms=1_000)
        first = world.connect("a", FAILOVER)
        world.connect("b", FAILOVER)
        world.publish(2)
        await settle()
        first.close()
        await settle()
        holding = world.holdings()[Hold.FAILOVER_DELAY]
        assert holding.consumer == "b"
        assert holding.until_ms == world.now_ms + 1_000

    run(scene())


def test_a_hash_that_drains_on_another_consumer() -> None:
    async def scene() -> None:
        world = World()
        world.connect("old", KEY_SHARED)
        world.publish_keys("abcdefghijkl")
        await settle()
        new = world.connect("new", KEY_SHARED)
        world.publish_keys("abcdefghijkl")
        await settle()
        draining = [holding for holding in world.subscription.explain().holdings if holding.hold is Hold.HASH_DRAINING]
        assert draining
        assert {holding.consumer for holding in draining} == {"old"}
        assert all("'new'" in holding.text and holding.entries == 1 for holding in draining)
        statistics = {one.name: one for one in world.subscription.statistics().consumers}
        assert {one.key_hash for one in statistics["old"].draining_hashes} == {one.key_hash for one in draining}
        assert not new.ids

    run(scene())


def test_a_hash_that_nobody_takes() -> None:
    async def scene() -> None:
        world = World()
        sticky = KeySharedSettings(KeySharedMode.STICKY, ((0, 1),))
        world.connect("narrow", KEY_SHARED, key_shared=sticky)
        world.publish_keys("a")
        await settle()
        holding = world.holdings()[Hold.HASH_UNASSIGNED]
        assert holding.entries == 1
        assert str(holding.key_hash) in holding.text

    run(scene())


def test_the_look_ahead_limit() -> None:
    async def scene() -> None:
        world = World(key_shared_look_ahead_per_consumer=3, key_shared_look_ahead_per_subscription=3)
        world.connect("narrow", KEY_SHARED, key_shared=KeySharedSettings(KeySharedMode.STICKY, ((0, 1),)))
        world.publish_keys("abcdef")
        await settle()
        assert world.holdings()[Hold.LOOK_AHEAD_LIMIT].position == world.topic.position(3)

    run(scene())


def test_chunks_that_wait_for_their_consumer() -> None:
    async def scene() -> None:
        world = World(round_robin_messages_max=1)
        one, other = world.connect("one", SHARED, permits=1), world.connect("other", SHARED, permits=1)
        for chunk in range(3):
            world.publish(1, uuid="u", chunk_id=chunk, num_chunks_from_msg=3)
        await settle()
        holder, free = (one, other) if one.ids else (other, one)
        free.flow(5)
        await settle()
        holding = world.holdings()[Hold.CHUNKS_WAIT]
        assert (holding.consumer, holding.entries) == (holder.name, 2)
        assert not free.ids

    run(scene())


def test_delays() -> None:
    async def scene() -> None:
        world = World()
        world.connect("c", SHARED)
        due_ms = world.now_ms + 60_000
        world.publish(2, deliver_at_time=due_ms)
        await settle()
        found = world.holdings()
        assert set(found) == {Hold.DELAYED}
        assert (found[Hold.DELAYED].entries, found[Hold.DELAYED].until_ms) == (2, due_ms)

    run(scene())


def test_reading_that_is_paused_by_delays() -> None:
    async def scene() -> None:
        world = World(delayed_lookahead_entries=5, read_entries_max=5)
        world.connect("c", SHARED)
        for index in range(20):
            world.topic.append(message(index, deliver_at_time=world.now_ms + 60_000 + index * 1_000))
        world.topic.tell()
        await settle()
        assert world.holdings()[Hold.DELAY_PAUSED].position == world.topic.position(5)

    run(scene())


def test_a_ledger_that_cannot_be_read() -> None:
    async def scene() -> None:
        world = World()
        world.topic.is_cached = False
        world.connect("c", SHARED)
        world.topic.failures[world.topic.position(1)] = EntryUnavailableError("bookies b1, b2 are down")
        world.publish(3)
        await asyncio.sleep(5)
        holding = world.holdings()[Hold.UNREADABLE]
        assert holding.position == world.topic.position(1)
        assert "ledger 1 cannot be read at entry 1" in holding.text
        assert "b1, b2 are down" in holding.text

    run(scene())


def test_a_read_under_way() -> None:
    async def scene() -> None:
        world = World()
        world.topic.is_cached = False
        world.topic.gate = asyncio.Event()
        world.connect("c", SHARED)
        world.publish(3)
        await settle()
        assert world.holdings()[Hold.READING].position == world.topic.position(0)
        world.topic.gate.set()

    run(scene())


def test_an_entry_of_a_transaction() -> None:
    async def scene() -> None:
        world = World()
        world.connect("c", SHARED)
        world.publish(1, txnid_most_bits=1, txnid_least_bits=1)
        await settle()
        assert world.holdings()[Hold.TRANSACTIONAL].position == world.topic.position(0)

    run(scene())


def test_a_seek_under_way() -> None:
    async def scene() -> None:
        world = World()
        world.publish(1)
        world.cursor.reset_gate = asyncio.Event()
        seeking = asyncio.create_task(world.subscription.seek(world.topic.position(0)))
        await settle()
        assert "reset" in world.holdings()[Hold.FENCED].text
        world.cursor.reset_gate.set()
        await seeking

    run(scene())


def test_delayed_entries_that_are_being_found_again() -> None:
    async def scene() -> None:
        world = World(delayed_index_entries_max=1_000, delayed_lookahead_entries=0, delayed_strict=True)
        world.connect("c", SHARED, permits=100_000)
        due_ms = world.now_ms + 60_000
        for index in range(6_000):
            world.topic.append(message(index, deliver_at_time=due_ms + index))
        world.topic.tell()
        await settle(10_000)
        assert "more" in world.holdings()[Hold.DELAYED].text
        world.topic.gate = asyncio.Event()
        await asyncio.sleep(63)
        assert Hold.DELAY_SCAN in world.holdings()
        world.topic.gate.set()

    run(scene())
