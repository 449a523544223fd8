"""A broker of a cluster explains who owns a topic: it asks the owner and the leader over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.admin.topics import ownership
from magnetar.client.http import HttpClient, json_of, succeeded
from magnetar.errors import HttpRefusedError
from magnetar.names import TopicName
from magnetar.testing.broker_node import BrokerNode
from magnetar.testing.cluster import PulsarCluster
from magnetar.testing.waiting import until

TOPIC = TopicName.parse("public/default/t")
_SECONDS = 20.0


async def explain(cluster: PulsarCluster, asked: BrokerNode, topic: TopicName = TOPIC) -> dict[str, Any]:
    async with HttpClient(asked.admin_url, cluster.runtime.entropy.random) as http:
        path = f"/admin/v2/persistent/{topic.namespace}/{topic.encoded}/explain"
        found: dict[str, Any] = json_of(succeeded(await http.request("GET", path, timeout_s=_SECONDS)))
        return found


async def load_topic(cluster: PulsarCluster) -> BrokerNode:
    owner = await cluster.owner_of(TOPIC)
    await owner.running.service.persistent_topic(TOPIC, create=True)
    return owner


async def test_every_broker_names_the_owner_and_why_it_was_chosen() -> None:
    async with PulsarCluster(brokers=3) as cluster:
        owner = await load_topic(cluster)
        now_ms = cluster.runtime.entropy.wall_ms()
        for asked in cluster.brokers:
            found = await explain(cluster, asked)
            assert (found["topic"], found["owner"], found["not_asked"]) == (str(TOPIC), owner.broker_id, [])
            assert found["bundle"].startswith("public/default/0x")
            assert abs(now_ms - found["since_ms"]) < 60_000
            assert found["acquired"]["how"] == ("chosen-here" if owner is cluster.brokers[0] else "chosen")
            assert found["decision"]["by"] == found["leader"] == cluster.brokers[0].broker_id
            assert (found["decision"]["why"], found["decision"]["text"]) == ("load", "none of 3 brokers had less load")


async def test_a_bundle_that_was_taken_over_names_the_broker_that_had_left() -> None:
    async with PulsarCluster(brokers=3, settings=["balance.report_interval_s=1"]) as cluster:
        leader, *others = cluster.brokers
        owner = await load_topic(cluster)
        if owner is leader:
            bundle = await bundle_of(leader)
            await leader.running.service.ownership.unload(bundle, others[0].broker_id)
            owner = await load_topic(cluster)
        bundle = await bundle_of(owner)
        reports = leader.running.service.membership.reports
        await until(lambda: str(bundle) in reports()[owner.broker_id].bundles, "the bundle is reported")
        await cluster.kill(owner.broker_id)
        heir = await cluster.owner_of(TOPIC)
        await until(lambda: owner.broker_id not in reports(), "the leader sees that it has left")
        found = await explain(cluster, heir)
        assert found["owner"] == heir.broker_id
        assert found["decision"]["why"] == "taken-over"
        assert f"broker {owner.broker_id}, which had reported the bundle, had left" in found["decision"]["text"]


async def bundle_of(node: BrokerNode) -> Any:
    (bundle,) = [each for each in (node.running.service.ownership.owned() or {}) if TOPIC in each]
    return bundle


async def test_a_bundle_that_was_owned_again_after_an_expired_session_says_so() -> None:
    async with PulsarCluster(brokers=2) as cluster:
        owner = await load_topic(cluster)
        await cluster.expire_session(owner.broker_id)
        await until(lambda: owner.running.service.ownership.owns(TOPIC), "the bundle is owned again")
        found = await explain(cluster, owner)
        assert (found["owner"], found["acquired"]["how"]) == (owner.broker_id, "again")


async def test_a_reason_that_no_broker_remembers_is_not_invented() -> None:
    async with PulsarCluster(brokers=2) as cluster:
        leader, other = cluster.brokers
        owner = await load_topic(cluster)
        if owner is leader:
            await leader.running.service.ownership.unload(await bundle_of(leader), other.broker_id)
        await cluster.restart(leader.broker_id)
        found = await explain(cluster, leader)
        assert (found["owner"], found["leader"]) == (other.broker_id, other.broker_id)
        assert (found["acquired"]["how"], found["decision"]) == ("chosen", None)


async def test_a_bundle_without_an_owner_gets_none_by_the_question() -> None:
    async with PulsarCluster(brokers=2) as cluster:
        owner = await load_topic(cluster)
        await owner.running.service.ownership.unload(await bundle_of(owner))
        for _ in range(2):
            assert (await explain(cluster, owner))["owner"] is None


async def test_an_owner_that_does_not_answer_is_named_and_the_rest_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "_ASKED_S_MAX", 0.1)
    async with PulsarCluster(brokers=2) as cluster:
        owner = await load_topic(cluster)
        other = next(node for node in cluster.brokers if node is not owner)
        cluster.pause(owner.broker_id)
        found = await explain(cluster, other)
        assert (found["owner"], found["acquired"]) == (owner.broker_id, None)
        assert found["not_asked"][0].startswith(f"broker {owner.broker_id}: ")


async def test_the_only_broker_owns_every_topic() -> None:
    async with PulsarCluster() as cluster:
        (only,) = cluster.brokers
        await load_topic(cluster)
        found = await explain(cluster, only)
        assert (found["owner"], found["since_ms"], found["decision"]) == (only.broker_id, None, None)
        assert found["acquired"]["text"] == "it is the only broker of its cluster"


async def test_a_topic_that_does_not_exist_is_not_found() -> None:
    async with PulsarCluster() as cluster:
        with pytest.raises(HttpRefusedError, match="missing not found"):
            await explain(cluster, cluster.brokers[0], TopicName.parse("public/default/missing"))
