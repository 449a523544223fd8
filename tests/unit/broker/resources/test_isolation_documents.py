from __future__ import annotations

import json

import pytest

from magnetar.errors import InvalidNameError, ResourceExistsError, ResourceMissingError
from magnetar.names import DEFAULT_NAMESPACE
from tests.unit.broker import golden
from tests.unit.broker.worlds import resources_world

POLICY = json.loads(golden.cluster()["isolation policies"])["sales"]


async def test_isolation_policies_are_stored_as_apache_stores_them() -> None:
    async with resources_world() as resources:
        assert await resources.isolation_policies.all("c") == {}
        await resources.isolation_policies.set("c", "sales", POLICY)
        node = await resources.store.get("/admin/clusters/c/namespaceIsolationPolicies")
        assert node is not None
        assert node.value == golden.cluster()["isolation policies"].encode()
        await resources.isolation_policies.set("c", "other", POLICY)
        await resources.isolation_policies.delete("c", "sales")
        assert await resources.isolation_policies.all("c") == {"other": POLICY}
        assert await resources.isolation_policies.get("c", "other") == POLICY


async def test_an_isolation_policy_that_does_not_exist_is_named() -> None:
    async with resources_world() as resources:
        for request in (resources.isolation_policies.get, resources.isolation_policies.delete):
            with pytest.raises(ResourceMissingError, match="policy 'sales' of cluster 'c' does not exist"):
                await request("c", "sales")
        with pytest.raises(InvalidNameError):
            await resources.isolation_policies.all("../tenants")


async def test_failure_domains_are_stored_as_apache_stores_them() -> None:
    async with resources_world() as resources:
        assert await resources.failure_domains.all("c") == {}
        await resources.failure_domains.set("c", "left", ["b2:8080", "b1:8080"])
        node = await resources.store.get("/admin/clusters/c/failureDomain/left")
        assert node is not None
        assert node.value == golden.cluster()["failure domain"].encode()
        assert await resources.failure_domains.get("c", "left") == ["b1:8080", "b2:8080"]
        assert await resources.failure_domains.all("c") == {"left": ["b1:8080", "b2:8080"]}
        await resources.failure_domains.delete("c", "left")
        for request in (resources.failure_domains.get, resources.failure_domains.delete):
            with pytest.raises(ResourceMissingError, match="failure domain 'left' of cluster 'c' does not exist"):
                await request("c", "left")


async def test_a_broker_is_in_one_failure_domain() -> None:
    async with resources_world() as resources:
        await resources.failure_domains.set("c", "left", ["b1:8080"])
        with pytest.raises(ResourceExistsError, match="b1:8080 is in failure domain left"):
            await resources.failure_domains.set("c", "right", ["b1:8080", "b2:8080"])
        await resources.failure_domains.set("c", "left", ["b1:8080", "b3:8080"])


async def test_the_group_of_a_namespace_is_kept_beside_its_bundles() -> None:
    async with resources_world() as resources:
        namespaces = resources.namespaces
        before = await namespaces.local_policies(DEFAULT_NAMESPACE)
        assert await namespaces.anti_affinity_group(DEFAULT_NAMESPACE) is None
        await namespaces.set_anti_affinity_group(DEFAULT_NAMESPACE, "pair")
        assert await namespaces.anti_affinity_group(DEFAULT_NAMESPACE) == "pair"
        assert golden.document("local policies full")["namespaceAntiAffinityGroup"] == "anti"
        await namespaces.set_anti_affinity_group(DEFAULT_NAMESPACE, None)
        assert await namespaces.local_policies(DEFAULT_NAMESPACE) == before
