"""BrokerService: what front ends and the admin interface ask a broker for, in one place.

Topics:    looked up, loaded, made if policies allow, listed, deleted.
Names:     a partition exists only with its partitioned topic, and a partitioned topic's own name is no topic.
Not here:  how requests come in (pulsar/, admin/), what a topic does (topic.py).
Read next: topics.py, broker.py; docs/broker.md
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from magnetar.broker.names import Domain, NamespaceName, TopicName, decode_name
from magnetar.broker.ownership import BrokerAddress, Ownership
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.policies.service import PolicyService
from magnetar.broker.resources import paths
from magnetar.broker.resources.producer_names import ProducerNames
from magnetar.broker.resources.resources import Resources
from magnetar.broker.schemas.data import SchemaData
from magnetar.broker.topic import Topic
from magnetar.broker.topic_schemas import TopicSchemas
from magnetar.broker.topics import Topics
from magnetar.config.root import Config
from magnetar.errors import NotAllowedError, ResourceExistsError, ResourceMissingError, TopicNotFoundError
from magnetar.metadata.follow import follow_children
from magnetar.runtime.entropy import Entropy
from magnetar.topic.position import EARLIEST

_NOT_PARTITIONED = ("-DLQ", "-RETRY")
"""Topics that clients make for themselves, and expect to be one each."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a lookup."""

    url: str
    http_url: str
    is_owner: bool
    """Whether this broker is to be asked, or serves the topic itself; else the other one is asked again."""


