"""Loading, unloading, taking over, looking after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.broker import topic_upkeep
from magnetar.broker.names import NamespaceName, TopicName
from magnetar.broker.policies.values import QuotaPolicy
from magnetar.broker.upkeep import Upkeep
from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import TopicDefaultsConfig
from magnetar.config.topic import TopicConfig
from magnetar.config.upkeep import UpkeepConfig
from magnetar.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from magnetar.runtime.system_entropy import SystemEntropy
from magnetar.testing.waiting import until
from magnetar.topic.cursors import Cursors
from magnetar.topic.position import Position
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, broker_world, message

NAME = TopicName.parse("t")


class Later(SystemEntropy):
    """A clock that is ahead."""

    def __init__(self, by_ms: int) -> None:
        super().__init__()
        self._by_ms = by_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._by_ms


SINGLE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


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


# --- upkeep -----------------------------------------------------------------------------------------------------------


async def test_ledgers_that_every_subscription_has_read_are_trimmed_and_others_are_not() -> None:
    async with broker_world(topic=TopicConfig(**SINGLE, ledger_minutes_min=0, ledger_entries_max=2)) as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        ids = [await talker.published(1, number, b"x") for number in range(5)]
        topic = await world.topic("t")
        await until(lambda: len(topic.log.chain.spans) > 2, "ledgers are rolled")
        upkeep = Upkeep(world.broker.service)
        await upkeep.run_chore("trim")
        assert topic.log.chain.entries == 5
        talker.flow(10)
        for _ in ids:
            await talker.message()
        talker.ack(ids[-1], cumulative=True, request_id=1)
        await talker.answer(BaseCommand.ACK_RESPONSE)
        await upkeep.run_chore("trim")
        assert topic.log.chain.entries < 5


async def test_messages_beyond_their_time_to_live_are_skipped() -> None:
    async with broker_world(defaults=TopicDefaultsConfig(message_ttl_s=1)) as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        await talker.published(1, 0, b"x")
        topic = await world.topic("t")
        assert await topic_upkeep.expire(topic, Later(0)) == 0
        assert await topic_upkeep.expire(topic, Later(2_000)) == 1
        assert topic.subscription("s").cursor.backlog_entries() == 0


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (QuotaPolicy.HOLD_PRODUCERS, ServerError.ProducerBlockedQuotaExceededError),
        (QuotaPolicy.REFUSE_PRODUCERS, ServerError.ProducerBlockedQuotaExceededException),
    ],
)
async def test_a_backlog_beyond_its_quota_disconnects_producers_and_refuses_them_until_it_shrinks(
    policy: QuotaPolicy, code: int
) -> None:
    defaults = TopicDefaultsConfig(backlog_quota_bytes=1_000, backlog_quota_policy=str(policy))
    async with broker_world(defaults=defaults) as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        await talker.published(1, 0, b"x" * 2_000)
        upkeep = Upkeep(world.broker.service)
        await upkeep.run_chore("quota")
        await talker.answer(BaseCommand.CLOSE_PRODUCER)
        assert (await talker.producer("t", 2)).error.error == code
        await (await world.topic("t")).subscription("s").clear_backlog()
        await upkeep.run_chore("quota")
        assert (await talker.producer("t", 2)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_backlog_beyond_its_quota_loses_its_oldest_messages_if_the_policy_says_so() -> None:
    defaults = TopicDefaultsConfig(backlog_quota_bytes=5_000, backlog_quota_policy=str(QuotaPolicy.SKIP_OLDEST))
    async with broker_world(defaults=defaults) as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        for number in range(10):
            await talker.published(1, number, b"x" * 1_000)
        await Upkeep(world.broker.service).run_chore("quota")
        left = (await world.topic("t")).subscription("s").cursor.backlog_entries()
        assert 0 < left < 6
        assert (await talker.producer("t", 2)).type == BaseCommand.PRODUCER_SUCCESS


async def test_topics_that_nobody_uses_are_deleted_and_those_with_a_subscription_are_not() -> None:
    async with broker_world(broker=BrokerConfig(inactive_topics_s=1)) as world:
        talker = await world.talker()
        for number, name in enumerate(("idle", "kept", "used")):
            await talker.producer(name, number)
        await talker.subscribe("kept")
        service = world.broker.service
        for number in (0, 1):
            close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
            close.close_producer.producer_id, close.close_producer.request_id = number, number
            talker.send(close)
            await talker.answer(BaseCommand.SUCCESS)
        for topic in service.topics.loaded():
            topic.last_used_s -= 100
        await Upkeep(service).run_chore("idle")
        assert sorted(topic.name.local for topic in service.topics.loaded()) == ["kept", "used"]


@pytest.mark.parametrize(("minutes", "unused_s", "stays"), [(-1, 10**6, True), (10, 500, True), (10, 700, False)])
async def test_a_topic_that_nobody_uses_stays_while_its_messages_are_to_be_kept(
    minutes: int, unused_s: int, stays: bool
) -> None:
    retention = TopicDefaultsConfig(retention_minutes=minutes, retention_mb=-1)
    async with broker_world(broker=BrokerConfig(inactive_topics_s=1), defaults=retention) as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.published(1, 0, b"x")
        close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        close.close_producer.producer_id, close.close_producer.request_id = 1, 1
        talker.send(close)
        await talker.answer(BaseCommand.SUCCESS)
        (await world.topic("t")).last_used_s -= unused_s
        await Upkeep(world.broker.service).run_chore("idle")
        assert bool(world.broker.service.topics.loaded()) is stays


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


async def test_a_topics_own_policies_are_kept_in_change_events_and_survive_a_restart() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        policies = world.broker.service.policies
        await policies.update_topic(NAME, lambda document: document | {"deduplicationEnabled": True})
        topic = await world.topic("t")
        assert topic.policies.deduplication
        await until(lambda: topic.dedup is not None, "deduplication begins")
        await world.restart()
        await (await world.talker()).producer("t")
        assert (await world.topic("t")).dedup is not None
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
        assert topic.dedup is None


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
