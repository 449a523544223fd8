"""SEEK to a message of a batch: Java's client says with an ack set which messages of the entry are wanted."""

from __future__ import annotations

import pytest

from magnetar.broker.upkeep.upkeep import trim
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageIdData
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, batch

pytestmark = pytest.mark.virtual_time

THIRD_AND_FOURTH = 0b1100


async def seek(talker: Talker, entry: MessageIdData, ack_set: int) -> None:
    """As Java's client does it: without the batch's size. Then the consumer comes back."""
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, talker.next_request()
    command.seek.message_id.ledgerId, command.seek.message_id.entryId = entry.ledgerId, entry.entryId
    command.seek.message_id.ack_set.append(ack_set)
    talker.send(command)
    for kind in (BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS):
        await talker.answer(kind)
    assert (await talker.subscribe("t")).type == BaseCommand.SUCCESS
    talker.flow(10)


async def subscribed(world: BrokerWorld) -> tuple[Talker, list[MessageIdData]]:
    """To a topic with two batches of four."""
    talker = await world.talker()
    await talker.producer("t")
    raw = batch([b"a", b"b", b"c", b"d"])
    ids = [await talker.published(1, number, b"", raw=raw, messages=4) for number in (0, 4)]
    await talker.subscribe("t", initialPosition=CommandSubscribe.Earliest)
    return talker, ids


async def ack_sets(talker: Talker, count: int) -> list[list[int]]:
    return [list((await talker.answer(BaseCommand.MESSAGE)).message.ack_set) for _ in range(count)]


async def test_a_seek_into_a_batch_brings_back_the_messages_from_there_on_and_no_others(world: BrokerWorld) -> None:
    talker, ids = await subscribed(world)
    await seek(talker, ids[0], THIRD_AND_FOURTH)
    assert await ack_sets(talker, 2) == [[THIRD_AND_FOURTH], []]

    acknowledged = MessageIdData(ledgerId=ids[0].ledgerId, entryId=ids[0].entryId, batch_size=4, ack_set=[0b0011])
    talker.ack(acknowledged, ids[1], request_id=5)
    await talker.answer(BaseCommand.ACK_RESPONSE)
    assert (await world.topic("t")).subscriptions.require("s").cursor.backlog_entries() == 0


async def test_a_place_in_a_batch_survives_a_restart(world: BrokerWorld) -> None:
    talker, ids = await subscribed(world)
    await seek(talker, ids[0], THIRD_AND_FOURTH)
    await world.restart()
    again = await world.talker()
    await again.subscribe("t")
    again.flow(10)
    assert await ack_sets(again, 2) == [[THIRD_AND_FOURTH], []]


async def test_a_place_in_a_batch_that_is_gone_says_nothing_about_the_next_one(world: BrokerWorld) -> None:
    talker, ids = await subscribed(world)
    talker.ack(ids[-1], cumulative=True, request_id=5)
    await talker.answer(BaseCommand.ACK_RESPONSE)
    topic = await world.topic("t")
    await topic.log.roll()
    assert await trim(topic) == 1
    await talker.published(1, 8, b"", raw=batch([b"e", b"f", b"g", b"h"]), messages=4)
    await seek(talker, ids[0], THIRD_AND_FOURTH)
    assert await ack_sets(talker, 1) == [[]]
