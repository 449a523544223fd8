"""Acknowledgements whose receipts wait for a cursor's write that takes long, or fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.broker.pulsar.session import Session
from magnetar.broker.topics.topic import SubscriptionLike
from magnetar.config.pulsar import PulsarConfig
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageIdData
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, broker_world

pytestmark = pytest.mark.virtual_time

LIMIT, ACKS = 4, 11


class Gate:
    """In front of the subscription's writes."""

    def __init__(self, subscription: SubscriptionLike, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = asyncio.Event()
        self.error: Exception | None = None
        self._flush = subscription.flush
        monkeypatch.setattr(subscription, "flush", self._wait)

    async def _wait(self) -> None:
        await self.opened.wait()
        if self.error is not None:
            raise self.error
        await self._flush()


@pytest.fixture
async def narrow() -> AsyncIterator[BrokerWorld]:
    async with broker_world(pulsar=PulsarConfig(port=0, pending_receipts_per_connection_max=LIMIT)) as world:
        yield world


async def consuming(world: BrokerWorld) -> tuple[Talker, list[MessageIdData]]:
    talker = await world.talker()
    await talker.producer("t", 99)
    ids = [await talker.published(99, number, b"x") for number in range(ACKS)]
    await talker.subscribe("t", kind=CommandSubscribe.Shared, initialPosition=CommandSubscribe.Earliest)
    talker.flow(ACKS)
    for _ in ids:
        await talker.message()
    return talker, ids


def only_session(world: BrokerWorld) -> Session:
    (session,) = world.front_end.sessions
    return session


async def test_too_many_receipts_that_wait_hold_the_connection_and_none_is_lost(
    narrow: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker, ids = await consuming(narrow)
    session = only_session(narrow)
    gate = Gate((await narrow.topic("t")).subscriptions.require("s"), monkeypatch)
    for number, message_id in enumerate(ids):
        talker.ack(message_id, request_id=number)
    await until(lambda: session.connection.is_held, "the connection is held")
    assert session.pending_receipts == LIMIT
    gate.opened.set()
    receipts = [(await talker.answer(BaseCommand.ACK_RESPONSE)).ackResponse for _ in ids]
    assert [receipt.request_id for receipt in receipts] == list(range(ACKS))
    assert not any(receipt.HasField("error") for receipt in receipts)
    await until(lambda: not session.connection.is_held, "it is let go")
    assert session.pending_receipts == 0


async def test_a_write_that_fails_answers_all_that_waited_for_it_and_lets_the_connection_go(
    narrow: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker, ids = await consuming(narrow)
    session = only_session(narrow)
    gate = Gate((await narrow.topic("t")).subscriptions.require("s"), monkeypatch)
    gate.error = TimeoutError("the write took too long")
    for number, message_id in enumerate(ids):
        talker.ack(message_id, request_id=number)
    await until(lambda: session.connection.is_held, "the connection is held")
    gate.opened.set()
    receipts = [(await talker.answer(BaseCommand.ACK_RESPONSE)).ackResponse for _ in ids]
    assert all(receipt.HasField("error") for receipt in receipts)
    await until(lambda: not session.connection.is_held, "it is let go")
    assert session.pending_receipts == 0


async def test_acknowledgements_without_receipts_hold_nothing(
    narrow: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker, ids = await consuming(narrow)
    session = only_session(narrow)
    topic = await narrow.topic("t")
    gate = Gate(topic.subscriptions.require("s"), monkeypatch)
    for message_id in ids:
        talker.ack(message_id)
    cursor = topic.cursors.get("s")
    assert cursor is not None
    await until(lambda: cursor.backlog_entries() == 0, "all are acknowledged")
    assert (session.pending_receipts, session.connection.is_held) == (0, False)
    gate.opened.set()
