"""A PolicyService on a store in memory; `__change_events` is a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from magnetar.broker.policies.events import IncomingEvent, OutgoingEvent
from magnetar.broker.policies.service import PolicyService
from magnetar.broker.resources.resources import Resources
from magnetar.config.root import Config
from magnetar.errors import BrokerError
from magnetar.names import CHANGE_EVENTS, NamespaceName
from magnetar.runtime.slices import Slices
from tests.unit.broker.worlds import memory_store
from tests.unit.schemas.schema_world import LedgersInMemory, registry_on


class ListReader:
    """Some events at a time; `broken` makes it raise from then on."""

    def __init__(self, topic: ListTopic) -> None:
        self._topic = topic
        self._next = 0
        self.is_open = True

    async def read_available(self) -> Sequence[IncomingEvent]:
        await self._topic.allowed.wait()
        self._check()
        some = self._topic.events[self._next : self._next + 2]
        self._next += len(some)
        return some

    async def wait_for_more(self) -> None:
        while len(self._topic.events) == self._next:
            self._check()
            await self._topic.changed.wait()
        self._check()

    def _check(self) -> None:
        if self._topic.breaks:
            self._topic.breaks -= 1
            raise BrokerError("the topic was unloaded")

    async def aclose(self) -> None:
        self.is_open = False


@dataclass
class ListTopic:
    events: list[IncomingEvent] = field(default_factory=list)
    readers: list[ListReader] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    allowed: asyncio.Event = field(default_factory=asyncio.Event)
    breaks: int = 0

    def __post_init__(self) -> None:
        self.allowed.set()

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class ListTopics:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self.topics: dict[NamespaceName, ListTopic] = {}
        self.published: list[OutgoingEvent] = []
        self.may_publish = asyncio.Event()
        self.may_publish.set()

    def topic(self, namespace: NamespaceName) -> ListTopic:
        return self.topics.setdefault(namespace, ListTopic())

    async def open_reader(self, namespace: NamespaceName) -> ListReader | None:
        if not await self._resources.topics.exists(namespace.topic(CHANGE_EVENTS)):
            return None
        topic = self.topic(namespace)
        topic.readers.append(ListReader(topic))
        return topic.readers[-1]

    async def publish(self, namespace: NamespaceName, event: OutgoingEvent) -> tuple[int, int, int]:
        await self._resources.topics.create_if_absent(namespace.topic(CHANGE_EVENTS))
        await self.may_publish.wait()
        self.published.append(event)
        topic = self.topic(namespace)
        position = (0, 1, len(topic.events))
        topic.events.append(IncomingEvent(event.key, event.payload, event.schema_version, position))
        topic.tell()
        return position


@dataclass
class PolicyWorld:
    resources: Resources
    events: ListTopics
    policies: PolicyService
    config: Config

    def another_broker(self) -> PolicyService:
        registry = registry_on(self.resources.store, self.ledgers, self.resources.cache)
        return PolicyService(self.resources.store, registry, self.events, self.config, Slices())

    ledgers: LedgersInMemory = field(default_factory=LedgersInMemory)


@asynccontextmanager
async def policy_world(config: Config | None = None) -> AsyncIterator[PolicyWorld]:
    config = config or Config()
    async with memory_store() as store:
        resources = Resources(store, config.broker)
        await resources.bootstrap()
        events, ledgers = ListTopics(resources), LedgersInMemory()
        registry = registry_on(store, ledgers, resources.cache)
        policies = PolicyService(store, registry, events, config, Slices())
        yield PolicyWorld(resources, events, policies, config, ledgers)
        await policies.aclose()
        await resources.aclose()
