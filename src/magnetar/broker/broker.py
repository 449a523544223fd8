"""Broker: the broker's parts put together, and its own metrics: topics, loads, staged data.

Front ends register their metrics, such as connections. The admin interface has the metrics that Pulsar publishes about
topics. The broker owns topics, front ends and caches; the metadata store and the ledger client are the caller's.

Order:     It starts so: bind the ports → what a new cluster needs → a number for producers' names → listen. No client
           is served before that. It ends so: no new connections → pass the bundles on to other brokers, one by one →
           unload what is left, which disconnects every client and stores every cursor → close.
Read next: service.py, broker/topics/registry.py, broker/upkeep/upkeep.py, front_end.py; docs/broker.md
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from magnetar.broker.front_end import PULSAR, Endpoint, FrontEnd, FrontEndStatistics, total
from magnetar.broker.ownership import BrokerAddress, Ownership, OwnershipContext, SoleOwnership
from magnetar.broker.policies.service import PolicyService
from magnetar.broker.resources.producer_names import ProducerNames
from magnetar.broker.resources.resources import Resources
from magnetar.broker.service import BrokerService
from magnetar.broker.staged.publishing import BrokerPublisher, StagedPublishing, StagedSweeping
from magnetar.broker.topics.change_events import ChangeEvents
from magnetar.broker.topics.persistent import TopicParts
from magnetar.broker.topics.registry import Topics
from magnetar.broker.topics.schemas import TopicSchemas
from magnetar.broker.upkeep.upkeep import Upkeep
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.schemas.registry import SchemaRegistry
from magnetar.schemas.storage import BookieSchemaLedgers, SchemaStorage
from magnetar.topic.log.managed_ledger import LogContext
from magnetar.topic.log.tail_cache import TailCache


def observe_broker(metrics: Metrics, broker: Broker) -> None:
    topics, gauge, counter = broker.service.topics, metrics.gauge_callback, metrics.counter_callback
    gauge("magnetar_broker_topics", "Topics that are loaded.", lambda: topics.statistics().loaded)
    counter("magnetar_broker_topic_loads_total", "Topics that were loaded.", lambda: topics.statistics().loads)
    counter(
        "magnetar_broker_topic_load_failures_total", "Loads that failed.", lambda: topics.statistics().load_failures
    )
    counter("magnetar_broker_topics_lost_total", "Topics that were fenced or failed.", lambda: topics.statistics().lost)
    counter(
        "magnetar_staging_skips_total",
        "Runs of exactly-once jobs and batches that wrote nothing, because they were committed before.",
        lambda: broker.staged.skips,
    )


class Broker:
    """Made by `open`, which returns when clients can connect; ended by `aclose`."""

    service: BrokerService
    staged: StagedPublishing
    sweeping: StagedSweeping

    def __init__(self, front_ends: Sequence[FrontEnd]) -> None:
        """For `open` only."""
        self._front_ends = front_ends
        self._closing = contextlib.AsyncExitStack()

    @classmethod
    async def open(
        cls,
        config: Config,
        runtime: Runtime,
        store: MetadataStore,
        client: LedgerClient,
        metrics: Metrics,
        *,
        front_ends: Sequence[FrontEnd],
        http_address: str,
        ownership: Callable[[OwnershipContext], Ownership] = SoleOwnership,
        configuration: MetadataStore | None = None,
    ) -> Broker:
        """The broker binds, starts and closes the `front_ends`. `http_address` is `host:port` of its HTTP side, for
        lookups to answer with. `ownership` makes what decides which topics are the broker's own. `configuration` is
        the metadata store that several clusters share; by default it is `store`."""
        broker = cls(front_ends)
        try:
            resources = Resources(store, config.broker, configuration)
            await broker._start(config, runtime, resources, client, metrics, http_address, ownership)
        except BaseException:
            await broker.aclose()
            raise
        return broker

    def front_end_statistics(self) -> FrontEndStatistics:
        """Of all front ends together."""
        return total(front_end.statistics() for front_end in self._front_ends)

    async def _start(
        self,
        config: Config,
        runtime: Runtime,
        resources: Resources,
        client: LedgerClient,
        metrics: Metrics,
        http_address: str,
        make_ownership: Callable[[OwnershipContext], Ownership],
    ) -> None:
        store = resources.store
        self._closing.push_async_callback(resources.aclose)
        names = await ProducerNames.open(store, config.broker.cluster)
        address = await self._bind(http_address)
        await resources.bootstrap(service_url=address.http_url, broker_service_url=address.urls.get(PULSAR, ""))
        ownership = make_ownership(OwnershipContext(address, resources, config, runtime))
        self._closing.push_async_callback(ownership.aclose)
        entropy = runtime.entropy
        storage = SchemaStorage(store, resources.cache, BookieSchemaLedgers(client, config.topic))
        registry = SchemaRegistry(storage, config.schemas, entropy)
        events = ChangeEvents()
        self._closing.push_async_callback(events.aclose)
        policies = PolicyService(resources.configuration, registry, events, config, resources.slices)
        parts = TopicParts(LogContext(client, store, entropy, TailCache(config.topic.tail_cache_bytes_max)), config)
        topics = Topics(parts, ownership, policies)
        self._closing.push_async_callback(topics.aclose)
        self._closing.push_async_callback(policies.aclose)  # First: it reads a topic, whose end is not its concern.
        schemas = TopicSchemas(registry)
        self.service = BrokerService(config, entropy, resources, policies, schemas, topics, ownership, names, address)
        events.attach(self.service)
        self._closing.push_async_callback(ownership.give_up)
        upkeep = Upkeep(self.service)
        self._closing.push_async_callback(upkeep.aclose)
        upkeep.start()
        self.staged = StagedPublishing(self.service, store, client)
        self._closing.push_async_callback(self.staged.aclose)
        publisher = BrokerPublisher(self.service, self.staged)
        self.sweeping = StagedSweeping(self.service, store, client, publisher)
        self._closing.push_async_callback(self.sweeping.aclose)
        self.sweeping.start()
        observe_broker(metrics, self)
        for front_end in self._front_ends:
            self._closing.callback(front_end.stop_listening)
            front_end.observe(metrics)
            await front_end.start(self.service)
        await ownership.start(topics)

    async def _bind(self, http_address: str) -> BrokerAddress:
        endpoints: dict[str, Endpoint] = {}
        for front_end in self._front_ends:
            self._closing.push_async_callback(front_end.aclose)
            endpoints[front_end.protocol] = await front_end.bind()
        return BrokerAddress(
            broker_id=http_address,
            http_url=f"http://{http_address}",
            urls={protocol: endpoint.url for protocol, endpoint in endpoints.items()},
            listeners={protocol: endpoint.listeners for protocol, endpoint in endpoints.items()},
        )

    async def wait_failed(self) -> MagnetarError:
        """Returns when the broker must stop, with the reason."""
        return await self.service.ownership.wait_failed()

    async def aclose(self) -> None:
        await self._closing.aclose()
