"""Clusters, tenants and namespaces: what topics belong to.

Format:    A broker needs its own cluster; the others are for replication. One JSON document for each namespace has
           every policy (docs/policies.md); `deleted` is set while the namespace is being deleted, and nothing new may
           begin in it. Its local policies have the bundles in force: they are copied from the policies when they are
           first needed, as Apache does, and a split changes only them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.documents import Decision, Document, Documents, NamedDocuments, delete_tree
from magnetar.errors import InvalidNameError, NoNodeError, ResourceInUseError, ResourceLimitError, ResourceMissingError
from magnetar.names import NamespaceName, check_entity
from magnetar.schemas import storage as schemas

# --- clusters and tenants ---------------------------------------------------------------------------------------------

_NEW: Document = {  # What Pulsar writes for a cluster without other data.
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
_NOT_CLUSTERS = ("global",)  # A name that stands for all of them.


def new_cluster(*, service_url: str = "", broker_service_url: str = "") -> Document:
    urls = {"serviceUrl": service_url, "brokerServiceUrl": broker_service_url}
    return {name: url for name, url in urls.items() if url} | _NEW


class Clusters(NamedDocuments[str]):
    """Before one is deleted, the caller checks whether tenants still use it."""

    def __init__(self, documents: Documents) -> None:
        super().__init__(
            documents, lambda name: paths.cluster(check_entity(name, "cluster")), lambda name: f"cluster {name!r}", ""
        )

    async def names(self) -> list[str]:
        return [name for name in await self._documents.children(paths.CLUSTERS) if name not in _NOT_CLUSTERS]


def new_tenant(allowed_clusters: Iterable[str], admin_roles: Iterable[str] = ()) -> Document:
    return {"adminRoles": sorted(admin_roles), "allowedClusters": sorted(allowed_clusters)}


class Tenants(NamedDocuments[str]):
    def __init__(self, documents: Documents, local: Documents, *, tenants_max: int) -> None:
        """`local` are those of this cluster alone."""
        super().__init__(
            documents, lambda name: paths.tenant(check_entity(name, "tenant")), lambda name: f"tenant {name!r}"
        )
        self._local = local
        self._tenants_max = tenants_max

    async def names(self) -> list[str]:
        return await self._documents.children(paths.POLICIES)

    async def create(self, name: str, document: Document) -> None:
        if self._tenants_max and len(await self.names()) >= self._tenants_max:
            raise ResourceLimitError(
                f"there are {self._tenants_max} tenants, as many as broker.tenants_max allows: raise it, or delete one"
            )
        await super().create(name, document)

    async def delete(self, name: str) -> None:
        """Deletes the tenant. Raises ResourceInUseError while it has namespaces."""
        await self.require(name)
        if namespaces := await self._documents.children(self._path(name)):
            raise ResourceInUseError(f"tenant {name!r} has namespaces, {namespaces[0]!r} among them: delete them first")
        await super().delete(name)
        await delete_tree(self._documents.store, f"{paths.PARTITIONED_TOPICS}/{name}")
        for root in (paths.LOCAL_POLICIES, paths.OWNERSHIP, paths.MANAGED_LEDGERS):
            await delete_tree(self._local.store, f"{root}/{name}")  # Empty parents: its namespaces are deleted.


# --- namespaces -------------------------------------------------------------------------------------------------------


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


class Namespaces(NamedDocuments[NamespaceName]):
    """One that is being deleted exists."""

    def __init__(self, documents: Documents, local: Documents, *, namespaces_per_tenant_max: int) -> None:
        """`local` are those of this cluster alone."""
        super().__init__(documents, paths.namespace, lambda name: f"namespace {name}")
        self._local = local
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
        return await self.get(name)

    async def create(self, name: NamespaceName, document: Document) -> None:
        if not await self._documents.exists(paths.tenant(name.tenant)):
            raise ResourceMissingError(f"tenant {name.tenant!r} does not exist: create it first")
        if self._per_tenant_max and len(await self.names(name.tenant)) >= self._per_tenant_max:
            raise ResourceLimitError(
                f"tenant {name.tenant!r} has {self._per_tenant_max} namespaces, as many as "
                "broker.namespaces_per_tenant_max allows: raise it, or delete one"
            )
        await super().create(name, document)

    async def mark_deleted(self, name: NamespaceName) -> None:
        """Prevents new topics, before the namespace's topics are deleted."""
        await self.update(name, lambda policies: policies | {"deleted": True})

    async def delete(self, name: NamespaceName) -> None:
        """Deletes what is left of a namespace after its topics. Missing nodes are no error."""
        await delete_tree(self._documents.store, f"{paths.PARTITIONED_TOPICS}/{name}")
        for root in (paths.MANAGED_LEDGERS, schemas.ROOT, paths.OWNERSHIP):
            await delete_tree(self._local.store, f"{root}/{name}")
        for documents, path in ((self._local, paths.local_policies(name)), (self._documents, paths.namespace(name))):
            try:
                await documents.delete(path)
            except NoNodeError:
                continue

    async def local_policies(self, name: NamespaceName) -> Document:
        """Returns the local policies, and makes them from the policies if they are missing."""
        found = await self._local.read(paths.local_policies(name))
        return found if found is not None else await self.update_local(name, lambda policies: policies)

    async def update_local(self, name: NamespaceName, decide: Decision) -> Document:
        policies = await self.policies(name)
        return await self._local.update_or_create(paths.local_policies(name), _local(policies, decide))

    async def anti_affinity_group(self, name: NamespaceName) -> str | None:
        return (await self.local_policies(name)).get("namespaceAntiAffinityGroup") or None

    async def set_anti_affinity_group(self, name: NamespaceName, group: str | None) -> None:
        def decide(found: Document) -> Document:
            rest = {field: value for field, value in found.items() if field != "namespaceAntiAffinityGroup"}
            return rest | ({} if group is None else {"namespaceAntiAffinityGroup": group})

        await self.update_local(name, decide)

    async def bundles(self, name: NamespaceName) -> Bundles:
        return Bundles.from_json((await self.local_policies(name)).get("bundles"))


def _local(policies: Document, decide: Decision) -> Callable[[Document | None], Document | None]:
    bundles = policies.get("bundles") or Bundles.equal(1).to_json()
    return lambda found: decide({"bundles": bundles, "migrated": False} if found is None else found)
