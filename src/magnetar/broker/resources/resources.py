"""Resources: all that Pulsar keeps in the metadata store besides logs, with a cache.

    resources = Resources(store, config.broker)
    await resources.bootstrap(service_url="http://…", broker_service_url="pulsar://…")
    policies = await resources.namespaces.policies(topic.namespace)

`bootstrap` makes what a broker needs: its cluster, tenants `public` and `pulsar`, their namespaces, `/bookies`. All
nodes are read together, and missing ones are made in one transaction, parents included. Existing nodes stay, except
that the cluster's name is added where tenants and namespaces list the clusters they may use. Several brokers may do it
at once; one that loses a race makes what is still missing node by node.

Clusters, tenants, the policies of namespaces and partitioned topics are the configuration, which several clusters may
share in a store of its own. The rest is local: bundles, owners, logs, schemas, load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.broker.resources import paths
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.documents import Document, Documents, encode
from magnetar.broker.resources.isolation import FailureDomains, IsolationPolicies
from magnetar.broker.resources.namespaces import Clusters, Namespaces, Tenants, new_cluster, new_policies, new_tenant
from magnetar.broker.resources.topics import PartitionedTopics, Topics
from magnetar.config.broker import BrokerConfig
from magnetar.errors import TransactionFailedError
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.paths import ancestors_of
from magnetar.metadata.store import Create, MetadataStore
from magnetar.names import DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, check_entity
from magnetar.runtime.slices import Slices


@dataclass(frozen=True, slots=True)
class _Wanted:
    path: str
    document: Document
    clusters_field: str | None = None
    """Where an existing document lists its clusters."""


async def _make(documents: Documents, cluster: str, some: Iterable[_Wanted]) -> None:
    wanted = {each.path: each for each in some}
    parents = sorted({parent for path in wanted for parent in ancestors_of(path)} - wanted.keys())
    everything = [*parents, *wanted]  # Outer nodes first: sorted, and listed so.
    nodes = await asyncio.gather(*(documents.store.get(path) for path in everything))
    missing = [path for path, node in zip(everything, nodes, strict=True) if node is None]
    if missing:
        values = {path: encode(each.document) for path, each in wanted.items()}
        creates = [Create(path, values.get(path, b"")) for path in missing]
        try:
            await documents.store.transact(creates)
        except TransactionFailedError:
            missing = []  # Another broker does the same: look at every node by itself.
    await asyncio.gather(*(_ensure(documents, each, cluster) for path, each in wanted.items() if path not in missing))


def _wanted(cluster: str, cluster_document: Document, bundles: Bundles) -> list[_Wanted]:
    tenants = [DEFAULT_NAMESPACE.tenant, SYSTEM_NAMESPACE.tenant]
    namespaces = [DEFAULT_NAMESPACE, SYSTEM_NAMESPACE]
    return [
        _Wanted(paths.cluster(cluster), cluster_document),
        *(_Wanted(paths.tenant(name), new_tenant([cluster]), "allowedClusters") for name in tenants),
        *(
            _Wanted(paths.namespace(name), new_policies([cluster], bundles), "replication_clusters")
            for name in namespaces
        ),
    ]


async def _ensure(documents: Documents, wanted: _Wanted, cluster: str) -> None:
    field = wanted.clusters_field

    def decide(found: Document | None) -> Document | None:
        if found is None:
            return wanted.document
        if field is None or cluster in (found.get(field) or []):
            return None
        return found | {field: sorted({*(found.get(field) or []), cluster})}

    await documents.update_or_create(wanted.path, decide)


class Resources:
    """Owns the cache, not the store."""

    def __init__(self, store: MetadataStore, config: BrokerConfig, configuration: MetadataStore | None = None) -> None:
        """`configuration` is the store that clusters share; by default it is `store`."""
        self.store = store
        self.configuration = configuration or store
        self.cache = MetadataCache(store, entries_max=config.metadata_cache_entries_max)
        self.slices = Slices()
        """For all long work of this broker."""
        self.documents = local = Documents(store, self.cache)
        self._shared = shared = local
        if self.configuration is not store:
            cache = MetadataCache(self.configuration, entries_max=config.metadata_cache_entries_max)
            self._shared = shared = Documents(self.configuration, cache)
        self.clusters = Clusters(shared)
        self.isolation_policies = IsolationPolicies(shared)
        self.failure_domains = FailureDomains(shared)
        self.tenants = Tenants(shared, local, tenants_max=config.tenants_max)
        self.namespaces = Namespaces(shared, local, namespaces_per_tenant_max=config.namespaces_per_tenant_max)
        self.partitioned_topics = PartitionedTopics(shared, partitions_max=config.partitions_max)
        self.topics = Topics(local, self.slices)
        self._config = config

    async def bootstrap(self, *, service_url: str = "", broker_service_url: str = "") -> None:
        """Makes what a new cluster needs; otherwise it only reads."""
        cluster = check_entity(self._config.cluster, "cluster")
        document = new_cluster(service_url=service_url, broker_service_url=broker_service_url)
        shared = _wanted(cluster, document, Bundles.equal(self._config.namespace_bundles))
        local = [_Wanted(paths.BOOKIES, {})]
        if self._shared is self.documents:
            await _make(self.documents, cluster, [*local, *shared])
        else:
            await _make(self._shared, cluster, shared)
            await _make(self.documents, cluster, local)

    async def aclose(self) -> None:
        await self.cache.aclose()
        if self._shared is not self.documents:
            await self._shared.cache.aclose()
