"""The broker: its parts put together, started in an order that is safe, and ended in the opposite one.

Start:     bind the port → what a new cluster needs → a number for producers' names → listen. No client is heard before
           the broker can serve it.
End:       no new connections → unload all topics, which tells every client and stores every cursor → close.
Owns:      topics, front end, caches. The metadata store and the ledger client are the caller's.
Read next: service.py, topics.py, upkeep.py, pulsar/front_end.py; docs/broker.md
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from magnetar.broker.change_events import ChangeEvents
from magnetar.broker.metrics import observe_broker
from magnetar.broker.ownership import BrokerAddress, Ownership, SoleOwnership
from magnetar.broker.persistent_topic import TopicParts
from magnetar.broker.policies.service import PolicyService
from magnetar.broker.pulsar.front_end import FrontEnd
from magnetar.broker.resources.producer_names import ProducerNames
from magnetar.broker.resources.resources import Resources
from magnetar.broker.schemas.ledgers import BookieSchemaLedgers
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.storage import SchemaStorage
from magnetar.broker.service import BrokerService
from magnetar.broker.staged_publishing import StagedPublishing
from magnetar.broker.staged_sweeping import BrokerPublisher, StagedSweeping
from magnetar.broker.topic_schemas import TopicSchemas
from magnetar.broker.topics import Topics
from magnetar.broker.upkeep import Upkeep
from magnetar.config.root import Config
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.topic.log_parts import LogParts
from magnetar.topic.tail_cache import TailCache


class Broker:
    """Made by `open`, which returns when clients can connect; ended by `aclose`."""

    service: BrokerService
    front_end: FrontEnd
    staged: StagedPublishing
    sweeping: StagedSweeping

    def __init__(self) -> None:
        """For `open` only."""
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
        http_port: int = 0,
        ownership: Callable[[BrokerAddress], Ownership] = SoleOwnership,
    ) -> Broker:
        """`http_port` is the one that the broker's HTTP side listens on, for lookups to answer with. `ownership` gets
        the broker's address, and decides which topics are its own."""
        broker = cls()
        try:
            await broker._start(config, runtime, store, client, metrics, http_port, ownership)
        except BaseException:
            await broker.aclose()
            raise
        return broker

    @property
    def port(self) -> int:
        return self.front_end.port

    async def _start(
        self,
        config: Config,
        runtime: Runtime,
        store: MetadataStore,
        client: LedgerClient,
        metrics: Metrics,
        http_port: int,
        make_ownership: Callable[[BrokerAddress], Ownership],
    ) -> None:
        resources = Resources(store, config.broker)
        self._closing.push_async_callback(resources.aclose)
        names = await ProducerNames.open(store, config.broker.cluster)
        front_end = self.front_end = FrontEnd(config.pulsar)
        self._closing.push_async_callback(front_end.aclose)
        address = _address(config, await front_end.bind(), http_port)
        await resources.bootstrap(service_url=address.http_url, broker_service_url=address.pulsar_url)
        ownership = make_ownership(address)
        entropy = runtime.entropy
        storage = SchemaStorage(store, resources.cache, BookieSchemaLedgers(client, config.topic))
        registry = SchemaRegistry(storage, config.schemas, entropy)
        events = ChangeEvents()
        policies = PolicyService(store, registry, events, config)
        parts = TopicParts(LogParts(client, store, entropy, TailCache(config.topic.tail_cache_bytes_max)), config)
        topics = Topics(parts, ownership, policies)
        self._closing.push_async_callback(topics.aclose)
        self._closing.push_async_callback(policies.aclose)  # First: it reads a topic, whose end is not its concern.
        schemas = TopicSchemas(registry)
        self.service = BrokerService(config, entropy, resources, policies, schemas, topics, ownership, names, address)
        events.attach(self.service)
        upkeep = Upkeep(self.service)
        self._closing.push_async_callback(upkeep.aclose)
        upkeep.start()
        self.staged = StagedPublishing(self.service, store, client)
        self._closing.push_async_callback(self.staged.aclose)
        publisher = BrokerPublisher(self.service, self.staged)
        self.sweeping = StagedSweeping(self.service, store, client, publisher)
        self._closing.push_async_callback(self.sweeping.aclose)
        self.sweeping.start()
        self._closing.callback(front_end.stop_listening)
        observe_broker(metrics, self)
        await front_end.start(self.service)

    async def aclose(self) -> None:
        await self._closing.aclose()


def _address(config: Config, port: int, http_port: int) -> BrokerAddress:
    host = config.pulsar.reached_at
    return BrokerAddress(
        broker_id=f"{host}:{http_port}",
        pulsar_url=f"pulsar://{host}:{port}",
        http_url=f"http://{host}:{http_port}",
        listeners=dict(config.pulsar.listeners()),
    )
