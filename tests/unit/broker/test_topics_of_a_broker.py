"""Loading, unloading, taking over; policies that reach what is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker.resources.documents import decode, encode
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.config.broker import BrokerConfig
from magnetar.config.upkeep import UpkeepConfig
from magnetar.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from magnetar.names import NamespaceName, TopicName
from magnetar.testing.waiting import until
from magnetar.topic.cursor.cursors import Cursors
from magnetar.topic.cursor.ledger_storage import LedgerCursorStorage
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import Position
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.unit.broker.pulsar.broker_world import TIMEOUT_S, BrokerWorld, Talker, broker_world, message
from tests.unit.broker.worlds import memory_store

pytestmark = pytest.mark.virtual_time

NAME = TopicName.parse("t")


async def test_a_topic_that_many_ask_for_at_once_is_loaded_once() -> None:
    async with broker_world() as world:
        topics = world.broker.service.topics
        found = await asyncio.gather(*(topics.get(NAME, create=True) for _ in range(10)))
        assert len({id(topic) for topic in found}) == 1
        assert topics.statistics().loads == 1


async def test_one_who_may_make_a_topic_is_not_disappointed_by_one_who_may_not() -> None:
    async with broker_world() as world:
        topics = world.broker.service.topics
        asked = [asyncio.ensure_future(topics.get(NAME, create=create)) for create in (False, True)]
        await asyncio.wait(asked)
        assert isinstance(asked[0].exception(), TopicNotFoundError)
        assert asked[1].result().name == NAME


async def test_a_topic_that_does_not_load_in_time_is_not_ready_and_loads_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker_world(upkeep=UpkeepConfig(topic_load_timeout_ms=100)) as world:
        topics, policies = world.broker.service.topics, world.broker.service.policies
        monkeypatch.setattr(policies, "load", lambda _topic: asyncio.Event().wait())
        with pytest.raises(ServiceNotReadyError, match="not loaded within"):
            await topics.get(NAME, create=True)
        monkeypatch.undo()
        assert (await topics.get(NAME, create=True)).name == NAME


async def test_a_topic_whose_policies_are_given_up_while_it_loads_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would never learn of a change."""
    async with broker_world() as world:
        topics, policies = world.broker.service.topics, world.broker.service.policies
        hanging, open_log = Hanging(), TopicLog.open

        async def open_late(*given: Any, **named: Any) -> TopicLog:
            await hanging()
            return await open_log(*given, **named)

        monkeypatch.setattr(TopicLog, "open", open_late)
        loading = asyncio.ensure_future(topics.get(NAME, create=True))
        await hanging.is_asked.wait()
        await policies.aclose()
        hanging.go_on.set()
        topic = await loading
        assert topics.find(NAME) is None
        await until(lambda: not topics.statistics().unloading, "it is closed")
        assert isinstance(topic, PersistentTopic)
        with pytest.raises(ServiceNotReadyError):
            topic.require_usable()


async def test_an_unloaded_topic_tells_its_clients_and_is_there_again_for_who_comes_back() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        await talker.published(1, 0, b"x")
        await world.broker.service.topics.unload(NAME)
        await talker.answer(BaseCommand.CLOSE_PRODUCER)
        await talker.answer(BaseCommand.CLOSE_CONSUMER)
        assert (await talker.producer("t")).type == BaseCommand.PRODUCER_SUCCESS
        await talker.subscribe("t")
        talker.flow(10)
        assert (await talker.message())[0].entryId == 0


