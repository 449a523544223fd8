"""Readers of a topic that was compacted, and whose old ledgers were deleted after that."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.upkeep.compaction import CompactionStatus
from magnetar.broker.upkeep.upkeep import trim
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageIdData
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, message
from tests.unit.topic.test_compaction import batch

pytestmark = pytest.mark.virtual_time

EARLIEST = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
KEYS = 6


async def compacted(world: BrokerWorld, topic: str = "t") -> list[MessageIdData]:
    """A message for each key; all but the last are in a ledger that is compacted and trimmed away."""
    talker = await world.talker()
    await talker.producer(topic, 1)
    ids = []
    for number in range(KEYS):
        if number == KEYS - 1:
            await (await world.topic(topic)).log.roll()
        body = message(b"%d" % number, number, partition_key=f"k{number}")
        ids.append(await talker.published(1, number, b"", raw=body))
    loaded = await world.topic(topic)
    loaded.compaction.begin()
    await loaded.compaction.wait()
    assert loaded.compaction.status is CompactionStatus.SUCCESS
    assert await trim(loaded) == 1
    return ids


async def subscribe(world: BrokerWorld, name: str, **fields: Any) -> Talker:
    talker = await world.talker()
    answer = await talker.subscribe("t", name, read_compacted=True, **fields)
    assert answer.type == BaseCommand.SUCCESS
    return talker


async def receive(talker: Talker, count: int) -> list[bytes]:
    return [(await talker.message())[1][-1:] for _ in range(count)]


@pytest.mark.parametrize("start", [0, 3, KEYS - 2, KEYS - 1])
async def test_a_reader_goes_on_at_its_message_though_its_ledger_is_gone(world: BrokerWorld, start: int) -> None:
    ids = await compacted(world)
    reader = await subscribe(world, "r", durable=False, start_message_id=ids[start])
    reader.flow(100)
    assert await receive(reader, KEYS - start) == [b"%d" % number for number in range(start, KEYS)]


async def test_a_reader_that_lost_its_broker_midway_misses_nothing(world: BrokerWorld) -> None:
    ids = await compacted(world)
    reader = await subscribe(world, "r", durable=False, start_message_id=EARLIEST)
    reader.flow(3)
    assert await receive(reader, 3) == [b"0", b"1", b"2"]
    reader.ack(ids[2], cumulative=True)
    await world.restart()
    reader = await subscribe(world, "r", durable=False, start_message_id=ids[2])
    reader.flow(100)
    assert await receive(reader, 4) == [b"2", b"3", b"4", b"5"]  # Its client knows which one it has.


async def test_a_reader_seeks_to_a_message_that_only_the_compacted_view_has(world: BrokerWorld) -> None:
    ids = await compacted(world)
    reader = await subscribe(world, "r", durable=False, start_message_id=EARLIEST)
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, 50
    command.seek.message_id.CopyFrom(ids[2])
    reader.send(command)
    await reader.answer(BaseCommand.SUCCESS)
    await reader.subscribe("t", "r", read_compacted=True, durable=False, start_message_id=EARLIEST)
    reader.flow(100)
    assert await receive(reader, 4) == [b"2", b"3", b"4", b"5"]


async def test_a_subscription_that_acknowledges_one_by_one_gets_all_of_the_compacted_view(world: BrokerWorld) -> None:
    await compacted(world)
    consumer = await subscribe(world, "s", initialPosition=CommandSubscribe.Earliest)
    found = []
    for number in range(KEYS):
        consumer.flow(1)
        message_id, body = await consumer.message()
        found.append(body[-1:])
        consumer.ack(message_id, cumulative=True, request_id=number)
        await consumer.answer(BaseCommand.ACK_RESPONSE)
    assert found == [b"%d" % number for number in range(KEYS)]
    subscription = (await world.topic("t")).subscriptions.require("s")
    assert subscription.cursor.backlog_entries() == 0


# --- the last message -------------------------------------------------------------------------------------------------


async def last_of_compacted(world: BrokerWorld, *bodies: bytes) -> tuple[list[MessageIdData], MessageIdData, Talker]:
    """Publishes these, compacts the topic, and asks for the last message of the compacted view."""
    talker = await world.talker()
    await talker.producer("t", 1)
    ids = [await talker.published(1, number, b"", raw=body) for number, body in enumerate(bodies)]
    loaded = await world.topic("t")
    loaded.compaction.begin()
    await loaded.compaction.wait()
    reader = await subscribe(world, "r", durable=False, start_message_id=EARLIEST)
    return ids, await last_message(reader), reader


async def last_message(talker: Talker) -> MessageIdData:
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id, command.getLastMessageId.request_id = 1, talker.next_request()
    talker.send(command)
    answer = await talker.answer(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    return answer.getLastMessageIdResponse.last_message_id


async def test_the_last_message_of_the_compacted_view_is_one_that_was_not_compacted_out(world: BrokerWorld) -> None:
    """Otherwise a client that has read everything waits for the message that the broker named."""
    ids, last, _ = await last_of_compacted(world, batch(("a", "1"), ("b", "2"), ("c", "3"), ("c", ""), ("d", "")))
    assert (last.ledgerId, last.entryId, last.batch_index) == (ids[0].ledgerId, ids[0].entryId, 1)


async def test_a_compacted_view_of_which_nothing_is_left_has_no_last_message(world: BrokerWorld) -> None:
    _, last, _ = await last_of_compacted(world, batch(("a", "1"), ("a", "")))
    assert last.ledgerId == 2**64 - 1


async def test_the_last_message_after_what_is_compacted_is_the_topics(world: BrokerWorld) -> None:
    _, _, reader = await last_of_compacted(world, batch(("a", "1"), ("b", "2"), ("a", "3")))
    talker = await world.talker()
    await talker.producer("t", 2)
    stored = await talker.published(2, 0, b"", raw=batch(("b", "4"), ("b", "")))
    last = await last_message(reader)
    assert (last.ledgerId, last.entryId, last.batch_index) == (stored.ledgerId, stored.entryId, 1)
