"""Deduplication that is switched on and off while the topic is served."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from magnetar.broker.publishing.dedup import CURSOR_NAME
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.encode import encode_command
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, MessageIdData
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, broker_world, message

pytestmark = pytest.mark.virtual_time

NOWHERE = (2**64 - 1, 2**64 - 1)
"""The id that a duplicate is answered with."""


def switch(topic: PersistentTopic, *, on: bool) -> None:
    topic.apply(dataclasses.replace(topic.policies, deduplication=on))


async def until_on(topic: PersistentTopic) -> None:
    await until(lambda: topic.publisher.dedup is not None and topic.publisher.dedup.is_ready, "deduplication has begun")


async def publishing(world: BrokerWorld) -> tuple[Talker, PersistentTopic]:
    talker = await world.talker()
    await talker.producer("t", producer_name="p")
    return talker, await world.topic("t")


def place(message_id: MessageIdData) -> tuple[int, int]:
    return message_id.ledgerId, message_id.entryId


def publish_chunk(talker: Talker, sequence_id: int, chunk: int, chunks: int) -> None:
    body = message(b"x", sequence_id, uuid="u", chunk_id=chunk, num_chunks_from_msg=chunks, total_chunk_msg_size=chunks)
    send = BaseCommand(type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": sequence_id, "is_chunk": True})
    frame = encode_command(send)
    talker.write((int.from_bytes(frame[:4], "big") + len(body)).to_bytes(4, "big") + frame[4:] + body)


async def receipts(talker: Talker, count: int) -> list[tuple[int, int]]:
    found = [(await talker.answer(BaseCommand.SEND_RECEIPT)).send_receipt.message_id for _ in range(count)]
    return [place(each) for each in found]


async def test_switched_off_and_on_before_the_first_is_done_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_world() as world:
        talker, topic = await publishing(world)
        switch(topic, on=True)
        await until_on(topic)
        delete, go_on = topic.cursors.delete, asyncio.Event()

        async def slowly(name: str) -> None:
            await go_on.wait()
            await delete(name)

        monkeypatch.setattr(topic.cursors, "delete", slowly)
        switch(topic, on=False)
        await until(lambda: topic.publisher.dedup is None, "the cursor is being deleted")
        switch(topic, on=True)
        go_on.set()
        await until_on(topic)
        await talker.published(1, 0, b"x")
        assert place(await talker.published(1, 0, b"x")) == NOWHERE


async def test_switched_on_and_off_before_the_first_is_done_it_is_off() -> None:
    async with broker_world() as world:
        _, topic = await publishing(world)
        switch(topic, on=True)
        assert topic.cursors.get(CURSOR_NAME) is None
        switch(topic, on=False)
        switch(topic, on=True)
        switch(topic, on=False)
        await until(lambda: not topic.publisher.is_switching_dedup, "all is done")
        assert (topic.publisher.dedup, topic.cursors.get(CURSOR_NAME)) == (None, None)


async def test_what_was_on_its_way_when_it_was_switched_on_is_a_duplicate_afterwards() -> None:
    async with broker_world() as world:
        talker, topic = await publishing(world)
        world.cluster.hang(0)
        talker.publish(1, 0, b"x")
        await until(lambda: topic.log.next_index == 1, "the first is on its way")
        switch(topic, on=True)
        await until(lambda: topic.publisher.dedup is not None, "it is being switched on")
        world.cluster.wake(0)
        await receipts(talker, 1)
        await until_on(topic)
        assert place(await talker.published(1, 0, b"x")) == NOWHERE
        assert topic.log.chain.entries == 1


async def test_what_comes_while_it_is_switched_on_is_let_through_and_a_duplicate_afterwards() -> None:
    async with broker_world() as world:
        talker, topic = await publishing(world)
        world.cluster.hang(0)
        talker.publish(1, 0, b"x")
        await until(lambda: topic.log.next_index == 1, "the first is on its way")
        switch(topic, on=True)
        await until(lambda: topic.publisher.dedup is not None, "it is being switched on")
        talker.publish(1, 1, b"x")
        await until(lambda: topic.log.next_index == 2, "the second is on its way")
        world.cluster.wake(0)
        await receipts(talker, 2)
        await until_on(topic)
        assert place(await talker.published(1, 1, b"x")) == NOWHERE
        assert topic.log.chain.entries == 2


async def test_a_chunk_on_its_way_when_it_was_switched_on_does_not_make_a_duplicate_of_the_next_one() -> None:
    async with broker_world() as world:
        talker, topic = await publishing(world)
        world.cluster.hang(0)
        publish_chunk(talker, 7, 0, 3)
        await until(lambda: topic.log.next_index == 1, "the first chunk is on its way")
        switch(topic, on=True)
        await until(lambda: topic.publisher.dedup is not None, "it is being switched on")
        publish_chunk(talker, 7, 1, 3)
        await until(lambda: topic.log.next_index == 2, "the second chunk is on its way")
        world.cluster.wake(0)
        await receipts(talker, 2)
        await until_on(topic)
        publish_chunk(talker, 7, 2, 3)
        assert await receipts(talker, 1) != [NOWHERE]
        publish_chunk(talker, 7, 2, 3)
        assert await receipts(talker, 1) == [NOWHERE]


async def test_what_it_has_not_learned_yet_is_not_taken_for_all_by_who_loads_the_topic_next() -> None:
    async with broker_world() as world:
        talker, topic = await publishing(world)
        world.cluster.hang(0)
        talker.publish(1, 0, b"x")
        await until(lambda: topic.log.next_index == 1, "the first is on its way")
        switch(topic, on=True)
        await until(lambda: topic.publisher.dedup is not None, "it is being switched on")
        assert topic.publisher.dedup is not None
        await topic.publisher.dedup.snapshot()
        cursor = topic.cursors.get(CURSOR_NAME)
        assert cursor is not None
        before = cursor.mark_delete
        world.cluster.wake(0)
        await receipts(talker, 1)
        await until_on(topic)
        assert cursor.mark_delete == before
        await topic.publisher.dedup.snapshot()
        assert cursor.mark_delete == topic.log.last_confirmed
        assert cursor.long_properties == {"p": 0}


async def test_what_never_becomes_durable_because_the_topic_ends_does_not_keep_it_from_being_switched_on() -> None:
    async with broker_world() as world:
        talker, topic = await publishing(world)
        topic.log._writer.detach()  # As while a new ledger is made.
        talker.publish(1, 0, b"x")
        await until(lambda: topic.log.next_index == 1, "the first waits in line")
        switch(topic, on=True)
        await until(lambda: topic.publisher.dedup is not None, "it is being switched on")
        await topic.terminate()
        await until_on(topic)
        switch(topic, on=False)
        await until(lambda: not topic.publisher.is_switching_dedup, "it is off")
        switch(topic, on=True)
        await until_on(topic)