class Hanging:
    """Stands for a call that does not return before the test lets it."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, *_arguments: Any, **_named: Any) -> None:
        self.is_asked.set()
        await self.go_on.wait()


async def make_subscription(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> Hanging:
    """The metadata store does not answer meanwhile."""
    hanging = Hanging()
    monkeypatch.setattr(LedgerCursorStorage, "create", hanging)
    talker.send(subscribe_command("t", "s2", talker.next_request()))
    await hanging.is_asked.wait()
    return hanging


async def seek(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> Hanging:
    """Bookies do not answer meanwhile."""
    hanging = Hanging()
    await talker.subscribe("t", "s2")
    monkeypatch.setattr(LedgerCursorStorage, "store", hanging)
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, talker.next_request()
    command.seek.message_publish_time = 0
    talker.send(command)
    await hanging.is_asked.wait()
    return hanging


def subscribe_command(topic: str, subscription: str, request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.subType = topic, subscription, CommandSubscribe.Exclusive
    request.consumer_id, request.request_id = 1, request_id
    return command


@pytest.mark.parametrize("begin", [make_subscription, seek])
async def test_a_topic_that_is_not_closed_in_time_tells_its_clients_all_the_same(
    begin: Callable[[Talker, pytest.MonkeyPatch], Awaitable[Hanging]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client's request keeps it from being closed."""
    async with broker_world(upkeep=UpkeepConfig(close_timeout_ms=100)) as world:
        other, talker = await world.talker(), await world.talker()
        await other.subscribe("t", "s1", kind=CommandSubscribe.Shared)
        hanging = await begin(talker, monkeypatch)
        unloading = asyncio.ensure_future(world.broker.service.topics.unload(NAME))
        await other.answer(BaseCommand.CLOSE_CONSUMER)
        await unloading
        assert (await talker.answer(BaseCommand.ERROR)).error.error == ServerError.ServiceNotReady
        monkeypatch.undo()
        hanging.go_on.set()
        await other.producer("t", 9)
        await other.published(9, 0, b"after")
        assert (await other.subscribe("t", "s1", kind=CommandSubscribe.Shared)).type == BaseCommand.SUCCESS
        other.flow(10)
        assert (await other.message())[1].endswith(b"after")


async def test_a_topic_whose_cursors_are_not_closed_in_time_does_not_wait_for_its_log_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker_world(upkeep=UpkeepConfig(close_timeout_ms=100)) as world:
        await (await world.talker()).subscribe("t")
        cursor, log = Hanging(), Hanging()
        monkeypatch.setattr(LedgerCursorStorage, "close", cursor)
        monkeypatch.setattr(TopicLog, "aclose", log)
        async with asyncio.timeout(TIMEOUT_S):
            await world.broker.service.topics.unload(NAME)
        assert (cursor.is_asked.is_set(), log.is_asked.is_set()) == (True, False)
        monkeypatch.undo()


async def test_a_second_broker_takes_a_topic_over_and_the_first_acknowledges_nothing_more() -> None:
    async with broker_world() as world:
        old = await world.talker()
        await old.producer("t")
        await old.published(1, 0, b"before")
        second = BrokerWorld(world.cluster, world.config)
        await second.start()
        try:
            new = await second.talker()
            await new.producer("t")
            assert (await new.published(1, 0, b"after")).entryId == 0
            old.publish(1, 1, b"too late")
            refused = await old.answer(BaseCommand.SEND_ERROR, BaseCommand.SEND_RECEIPT, BaseCommand.CLOSE_PRODUCER)
            assert refused.type != BaseCommand.SEND_RECEIPT
            await until(lambda: world.broker.service.topics.find(NAME) is None, "the old owner gives up")
            await new.subscribe("t", "all", initialPosition=CommandSubscribe.Earliest)
            new.flow(10)
            assert [(await new.message())[1][-5:] for _ in range(2)] == [b"efore", b"after"]
        finally:
            await second.stop()


