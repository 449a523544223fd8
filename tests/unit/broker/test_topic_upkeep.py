"""Looking after topics: trimming, expiry, quotas, idle ones."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from magnetar.broker.policies.values import BacklogQuota, BacklogQuotas, DeleteMode, QuotaPolicy
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.upkeep.upkeep import Upkeep, check_quota, drop_idle_subscriptions, expire, truncate
from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import TopicDefaultsConfig
from magnetar.config.topic import TopicConfig
from magnetar.config.upkeep import UpkeepConfig
from magnetar.runtime.runtime import Entropy
from magnetar.sim.machine import SimEntropy, WallClock
from magnetar.testing.waiting import until
from magnetar.topic.position import EARLIEST
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, MessageIdData, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, broker_world

pytestmark = pytest.mark.virtual_time

SINGLE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
HOUR_MS = 3_600_000
FIRST_MESSAGE = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)


class Later(SimEntropy):
    """A clock that is ahead."""

    def __init__(self, by_ms: int) -> None:
        super().__init__("later", WallClock(offset_ms=by_ms))


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


async def test_ledgers_that_deduplication_would_need_after_a_crash_are_not_trimmed() -> None:
    broker = BrokerConfig(deduplication=True)
    async with broker_world(broker=broker, topic=TopicConfig(**SINGLE, ledger_minutes_min=0)) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="p")
        for number in range(5):
            await talker.published(1, number, b"x")
        topic = await world.topic("t")
        await topic.log.roll()
        upkeep = Upkeep(world.broker.service)
        await upkeep.run_chore("trim")
        assert topic.log.chain.entries == 5
        assert topic.publisher.dedup is not None
        await topic.publisher.dedup.snapshot()
        await upkeep.run_chore("trim")
        assert topic.log.chain.entries == 0


async def test_a_topic_truncated_while_deduplication_learns_keeps_what_is_not_learned() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="p")
        topic = await world.topic("t")
        await talker.published(1, 0, b"x")
        world.cluster.hang(0)
        talker.publish(1, 1, b"x")
        await until(lambda: topic.log.next_index == 2, "the second is on its way")
        topic.apply(dataclasses.replace(topic.policies, deduplication=True))
        await until(lambda: topic.publisher.dedup is not None, "it learns")
        truncating = asyncio.ensure_future(truncate(topic))
        world.cluster.wake(0)
        await truncating
        await until(lambda: topic.publisher.dedup is not None and topic.publisher.dedup.is_ready, "it has learned")
        assert topic.publisher.last_sequence_id("p") == 1


async def test_messages_beyond_their_time_to_live_are_skipped() -> None:
    async with broker_world(defaults=TopicDefaultsConfig(message_ttl_s=1)) as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        await talker.published(1, 0, b"x")
        topic = await world.topic("t")
        assert await expire(topic, Later(0)) == 0
        assert await expire(topic, Later(2_000)) == 1
        assert topic.subscriptions.require("s").cursor.backlog_entries() == 0


@pytest.mark.parametrize("look", [expire, check_quota])
async def test_a_subscription_that_is_being_deleted_keeps_none_of_the_others_from_being_looked_after(
    look: Callable[[PersistentTopic, Entropy], Awaitable[object]],
) -> None:
    defaults = TopicDefaultsConfig(
        message_ttl_s=1, backlog_quota_s=1, backlog_quota_policy=str(QuotaPolicy.SKIP_OLDEST)
    )
    async with broker_world(defaults=defaults) as world:
        talker = await world.talker()
        await talker.producer("t")
        for number, name in enumerate(("first", "other")):
            await talker.subscribe("t", name, consumer_id=number)
        await talker.published(1, 0, b"x")
        topic = await world.topic("t")
        topic.subscriptions.require("first")._fence("it is being deleted")
        await look(topic, Later(2_000))
        assert [each.cursor.backlog_entries() for each in topic.subscriptions.values()] == [1, 0]
        assert topic.quota.error is None


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
        await (await world.topic("t")).subscriptions.require("s").clear_backlog()
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
        left = (await world.topic("t")).subscriptions.require("s").cursor.backlog_entries()
        assert 0 < left < 6
        assert (await talker.producer("t", 2)).type == BaseCommand.PRODUCER_SUCCESS


@pytest.mark.parametrize("policy", [QuotaPolicy.REFUSE_PRODUCERS, QuotaPolicy.SKIP_OLDEST])
async def test_a_reader_of_what_is_retained_is_no_backlog_and_skips_nothing(policy: QuotaPolicy) -> None:
    defaults = TopicDefaultsConfig(backlog_quota_bytes=5_000, backlog_quota_s=60, backlog_quota_policy=str(policy))
    async with broker_world(defaults=defaults) as world:
        talker = await world.talker()
        await talker.producer("t")
        for number in range(10):
            await talker.published(1, number, b"x" * 1_000)
        await talker.subscribe("t", "reader", durable=False, start_message_id=FIRST_MESSAGE)
        topic = await world.topic("t")
        await check_quota(topic, Later(120_000))
        assert topic.quota.error is None
        assert topic.quota.backlog_bytes() == 0
        assert topic.subscriptions.require("reader").cursor.backlog_entries() == 10


async def test_a_backlog_that_is_too_large_is_not_cut_by_its_age_where_age_only_refuses_producers() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        for number in range(10):
            await talker.published(1, number, b"x" * 1_000)
        topic = await world.topic("t")
        topic.apply(
            dataclasses.replace(
                topic.policies,
                backlog_quotas=BacklogQuotas(
                    BacklogQuota(5_000, -1, QuotaPolicy.SKIP_OLDEST), BacklogQuota(-1, 60, QuotaPolicy.REFUSE_PRODUCERS)
                ),
            )
        )
        await check_quota(topic, Later(120_000))
        assert 0 < topic.subscriptions.require("s").cursor.backlog_entries() < 6
        assert topic.quota.error is not None
        assert "s old" in str(topic.quota.error)


async def test_a_backlog_that_is_too_old_is_not_cut_by_its_size_where_size_only_refuses_producers() -> None:
    async with broker_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        await talker.subscribe("t")
        for number in range(10):
            await talker.published(1, number, b"x" * 1_000)
        topic = await world.topic("t")
        topic.apply(
            dataclasses.replace(
                topic.policies,
                backlog_quotas=BacklogQuotas(
                    BacklogQuota(5_000, -1, QuotaPolicy.REFUSE_PRODUCERS), BacklogQuota(-1, 60, QuotaPolicy.SKIP_OLDEST)
                ),
            )
        )
        await check_quota(topic, Later(0))
        assert topic.subscriptions.require("s").cursor.backlog_entries() == 10
        assert topic.quota.error is not None
        await check_quota(topic, Later(120_000))
        assert topic.subscriptions.require("s").cursor.backlog_entries() == 0
        await check_quota(topic, Later(120_000))
        assert topic.quota.error is None


async def test_a_subscription_expires_by_the_time_since_its_consumer_left_however_quiet_it_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker_world(defaults=TopicDefaultsConfig(subscription_expiry_minutes=60)) as world:
        consumer = await world.talker()
        await consumer.subscribe("t")
        consumer.flow(100)
        topic = await world.topic("t")
        await until(
            lambda: topic.subscriptions.require("s").consumers[0].permits == 100, "it can get messages, and none come"
        )
        upkeep, entropy = Upkeep(world.broker.service), world.broker.service.entropy
        monkeypatch.setattr(entropy, "wall_ms", Later(2 * HOUR_MS).wall_ms)
        await upkeep.run_chore("expire")
        assert "s" in topic.subscriptions
        consumer.transport.close()
        await until(lambda: not topic.is_in_use, "its consumer has left")
        await upkeep.run_chore("expire")
        assert "s" in topic.subscriptions
        monkeypatch.setattr(entropy, "wall_ms", Later(4 * HOUR_MS).wall_ms)
        await upkeep.run_chore("expire")
        assert "s" not in topic.subscriptions


async def test_a_subscription_that_nobody_came_back_to_after_a_restart_expires() -> None:
    async with broker_world(defaults=TopicDefaultsConfig(subscription_expiry_minutes=60)) as world:
        await (await world.talker()).subscribe("t")
        await world.restart()
        topic = await world.topic("t")
        await drop_idle_subscriptions(topic, Later(HOUR_MS // 2))
        assert "s" in topic.subscriptions
        await drop_idle_subscriptions(topic, Later(2 * HOUR_MS))
        assert "s" not in topic.subscriptions


async def test_a_subscription_expires_by_the_time_since_it_was_used_over_restarts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker_world(defaults=TopicDefaultsConfig(subscription_expiry_minutes=60)) as world:
        consumer = await world.talker()
        await consumer.subscribe("t")
        consumer.transport.close()
        topic = await world.topic("t")
        await until(lambda: not topic.is_in_use, "its consumer has left")
        for minutes in (20, 40):  # Each restart alone is far from an hour.
            await world.restart()
            monkeypatch.setattr(world.broker.service.entropy, "wall_ms", Later(minutes * 60_000).wall_ms)
            topic = await world.topic("t")
            await drop_idle_subscriptions(topic, Later(minutes * 60_000))
            assert "s" in topic.subscriptions
        await world.restart()
        monkeypatch.setattr(world.broker.service.entropy, "wall_ms", Later(58 * 60_000).wall_ms)
        topic = await world.topic("t")
        await drop_idle_subscriptions(topic, Later(62 * 60_000))
        assert "s" in topic.subscriptions  # It was loaded four minutes ago: its consumer may be reconnecting.
        await drop_idle_subscriptions(topic, Later(64 * 60_000))
        assert "s" not in topic.subscriptions


async def test_a_subscription_with_a_consumer_is_used_until_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_world(defaults=TopicDefaultsConfig(subscription_expiry_minutes=60)) as world:
        await (await world.talker()).subscribe("t")
        topic = await world.topic("t")
        monkeypatch.setattr(world.broker.service.entropy, "wall_ms", Later(10 * HOUR_MS).wall_ms)
        await Upkeep(world.broker.service).run_chore("expire")
        cursor = topic.cursors.get("s")
        assert cursor is not None
        assert cursor.stored_last_active_ms >= Later(10 * HOUR_MS).wall_ms() - 60_000  # What a crash leaves.


async def test_nothing_is_written_about_activity_where_subscriptions_do_not_expire() -> None:
    async with broker_world() as world:
        await (await world.talker()).subscribe("t")
        topic = await world.topic("t")
        await Upkeep(world.broker.service).run_chore("expire")
        cursor = topic.cursors.get("s")
        assert cursor is not None
        assert cursor.stored_last_active_ms == 0


async def test_a_subscription_that_is_being_reset_does_not_expire_and_keeps_no_other_from_it() -> None:
    async with broker_world(defaults=TopicDefaultsConfig(subscription_expiry_minutes=60)) as world:
        talker = await world.talker()
        await talker.producer("t")
        topic = await world.topic("t")
        for name in ("first", "other"):
            await topic.create_subscription(name, EARLIEST)
        topic.subscriptions.require("first")._fence("it is being reset")
        await drop_idle_subscriptions(topic, Later(2 * HOUR_MS))
        assert list(topic.subscriptions) == ["first"]


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


async def unused_topic(world: BrokerWorld, mode: DeleteMode) -> PersistentTopic:
    """Returns a topic with a message that its only subscription has not read. No client is connected for long."""
    talker = await world.talker()
    await talker.producer("t")
    await talker.subscribe("t")
    await talker.published(1, 0, b"x")
    topic = await world.topic("t")
    talker.transport.close()
    await until(lambda: not topic.is_in_use, "nobody is connected")
    inactive = dataclasses.replace(topic.policies.inactive, is_deleted=True, mode=mode)
    topic.policies = dataclasses.replace(topic.policies, inactive=inactive)
    topic.last_used_s -= 10**6
    return topic


@pytest.mark.parametrize("mode", list(DeleteMode))
async def test_a_topic_that_nobody_uses_stays_while_its_only_subscription_is_being_reset(mode: DeleteMode) -> None:
    async with broker_world() as world:
        topic = await unused_topic(world, mode)
        subscription = topic.subscriptions.require("s")
        await subscription.clear_backlog()
        world.cluster.hang(0)
        seeking = asyncio.ensure_future(topic.seek(subscription, EARLIEST))
        await until(lambda: subscription.is_fenced, "it is being reset")
        was_idle = topic.is_idle(topic.loop.time())
        world.cluster.wake(0)
        await seeking
        assert not was_idle
        await Upkeep(world.broker.service).run_chore("idle")
        assert world.broker.service.topics.loaded() == [topic]
        assert subscription.cursor.backlog_entries() == 1


@pytest.mark.parametrize(("mode", "stays"), [(DeleteMode.NO_SUBSCRIPTIONS, True), (DeleteMode.CAUGHT_UP, False)])
async def test_a_topic_that_nobody_uses_goes_with_subscriptions_that_have_read_all_only_if_the_policy_says_so(
    mode: DeleteMode, stays: bool
) -> None:
    async with broker_world() as world:
        topic = await unused_topic(world, mode)
        upkeep = Upkeep(world.broker.service)
        await upkeep.run_chore("idle")
        assert world.broker.service.topics.loaded() == [topic]
        await topic.subscriptions.require("s").clear_backlog()
        await upkeep.run_chore("idle")
        assert bool(world.broker.service.topics.loaded()) is stays


async def test_a_subscription_that_comes_when_its_topic_was_found_idle_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker_world() as world:
        topic = await unused_topic(world, DeleteMode.NO_SUBSCRIPTIONS)
        monkeypatch.setattr(topic, "is_idle", lambda _: True)
        await Upkeep(world.broker.service).run_chore("idle")
        assert world.broker.service.topics.loaded() == [topic]


# --- the chores themselves --------------------------------------------------------------------------------------------


async def test_a_chore_that_nobody_expected_to_fail_on_one_topic_is_done_on_the_others_and_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_world(upkeep=UpkeepConfig(retention_check_s=1)) as world:
        talker = await world.talker()
        for number, name in enumerate(("first", "bad", "last")):
            await talker.producer(name, number)
        looked_at: list[str] = []

        async def look(name: str) -> bool:
            looked_at.append(name)
            if name == "bad":
                raise KeyError("nobody expected that")
            return False

        for topic in world.broker.service.topics.loaded_persistent():
            monkeypatch.setattr(topic.log, "roll_if_due", partial(look, topic.name.local))
        await until(lambda: looked_at.count("last") >= 2, "the broker's own upkeep has come round twice")
        assert looked_at[:3] == ["first", "bad", "last"]
        failed = [each for each in caplog.records if each.exc_info and each.exc_info[0] is KeyError]
        assert len(failed) >= 2
        assert getattr(failed[0], "topic", "").endswith("/bad")
