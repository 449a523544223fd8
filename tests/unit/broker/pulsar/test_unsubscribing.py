"""A subscription that is deleted while the metadata store is slow or away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.errors import MetadataUnavailableError, SubscriptionFencedError
from magnetar.testing.waiting import until
from magnetar.topic.cursor.ledger_storage import CursorNode, LedgerCursorStorage
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker

pytestmark = pytest.mark.virtual_time


class Store:
    """What becomes of the deletion of a cursor's node: it waits for its end, which may be an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_asked = asyncio.Event()
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        delete = CursorNode.delete

        async def wait_and_delete(node: CursorNode) -> None:
            self.is_asked.set()
            await asyncio.shield(self.outcome)
            await delete(node)

        monkeypatch.setattr(CursorNode, "delete", wait_and_delete)

    def fail(self) -> None:
        self.outcome.set_exception(MetadataUnavailableError("away"))

    def come_back(self) -> None:
        self.outcome = asyncio.get_running_loop().create_future()
        self.outcome.set_result(None)


async def subscribed(world: BrokerWorld) -> Talker:
    talker = await world.talker()
    await talker.producer("t", 99)
    await talker.subscribe("t", consumer_id=1)
    await talker.published(99, 0, b"m")
    return talker


def unsubscribe(talker: Talker, consumer_id: int = 1) -> None:
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id, command.unsubscribe.request_id = consumer_id, talker.next_request()
    talker.send(command)


async def answer(talker: Talker) -> BaseCommand:
    return await talker.answer(BaseCommand.SUCCESS, BaseCommand.ERROR)


async def test_a_subscription_that_could_not_be_deleted_is_served_again(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker, store = await subscribed(world), Store(monkeypatch)
    store.fail()
    unsubscribe(talker)
    assert (await answer(talker)).error.error == ServerError.PersistenceError
    await talker.answer(BaseCommand.CLOSE_CONSUMER)  # Its client comes back, with the same id.
    assert (await talker.subscribe("t", consumer_id=1)).type == BaseCommand.SUCCESS
    talker.flow(10)
    assert (await talker.message())[1].endswith(b"m")
    store.come_back()
    unsubscribe(talker)
    assert (await answer(talker)).type == BaseCommand.SUCCESS
    topic = await world.topic("t")
    assert (list(topic.subscriptions), len(topic.cursors)) == ([], 0)


async def test_a_subscription_that_could_not_be_deleted_can_be_deleted_by_an_operator(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker, store = await subscribed(world), Store(monkeypatch)
    store.fail()
    unsubscribe(talker)
    await talker.answer(BaseCommand.ERROR)
    store.come_back()
    topic = await world.topic("t")
    await topic.unsubscribe(topic.subscriptions.require("s"))
    assert (list(topic.subscriptions), len(topic.cursors)) == ([], 0)


async def test_a_subscription_whose_node_is_gone_is_deleted_whatever_happens_to_its_ledgers(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: LedgerCursorStorage) -> None:
        raise MetadataUnavailableError("away")

    monkeypatch.setattr(LedgerCursorStorage, "abandon", fails)
    talker = await subscribed(world)
    unsubscribe(talker)
    assert (await answer(talker)).type == BaseCommand.SUCCESS
    topic = await world.topic("t")
    assert (list(topic.subscriptions), len(topic.cursors)) == ([], 0)
    monkeypatch.undo()


async def test_who_subscribes_while_a_subscription_is_deleted_tries_again_and_gets_a_new_one(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker, store = await subscribed(world), Store(monkeypatch)
    unsubscribe(talker)
    await store.is_asked.wait()
    other = await world.talker()
    refused = await other.subscribe("t", initialPosition=CommandSubscribe.Latest)
    assert refused.error.error == ServerError.ServiceNotReady
    topic = await world.topic("t")
    with pytest.raises(SubscriptionFencedError):
        await topic.unsubscribe(topic.subscriptions.require("s"), force=True)
    store.outcome.set_result(None)
    assert (await answer(talker)).type == BaseCommand.SUCCESS
    assert (await other.subscribe("t", initialPosition=CommandSubscribe.Latest)).type == BaseCommand.SUCCESS
    assert topic.subscriptions.require("s").cursor.backlog_entries() == 0


async def test_others_that_are_connected_keep_a_subscription_and_who_asked_too(world: BrokerWorld) -> None:
    shared: dict[str, Any] = {"kind": CommandSubscribe.Shared}
    talker = await world.talker()
    await talker.subscribe("t", consumer_id=1, **shared)
    await talker.subscribe("t", consumer_id=2, **shared)
    unsubscribe(talker)
    assert (await answer(talker)).error.error == ServerError.ConsumerBusy
    topic = await world.topic("t")
    await until(lambda: len(topic.subscriptions.require("s").consumers) == 2, "both to be there")
    assert not [command for command, _ in talker.received if command.type == BaseCommand.CLOSE_CONSUMER]