async def test_a_broker_overtaken_while_it_loads_a_topic_forgets_no_acknowledgement_of_the_new_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log ends before what the new owner wrote: what was acknowledged there means nothing to it."""
    async with broker_world() as world:
        await (await world.talker()).subscribe("t")
        topics = world.broker.service.topics
        await topics.unload(NAME)
        second = BrokerWorld(world.cluster, world.config)
        await second.start()
        opened, is_overtaken, go_on = Cursors.open, asyncio.Event(), asyncio.Event()

        async def slowly(*arguments: Any, **named: Any) -> Cursors:
            if not is_overtaken.is_set():
                is_overtaken.set()
                await go_on.wait()
            return await opened(*arguments, **named)

        try:
            monkeypatch.setattr(Cursors, "open", slowly)
            slow = asyncio.ensure_future(topics.get(NAME, create=False))
            await is_overtaken.wait()
            talker = await second.talker()
            await talker.producer("t")
            for number in range(3):
                await talker.published(1, number, b"x")
            taken = await second.topic("t")
            acknowledged = Position(taken.log.last_confirmed.ledger_id, 1)
            cursor = taken.cursors.get("s")
            assert cursor is not None
            cursor.acknowledge([acknowledged])
            await cursor.flush()

            go_on.set()
            with pytest.raises(ServiceNotReadyError, match="another broker took topic"):
                await slow
        finally:
            await second.stop()
        found = (await world.topic("t")).cursors.get("s")
        assert found is not None
        assert found.acknowledged_ranges() == [(acknowledged, acknowledged)]


async def test_a_topic_in_use_is_deleted_only_by_force() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        service = world.broker.service
        with pytest.raises(NotAllowedError, match="producers or consumers"):
            await service.delete_topic(NAME)
        await service.delete_topic(NAME, force=True)
        await talker.answer(BaseCommand.CLOSE_PRODUCER)
        assert not await service.exists(NAME)
        assert not await world.cluster.store.children("/managed-ledgers/public/default/persistent")


# --- policies ---------------------------------------------------------------------------------------------------------


async def test_a_change_of_a_namespaces_policies_reaches_the_topics_that_are_loaded() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        service = world.broker.service
        await service.resources.namespaces.update(
            NamespaceName.parse("public/default"), lambda policies: policies | {"max_producers_per_topic": 1}
        )
        topic = await world.topic("t")
        await until(lambda: topic.policies.producers_max == 1, "the policy arrives")
        assert (await talker.producer("t", 2)).error.error == ServerError.ProducerBusy


async def test_policies_of_namespaces_come_from_the_store_that_clusters_share_if_there_is_one() -> None:
    async with memory_store() as shared, broker_world(configuration=shared) as world:
        talker = await world.talker()
        await talker.producer("t")
        path = "/admin/policies/public/default"
        assert await world.cluster.store.get(path) is None
        node = await shared.get(path)
        assert node is not None
        await shared.put(path, encode(decode(path, node.value) | {"max_producers_per_topic": 1}), node.version)
        topic = await world.topic("t")
        await until(lambda: topic.policies.producers_max == 1, "the policy arrives")
        assert (await talker.producer("t", 2)).error.error == ServerError.ProducerBusy


async def test_a_topics_own_policies_are_kept_in_change_events_and_survive_a_restart() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        policies = world.broker.service.policies
        await policies.update_topic(NAME, lambda document: document | {"deduplicationEnabled": True})
        topic = await world.topic("t")
        assert topic.policies.deduplication
        await until(lambda: topic.publisher.dedup is not None, "deduplication begins")
        await world.restart()
        await (await world.talker()).producer("t")
        assert (await world.topic("t")).publisher.dedup is not None
        assert TopicName.parse("__change_events").local in [
            each.name.local for each in world.broker.service.topics.loaded()
        ]


async def test_deduplication_that_is_switched_off_forgets_its_cursor() -> None:
    async with broker_world(broker=BrokerConfig(deduplication=True)) as world:
        await (await world.talker()).producer("t")
        topic = await world.topic("t")
        assert topic.cursors.get("pulsar.dedup") is not None
        await world.broker.service.policies.update_topic(
            NAME, lambda document: document | {"deduplicationEnabled": False}
        )
        await until(lambda: topic.cursors.get("pulsar.dedup") is None, "the cursor is gone")
        assert topic.publisher.dedup is None


async def test_a_compacted_topic_is_read_by_key_by_those_who_ask_for_it() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        for number, (key, value) in enumerate((("a", b"1"), ("b", b"2"), ("a", b"3"))):
            await talker.published(1, number, b"", raw=message(value, number, partition_key=key))
        topic = await world.topic("t")
        topic.compaction.begin()
        await topic.compaction.wait()
        assert topic.compaction.status == "SUCCESS"
        await talker.subscribe("t", "s", initialPosition=CommandSubscribe.Earliest, read_compacted=True)
        talker.flow(10)
        assert [(await talker.message())[1][-1:] for _ in range(2)] == [b"2", b"3"]
