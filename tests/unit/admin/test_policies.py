"""Policies: every row of both tables can be set, read and removed, and counts at once."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.admin.policies import body_of
from magnetar.broker.policies.kinds import BACKLOG_QUOTAS, DISPATCH_RATES_BY_SUBSCRIPTION, Kind
from magnetar.broker.policies.registry import EffectivePolicies, NamespacePolicies
from magnetar.broker.policies.rows import Place, rows_of
from magnetar.names import TopicName
from tests.unit.admin.admin_world import TOPIC, V2, admin_world

pytestmark = pytest.mark.virtual_time

NAMESPACE = f"{V2}/namespaces/public/default"
RATE = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": 6, "ratePeriodInSecond": 1}
VALUES: dict[str, Any] = {
    "a count": 7,
    "a count, or null": 7,
    "true or false": True,
    "AutoTopicCreationOverride": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "AutoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
    "PublishRate": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 6},
    "DispatchRate": RATE,
    "SubscribeRate": {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30},
    "RetentionPolicies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
    "PersistencePolicies": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    },
    "DelayedDeliveryPolicies": {"active": True, "tickTime": 500, "maxDeliveryDelayInMillis": 1000},
    "InactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 90,
        "deleteWhileInactive": True,
    },
    "a strategy's name": "BACKWARD",
    "a list of types": ["Shared"],
    "a list of clusters": ["standalone"],
    "None or Prefix": "Prefix",
}


ALL = [*rows_of(EffectivePolicies).values(), *rows_of(NamespacePolicies).values()]
WITH_PATHS_OF_THEIR_OWN = (BACKLOG_QUOTAS, DISPATCH_RATES_BY_SUBSCRIPTION)
ROWS = [row for row in ALL if row.kind not in WITH_PATHS_OF_THEIR_OWN]
NAMESPACE_PLACES = [(row.namespace, row.kind) for row in ROWS if row.namespace and row.namespace.path]
TOPIC_PLACES = [(row.topic, row.kind) for row in ROWS if row.topic and row.topic.path]


def body(place: Place, kind: Kind[Any]) -> str:
    return body_of(place, place.sent_as or kind)


def has(found: Any, expected: Any) -> bool:
    """Fields that were not set may be there with their defaults."""
    return bool(found == expected or (isinstance(expected, dict) and found.items() >= expected.items()))


async def test_every_policy_of_namespaces_can_be_set_read_and_removed() -> None:
    async with admin_world() as world:
        for policy, kind in NAMESPACE_PLACES:
            path, value = f"{NAMESPACE}/{policy.path}", VALUES.get(body(policy, kind))
            before = await world.get(path)
            await world.done(policy.method, path, value)
            found = (await world.get(path)).json
            assert has(found, True if value is None else value), policy.path
            if policy.can_remove:
                await world.done("DELETE", path)
                assert (await world.get(path)).body == before.body, policy.path


async def test_every_policy_of_topics_can_be_set_read_and_removed() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        for policy, kind in TOPIC_PLACES:
            path, value = f"{TOPIC}/{policy.path}", VALUES.get(body(policy, kind))
            query = "?messageTTL=7&subscriptionExpirationTime=7" if policy.is_in_query else ""
            before = await world.get(path)
            await world.done(policy.method, path + query, value)
            expected = value if value is not None else True if policy.path.startswith("dispatcher") else 7
            found = (await world.get(path)).json
            assert has(found, expected), policy.path
            if policy.can_remove:
                await world.done("DELETE", path)
                assert (await world.get(path)).body == before.body, policy.path


async def test_every_policy_of_topics_says_what_is_in_force() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        for policy, _ in TOPIC_PLACES:
            answer = await world.get(f"{TOPIC}/{policy.path}?applied=true")
            assert answer.status == 200
            assert bool(answer.body) == policy.shows_applied, policy.path
        await world.done("POST", f"{NAMESPACE}/messageTTL", 33)
        assert (await world.get(f"{TOPIC}/messageTTL?applied=true")).json == 33
        assert (await world.get(f"{TOPIC}/messageTTL")).body == b""


async def test_a_policy_counts_when_it_is_answered() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        topic = await world.world.topic("t")
        await world.done("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100})
        assert topic.policies.retention.minutes == 10
        await world.done("POST", f"{TOPIC}/retention", {"retentionTimeInMinutes": 20, "retentionSizeInMB": 100})
        assert topic.policies.retention.minutes == 20
        await world.done("DELETE", f"{TOPIC}/policies")
        assert topic.policies.retention.minutes == 10


async def test_quotas_delays_and_rates_of_single_subscriptions_are_kept() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        quota = {"limitSize": 1000, "policy": "producer_exception"}
        for path in (NAMESPACE, TOPIC):
            await world.done("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", quota)
            assert (await world.get(f"{path}/backlogQuotaMap")).json["destination_storage"]["limitSize"] == 1000
            await world.done("DELETE", f"{path}/backlogQuota?backlogQuotaType=destination_storage")
            assert (await world.get(f"{path}/backlogQuotaMap")).json == {}
            assert (await world.call("POST", f"{path}/backlogQuota?backlogQuotaType=x", quota)).status == 412
        delays = VALUES["DelayedDeliveryPolicies"]
        await world.done("POST", f"{TOPIC}/delayedDelivery", delays)
        assert (await world.get(f"{TOPIC}/delayedDelivery")).json == delays
        await world.done("DELETE", f"{TOPIC}/delayedDelivery")
        assert (await world.get(f"{TOPIC}/delayedDelivery?applied=true")).json["active"] is True
        await world.done("POST", f"{TOPIC}/s/dispatchRate", RATE)
        assert (await world.world.topic("t")).policies.subscription_dispatch_rates["s"].messages == 5
        await world.done("DELETE", f"{TOPIC}/s/dispatchRate")
        assert (await world.get(f"{TOPIC}/s/dispatchRate")).body == b""


async def test_partitions_have_the_policies_of_their_topic() -> None:
    async with admin_world() as world:
        many = f"{V2}/persistent/public/default/many"
        await world.done("PUT", f"{many}/partitions", 1)
        await world.done("POST", f"{many}/maxConsumers", 3)
        policies = world.context.broker.service.policies
        assert policies.effective(TopicName.parse("many-partition-0")).consumers_max == 3


REFUSED: list[tuple[Any, ...]] = [
    (f"{NAMESPACE}/messageTTL", -1, 412),
    (f"{NAMESPACE}/messageTTL", "abc", 400),
    (f"{NAMESPACE}/messageTTL", None, 400),
    (f"{NAMESPACE}/deduplication", 1, 400),
    (f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 400),
    (f"{NAMESPACE}/retention", {"retentionTimeInMinutes": "x"}, 400),
    (f"{NAMESPACE}/retention", [], 400),
    (f"{NAMESPACE}/persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2}, 412),
    (f"{NAMESPACE}/autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "odd"}, 412),
    (f"{NAMESPACE}/autoSubscriptionCreation", {}, 400),
    (f"{NAMESPACE}/subscriptionTypesEnabled", ["Odd"], 412),
    (f"{NAMESPACE}/subscriptionAuthMode", "Odd", 412),
    (f"{NAMESPACE}/replication", ["nowhere"], 403),
    (f"{NAMESPACE}/replication", [], 412),
    (f"{NAMESPACE}/delayedDelivery", {"active": True, "tickTime": -1}, 412),
    (f"{NAMESPACE}/inactiveTopicPolicies", {"inactiveTopicDeleteMode": "odd"}, 400),
    (f"{NAMESPACE}/backlogQuota", {"policy": "odd"}, 400),
    (f"{V2}/namespaces/public/nothing/messageTTL", 1, 404),
    (f"{TOPIC}/maxConsumers", 1, 404),
]


async def test_a_value_that_makes_no_sense_is_refused_and_changes_nothing() -> None:
    async with admin_world() as world:
        before = (await world.get(NAMESPACE)).json
        for path, body, status in REFUSED:
            answer = await world.call("POST", path, body)
            assert (answer.status, bool(answer.reason)) == (status, True), (path, body)
        assert (await world.get(NAMESPACE)).json == before


async def test_a_quota_and_a_retention_must_fit_each_other() -> None:
    async with admin_world() as world:
        await world.done("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1})
        answer = await world.call("POST", f"{NAMESPACE}/backlogQuota", {"limitSize": 2**21})
        assert answer.status == 412
        await world.done("POST", f"{NAMESPACE}/backlogQuota", {"limitSize": 1000})
        assert (await world.get(f"{NAMESPACE}/backlogQuotaMap")).json["destination_storage"]["limit"] == 1000
