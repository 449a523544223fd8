"""Namespaces: their policies, shared by all clusters, and their local policies, which have the bundles in force.

Format:    One JSON document for each namespace has every policy (docs/policies.md); `deleted` is set while the
           namespace is being deleted, and nothing new may begin in it. The bundles in the local policies are valid.
           They are copied from the policies when they are first needed, as Apache does, and a split changes only them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.documents import Decision, Document, Documents, delete_tree
from magnetar.errors import (
    InvalidNameError,
    NodeExistsError,
    NoNodeError,
    ResourceExistsError,
    ResourceLimitError,
    ResourceMissingError,
)
from magnetar.names import NamespaceName
from magnetar.schemas import storage as schemas


def new_policies(clusters: Iterable[str], bundles: Bundles) -> Document:
    """Returns what Pulsar writes for a namespace without settings; policies that are not set are absent."""
    return {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": sorted(clusters),
        "allowed_clusters": [],
        "bundles": bundles.to_json(),
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }


class Namespaces:
    def __init__(self, documents: Documents, *, namespaces_per_tenant_max: int) -> None:
        self._documents = documents
        self._per_tenant_max = namespaces_per_tenant_max

    async def names(self, tenant: str) -> list[NamespaceName]:
        """Returns the namespaces of a tenant; none if it does not exist. Nodes that are not names are left out."""
        found = []
        for local in await self._documents.children(paths.tenant(tenant)):
            try:
                found.append(NamespaceName.of(tenant, local))
            except InvalidNameError:
                continue
        return found

    async def policies(self, name: NamespaceName) -> Document:
        found = await self._documents.read(paths.namespace(name))
        if found is None:
            raise _missing(name)
        return found

    async def exists(self, name: NamespaceName) -> bool:
        """Whether it exists, even if it is being deleted."""
        return await self._documents.exists(paths.namespace(name))

    async def create(self, name: NamespaceName, policies: Document) -> None:
        if not await self._documents.exists(paths.tenant(name.tenant)):
            raise ResourceMissingError(f"tenant {name.tenant!r} does not exist: create it first")
        if self._per_tenant_max and len(await self.names(name.tenant)) >= self._per_tenant_max:
            raise ResourceLimitError(
                f"tenant {name.tenant!r} has {self._per_tenant_max} namespaces, as many as "
                "broker.namespaces_per_tenant_max allows: raise it, or delete one"
            )
        try:
            await self._documents.create(paths.namespace(name), policies)
        except NodeExistsError:
            raise ResourceExistsError(f"namespace {name} exists already") from None

    async def update(self, name: NamespaceName, decide: Decision) -> Document:
        try:
            return await self._documents.update(paths.namespace(name), decide)
        except NoNodeError:
            raise _missing(name) from None

    async def mark_deleted(self, name: NamespaceName) -> None:
        """Prevents new topics, before the namespace's topics are deleted."""
        await self.update(name, lambda policies: policies | {"deleted": True})

    async def delete(self, name: NamespaceName) -> None:
        """Deletes what is left of a namespace after its topics. Missing nodes are no error."""
        store = self._documents.store
        for root in (paths.PARTITIONED_TOPICS, paths.MANAGED_LEDGERS, schemas.ROOT, paths.OWNERSHIP):
            await delete_tree(store, f"{root}/{name}")
        for path in (paths.local_policies(name), paths.namespace(name)):
            try:
                await self._documents.delete(path)
            except NoNodeError:
                continue

    # --- local policies -----------------------------------------------------------------------------------------------

    async def local_policies(self, name: NamespaceName) -> Document:
        """Returns the local policies, and makes them from the policies if they are missing."""
        found = await self._documents.read(paths.local_policies(name))
        return found if found is not None else await self.update_local(name, lambda policies: policies)

    async def update_local(self, name: NamespaceName, decide: Decision) -> Document:
        policies = await self.policies(name)
        return await self._documents.update_or_create(paths.local_policies(name), _local(policies, decide))

    async def bundles(self, name: NamespaceName) -> Bundles:
        return Bundles.from_json((await self.local_policies(name)).get("bundles"))


def _local(policies: Document, decide: Decision) -> Callable[[Document | None], Document | None]:
    bundles = policies.get("bundles") or Bundles.equal(1).to_json()
    return lambda found: decide({"bundles": bundles, "migrated": False} if found is None else found)


def _missing(name: NamespaceName) -> ResourceMissingError:
    return ResourceMissingError(f"namespace {name} does not exist: create it first")
