"""Consumers whose connection is dead without the broker's knowledge, and those that want their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.config.pulsar import PulsarConfig
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageIdData, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, broker_world

pytestmark = pytest.mark.virtual_time

EARLIEST = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
BOTH = pytest.mark.parametrize("topic", ["persistent://public/default/t", "non-persistent://public/default/t"])


@pytest.fixture
async def impatient() -> AsyncIterator[BrokerWorld]:
    """A broker that soon takes a silent client for dead; on a busy machine, that may be any client."""
    async with broker_world(pulsar=PulsarConfig(port=0, liveness_check_timeout_ms=50)) as made:
        yield made


async def silent(world: BrokerWorld, topic: str, **fields: Any) -> Talker:
    """A client that has lost its network: it is subscribed, and answers nothing any more."""
    talker = await world.talker()
    assert (await talker.subscribe(topic, **fields)).type == BaseCommand.SUCCESS
    talker.answers_pings = False
    return talker


@BOTH
async def test_an_exclusive_consumer_takes_the_place_of_one_whose_connection_is_dead(
    impatient: BrokerWorld, topic: str
) -> None:
    old = await silent(impatient, topic)
    new = await impatient.talker()
    assert (await new.subscribe(topic)).type == BaseCommand.SUCCESS
    await old.wait_closed()
    new.flow(10)
    await new.producer(topic, 99)
    new.publish(99, 0, b"for the new one")
    assert (await new.message())[1].endswith(b"for the new one")


@BOTH
async def test_an_exclusive_consumer_keeps_its_place_while_its_connection_answers(
    world: BrokerWorld, topic: str
) -> None:
    old, new = await world.talker(), await world.talker()
    await old.subscribe(topic)
    assert (await new.subscribe(topic)).error.error == ServerError.ConsumerBusy
    assert (old.pings, new.pings) == (1, 0)
    assert not old.closed.is_set()


@BOTH
async def test_a_client_that_subscribes_twice_on_one_connection_is_not_asked_whether_it_lives(
    world: BrokerWorld, topic: str
) -> None:
    talker = await silent(world, topic)
    assert (await talker.subscribe(topic, consumer_id=2)).error.error == ServerError.ConsumerBusy
    assert talker.pings == 0


@BOTH
async def test_of_several_that_want_the_place_of_a_dead_one_one_gets_it(impatient: BrokerWorld, topic: str) -> None:
    await silent(impatient, topic)
    heirs = [await impatient.talker() for _ in range(3)]
    answers = await asyncio.gather(*(heir.subscribe(topic) for heir in heirs))
    assert sorted(answer.type for answer in answers) == sorted([BaseCommand.SUCCESS] + 2 * [BaseCommand.ERROR])
    refused = {answer.error.error for answer in answers if answer.type == BaseCommand.ERROR}
    assert refused == {ServerError.ConsumerBusy}


async def test_what_the_dead_one_had_and_did_not_acknowledge_goes_to_the_next(impatient: BrokerWorld) -> None:
    old = await silent(impatient, "t", initialPosition=CommandSubscribe.Earliest)
    await old.producer("t", 99)
    ids = [await old.published(99, number, b"%d" % number) for number in range(3)]
    old.flow(10)
    for _ in ids:
        await old.message()
    old.ack(ids[0], request_id=1)
    await old.answer(BaseCommand.ACK_RESPONSE)
    new = await impatient.talker()
    await new.subscribe("t")
    new.flow(10)
    assert [(await new.message())[1][-1:] for _ in range(2)] == [b"1", b"2"]


async def test_a_reader_that_comes_back_on_another_connection_is_let_in(impatient: BrokerWorld) -> None:
    asked: dict[str, Any] = {"durable": False, "start_message_id": EARLIEST}
    old = await silent(impatient, "t", **asked)
    await old.producer("t", 99)
    await old.published(99, 0, b"m")
    new = await impatient.talker()
    assert (await new.subscribe("t", **asked)).type == BaseCommand.SUCCESS
    await old.wait_closed()
    new.flow(10)
    assert (await new.message())[1].endswith(b"m")


async def test_consumers_of_other_kinds_of_subscriptions_are_not_asked(world: BrokerWorld) -> None:
    old = await silent(world, "t", kind=CommandSubscribe.Failover)
    new = await world.talker()
    assert (await new.subscribe("t")).error.error == ServerError.ConsumerBusy
    assert (await new.subscribe("t", kind=CommandSubscribe.Failover)).type == BaseCommand.SUCCESS
    assert old.pings == 0
