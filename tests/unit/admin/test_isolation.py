from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import pytest

from magnetar.broker.cluster.leader import LeaderBroker
from magnetar.broker.cluster.load_report import BrokerReport
from magnetar.broker.cluster.membership import SoleMember
from magnetar.broker.ownership import BrokerAddress
from tests.unit.admin.admin_world import V2, admin_world
from tests.unit.broker import golden

POLICIES = f"{V2}/clusters/standalone/namespaceIsolationPolicies"
DOMAINS = f"{V2}/clusters/standalone/failureDomains"
GROUP = f"{V2}/namespaces/public/default/antiAffinity"
SALES = json.loads(golden.cluster()["isolation policies"])["sales"]


async def test_isolation_policies_are_set_listed_and_deleted() -> None:
    async with admin_world() as world:
        assert (await world.get(POLICIES)).status == 404
        await world.done("POST", f"{POLICIES}/sales", SALES)
        assert (await world.get(POLICIES)).json == {"sales": SALES}
        assert (await world.get(f"{POLICIES}/sales")).json == SALES
        assert (await world.get(f"{POLICIES}/other")).status == 404
        await world.done("DELETE", f"{POLICIES}/sales")
        assert (await world.call("DELETE", f"{POLICIES}/sales")).status == 404
        assert (await world.get(POLICIES)).status == 404


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({}, "needs `namespaces` and `primary`"),
        (SALES | {"primary": ["("]}, "is no regular expression"),
        (SALES | {"unload_scope": "some"}, "`unload_scope`"),
    ],
)
async def test_an_isolation_policy_that_cannot_be_followed_is_refused(policy: object, reason: str) -> None:
    async with admin_world() as world:
        answer = await world.call("POST", f"{POLICIES}/sales", policy)
        assert answer.status == 400
        assert reason in answer.reason


async def test_brokers_are_shown_with_the_policies_that_name_them() -> None:
    async with admin_world() as world:
        await world.done("POST", f"{POLICIES}/sales", SALES)
        expected = json.loads(golden.cluster()["isolation of broker"])
        assert (await world.get(f"{POLICIES}/brokers/a-1:8080")).json == expected
        secondary = {"brokerName": "b-1:8080", "policyName": "sales", "namespaceRegex": ["sales/.*"], "primary": False}
        assert (await world.get(f"{POLICIES}/brokers/b-1:8080")).json == secondary
        own = world.world.broker.service.address.broker_id
        assert (await world.get(f"{POLICIES}/brokers")).json == [
            {"brokerName": own, "namespaceRegex": [], "primary": False}
        ]


async def test_failure_domains_are_set_listed_and_deleted() -> None:
    async with admin_world() as world:
        assert (await world.get(DOMAINS)).json == {}
        await world.done("POST", f"{DOMAINS}/left", {"brokers": ["b1:8080", "b2:8080"]})
        assert (await world.get(DOMAINS)).json == {"left": {"brokers": ["b1:8080", "b2:8080"]}}
        assert (await world.get(f"{DOMAINS}/left")).json == {"brokers": ["b1:8080", "b2:8080"]}
        taken = await world.call("POST", f"{DOMAINS}/right", {"brokers": ["b2:8080"]})
        assert (taken.status, "is in failure domain left" in taken.reason) == (409, True)
        assert (await world.call("POST", f"{DOMAINS}/right", {"brokers": "b3"})).status == 400
        await world.done("DELETE", f"{DOMAINS}/left")
        assert (await world.get(f"{DOMAINS}/left")).status == 404


async def test_the_rules_of_a_cluster_that_does_not_exist_are_refused() -> None:
    async with admin_world() as world:
        for path in ("namespaceIsolationPolicies", "failureDomains"):
            answer = await world.get(f"{V2}/clusters/elsewhere/{path}")
            assert (answer.status, answer.reason) == (412, "Cluster elsewhere does not exist.")


