"""Resources: all that Pulsar keeps in the metadata store besides logs, with one cache.

resources = Resources(store, config.broker)
await resources.bootstrap(service_url="http://…", broker_service_url="pulsar://…")
policies = await resources.namespaces.policies(topic.namespace)
"""

from __future__ import annotations

from magnetar.broker.resources.bootstrap import bootstrap
from magnetar.broker.resources.clusters import Clusters, new_cluster
from magnetar.broker.resources.documents import Documents
from magnetar.broker.resources.namespaces import Namespaces
from magnetar.broker.resources.partitioned_topics import PartitionedTopics
from magnetar.broker.resources.tenants import Tenants
from magnetar.broker.resources.topics import Topics
from magnetar.config.broker import BrokerConfig
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.store import MetadataStore


class Resources:
    """Owns the cache, not the store."""

    def __init__(self, store: MetadataStore, config: BrokerConfig) -> None:
        self.store = store
        self.cache = MetadataCache(store, entries_max=config.metadata_cache_entries_max)
        self.documents = Documents(store, self.cache)
        self.clusters = Clusters(self.documents)
        self.tenants = Tenants(self.documents, tenants_max=config.tenants_max)
        self.namespaces = Namespaces(self.documents, namespaces_per_tenant_max=config.namespaces_per_tenant_max)
        self.partitioned_topics = PartitionedTopics(self.documents, partitions_max=config.partitions_max)
        self.topics = Topics(self.documents)
        self._config = config

    async def bootstrap(self, *, service_url: str = "", broker_service_url: str = "") -> None:
        """Makes what a new cluster needs; on one that has it, it only looks."""
        document = new_cluster(service_url=service_url, broker_service_url=broker_service_url)
        await bootstrap(self.documents, self._config.cluster, document, bundles=self._config.namespace_bundles)

    async def aclose(self) -> None:
        await self.cache.aclose()