class BrokerService:
    """Made by `Broker`, which owns its parts."""

    def __init__(
        self,
        config: Config,
        entropy: Entropy,
        resources: Resources,
        policies: PolicyService,
        schemas: TopicSchemas,
        topics: Topics,
        ownership: Ownership,
        producer_names: ProducerNames,
        address: BrokerAddress,
    ) -> None:
        self.config = config
        self.entropy = entropy
        self.resources = resources
        self.policies = policies
        self.schemas = schemas
        self.topics = topics
        self.ownership = ownership
        self.address = address
        self._producer_names = producer_names

    def new_producer_name(self) -> str:
        return self._producer_names.next()

    # --- lookups ------------------------------------------------------------------------------------------------------

    async def look_up(self, topic: TopicName, listener: str = "") -> Found:
        await self.require_namespace(topic.namespace)
        owner = await self.ownership.owner_of(topic)
        url = owner.address.url_for(listener)
        if url is None:
            known = ", ".join(sorted(owner.address.listeners)) or "none"
            raise NotAllowedError(f"the broker has no advertised listener {listener!r}; it has: {known}")
        return Found(url, owner.address.http_url, owner.is_here)

    async def partitions_of(self, topic: TopicName, *, create: bool) -> int:
        """0: not partitioned. TopicNotFoundError without `create`, and where none may be made by using it."""
        await self.require_namespace(topic.namespace)
        partitioned = await self.resources.partitioned_topics.get(topic)
        if partitioned is not None:
            return partitioned.partitions
        partitions = await self._partitions_if_made(topic)
        if create and not partitions:  # There or not: it has none.
            return 0
        if await self.exists(topic):
            return 0
        if not create:
            raise TopicNotFoundError(f"topic {topic} does not exist")
        if not await self.may_auto_create(topic):  # Whoever uses it hears why not.
            return 0
        return await self._make_partitioned(topic, partitions)

    async def _partitions_if_made(self, topic: TopicName) -> int:
        """Of a topic that is made by using it; 0: none."""
        if topic.is_partition or topic.is_system or topic.local.endswith(_NOT_PARTITIONED):
            return 0
        await self.policies.load_namespace(topic.namespace)
        return self.policies.auto_topic_creation(topic.namespace).partitions

    async def _make_partitioned(self, topic: TopicName, partitions: int) -> int:
        try:
            await self.create_partitioned_topic(topic, partitions)
        except ResourceExistsError:  # Somebody else did, with a number of their own.
            found = await self.resources.partitioned_topics.get_fresh(topic)
            return 0 if found is None else found.partitions
        return partitions

    # --- topics -------------------------------------------------------------------------------------------------------

    async def topic(self, name: TopicName, *, create: bool) -> Topic:
        """Loaded; made if it is not there and may be."""
        found = self.topics.find(name)
        if found is not None:
            return found
        await self.require_namespace(name.namespace)
        await self._require_consistent(name)
        may_create = create and await self.may_auto_create(name)
        if may_create:
            await self._require_topic_room(name)
        if not name.is_persistent and not may_create and not name.is_partition:
            raise TopicNotFoundError(f"topic {name} does not exist")
        return await self.topics.get(name, create=may_create)

    async def _require_topic_room(self, name: TopicName) -> None:
        """Before a topic too many is made in its namespace; one that is there is one of those that count."""
        limit = self.policies.topics_max(name.namespace)
        if not limit or name.is_system:
            return
        known = [each for each in await self.resources.topics.names(name.namespace) if not each.is_system]
        if len(known) >= limit and name not in known:
            raise NotAllowedError(f"namespace {name.namespace} has {limit} topics, as many as it may")

    async def persistent_topic(self, name: TopicName) -> PersistentTopic:
        """One that exists, for the admin interface."""
        found = await self.topic(name, create=False)
        if not isinstance(found, PersistentTopic):
            raise NotAllowedError(f"topic {name} is not persistent: it keeps no messages")
        return found

    async def exists(self, topic: TopicName) -> bool:
        """As a topic that messages are in; for a partitioned topic ask for its partitions."""
        if not topic.is_persistent:
            return self.topics.find(topic) is not None
        return self.topics.find(topic) is not None or await self.resources.topics.exists(topic)

    async def may_auto_create(self, topic: TopicName) -> bool:
        if topic.is_system:
            return True
        if topic.is_partition:
            partitioned = await self.resources.partitioned_topics.get(topic.without_partition())
            if partitioned is not None:
                return not partitioned.is_being_deleted and topic.partition < partitioned.partitions
        await self.policies.load_namespace(topic.namespace)
        if self.policies.is_being_deleted(topic.namespace):
            return False
        return self.policies.auto_topic_creation(topic.namespace).is_allowed

    async def _require_consistent(self, topic: TopicName) -> None:
        """A partition has its partitioned topic; a partitioned topic is not used by its own name."""
        partitioned = await self.resources.partitioned_topics.get(topic.without_partition())
        if topic.is_partition and partitioned is None:
            if not await self.exists(topic):
                raise NotAllowedError(
                    f"{topic} is a partition of a topic that does not exist: make the partitioned topic first"
                )
        elif topic.is_partition and partitioned is not None and topic.partition >= partitioned.partitions:
            raise NotAllowedError(f"{topic.without_partition()} has {partitioned.partitions} partitions: no {topic}")
        elif not topic.is_partition and partitioned is not None:
            raise NotAllowedError(
                f"{topic} has {partitioned.partitions} partitions: use one of them, {topic}-partition-0"
            )

    async def create_topic(self, name: TopicName) -> None:
        """Without partitions. ResourceExistsError."""
        await self.require_namespace(name.namespace)
        if await self.resources.partitioned_topics.get(name) is not None or await self.exists(name):
            raise ResourceExistsError(f"topic {name} exists already")
        await self._require_topic_room(name)
        await self.topics.get(name, create=True)

    async def create_partitioned_topic(self, name: TopicName, partitions: int) -> None:
        """Its partitions are made when they are used. ResourceExistsError."""
        await self.require_namespace(name.namespace)
        if await self.exists(name):
            raise ResourceExistsError(f"topic {name} exists already, without partitions")
        await self.resources.partitioned_topics.create(name, partitions)

    async def delete_topic(self, name: TopicName, *, force: bool = False, with_subscriptions: bool = False) -> None:
        """With its schema and its own policies; those of a partition belong to its partitioned topic."""
        topic = await self.topics.get(name, create=False)
        await self.topics.delete(topic, force=force, with_subscriptions=with_subscriptions)
        if not name.is_partition:
            await self.schemas.registry.delete_with_history(name.schema_name)
            await self.policies.delete_topic(name)

    async def ensure_subscription(self, topic: Topic, name: str) -> None:
        """From the beginning of the topic on, if it is not there."""
        if not isinstance(topic, PersistentTopic) or name in topic.subscriptions:
            return
        if not topic.policies.auto_create_subscriptions:
            raise NotAllowedError(f"topic {topic.name} has no subscription {name!r}, and none is made by using it")
        await topic.create_subscription(name, EARLIEST)

    # --- schemas ------------------------------------------------------------------------------------------------------

    async def add_schema(self, topic: Topic, schema: SchemaData | None) -> bytes:
        return await self.schemas.add(topic, schema)

    async def check_consumer_schema(self, topic: Topic, schema: SchemaData | None) -> None:
        if schema is not None:
            await self.schemas.check_consumer(topic, schema)

    # --- namespaces ---------------------------------------------------------------------------------------------------

    async def require_namespace(self, namespace: NamespaceName) -> None:
        try:
            await self.policies.load_namespace(namespace)
        except ResourceMissingError as error:
            raise TopicNotFoundError(str(error)) from None

    async def topics_of(self, namespace: NamespaceName, domains: Iterable[Domain]) -> list[TopicName]:
        """Those of users, each partition by itself."""
        await self.require_namespace(namespace)
        found: list[TopicName] = []
        if Domain.PERSISTENT in domains:
            found += await self.resources.topics.names(namespace)
        if Domain.NON_PERSISTENT in domains:
            loaded = (topic.name for topic in self.topics.loaded())
            found += [name for name in loaded if not name.is_persistent and name.namespace == namespace]
        return [name for name in found if not name.is_system]

    async def follow_topics(self, namespace: NamespaceName) -> AsyncGenerator[list[TopicName], None]:
        """The persistent topics of users now, and after every change."""
        async with aclosing(follow_children(self.resources.store, paths.logs(namespace))) as lists:
            async for encoded in lists:
                names = [namespace.topic(decode_name(name)) for name in encoded or ()]
                yield [name for name in names if not name.is_system]