@pytest.mark.parametrize("body", [b"pair", b'"pair"'])
async def test_a_namespace_is_put_into_an_anti_affinity_group_and_taken_out(body: bytes) -> None:
    async with admin_world() as world:
        assert (await world.get(GROUP)).body == b""
        assert (await world.call("POST", GROUP, raw=body)).status == 204
        assert (await world.get(GROUP)).body == b"pair"
        listed = f"{V2}/namespaces/standalone/antiAffinity/pair"
        assert (await world.get(f"{listed}?tenant=public")).json == ["public/default"]
        assert (await world.get(f"{listed}?tenant=pulsar")).json == []
        assert (await world.get(listed)).status == 412
        await world.done("DELETE", GROUP)
        assert (await world.get(GROUP)).body == b""


@pytest.mark.parametrize(("body", "status"), [(b"", 412), (b'""', 412), (b" ", 412), (b'"half', 400), (b'"\\x"', 400)])
async def test_a_group_needs_a_name(body: bytes, status: int) -> None:
    async with admin_world() as world:
        assert (await world.call("POST", GROUP, raw=body)).status == status
        assert (await world.get(GROUP)).body == b""


# --- the brokers of a cluster -----------------------------------------------------------------------------------------


class TwoMembers(SoleMember):
    """This broker, and another one that leads."""

    OTHER = BrokerAddress("other:8080", "http://other:8080", {"pulsar": "pulsar://other:6650"})

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(address)
        self.leader: LeaderBroker | None = LeaderBroker("other:8080", "http://other:8080")
        self.report = BrokerReport(address=address, updated_ms=5)

    async def alive(self) -> list[str]:
        return sorted([*await super().alive(), self.OTHER.broker_id])

    async def leading(self) -> LeaderBroker | None:
        return self.leader

    async def address_of(self, broker_id: str) -> BrokerAddress | None:
        return self.OTHER if broker_id == self.OTHER.broker_id else await super().address_of(broker_id)

    def reports(self) -> Mapping[str, BrokerReport]:
        return {self.report.address.broker_id: self.report}


async def test_all_brokers_and_the_leader_are_shown_by_each_of_them() -> None:
    async with admin_world() as world:
        service = world.world.broker.service
        members = service.membership = TwoMembers(service.address)
        both = sorted([service.address.broker_id, "other:8080"])
        assert (await world.get(f"{V2}/brokers")).json == both
        assert (await world.get(f"{V2}/brokers/standalone")).json == both
        assert (await world.get(f"{V2}/brokers/leaderBroker")).json == {
            "serviceUrl": "http://other:8080",
            "brokerId": "other:8080",
        }
        members.leader = None
        assert (await world.get(f"{V2}/brokers/leaderBroker")).status == 404
        owned = await world.get(f"{V2}/brokers/standalone/other:8080/ownedNamespaces")
        assert owned.status == 307
        assert owned.headers["location"].startswith("http://other:8080/admin/v2/brokers/standalone/other:8080/")
        assert (await world.get(f"{V2}/brokers/standalone/gone:8080/ownedNamespaces")).status == 404


async def test_the_load_report_is_the_one_that_the_broker_has_written() -> None:
    async with admin_world() as world:
        service = world.world.broker.service
        service.membership = members = TwoMembers(service.address)
        members.report = dataclasses.replace(members.report, updated_ms=7)
        assert (await world.get(f"{V2}/broker-stats/load-report")).json == members.report.to_json()


async def test_the_reports_of_all_brokers_are_shown_with_the_leader() -> None:
    async with admin_world() as world:
        await world.publish(1)
        service = world.world.broker.service
        (alone,) = (await world.get(f"{V2}/magnetar/brokers")).json
        assert (alone["brokerId"], alone["isLeader"]) == (service.address.broker_id, True)
        ((bundle, counts),) = alone["report"]["lastStats"].items()
        assert bundle.startswith("public/default/0x")
        assert counts == {"topics": 1, "consumerCount": 0, "producerCount": 0}
        members = service.membership = TwoMembers(service.address)
        assert (await world.get(f"{V2}/magnetar/brokers")).json == [
            {"brokerId": service.address.broker_id, "isLeader": False, "report": members.report.to_json()}
        ]
