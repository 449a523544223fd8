"""BrokerService: what front ends and the admin interface ask a broker for, in one place.

Topics are looked up, loaded, made if policies allow it, listed and deleted here. The front ends (pulsar/, admin/)
receive requests, and broker/topics/topic.py is what a topic does.

Invariant: A partition exists only with its partitioned topic, and a partitioned topic's own name is not a topic.
Read next: broker/topics/registry.py, broker.py; docs/broker.md
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing

from magnetar.broker.cluster.membership import Membership, SoleMember
from magnetar.broker.ownership import BrokerAddress, Owner, Ownership
from magnetar.broker.policies.service import PolicyService
from magnetar.broker.resources import paths
from magnetar.broker.resources.producer_names import ProducerNames
from magnetar.broker.resources.resources import Resources
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import Topics, require_persistent
from magnetar.broker.topics.schemas import TopicSchemas
from magnetar.broker.topics.topic import Topic
from magnetar.config.root import Config
from magnetar.errors import (
    NotAllowedError,
    ResourceExistsError,
    ResourceLimitError,
    ResourceMissingError,
    TopicNotFoundError,
)
from magnetar.metadata.follow import follow_children
from magnetar.names import Domain, NamespaceName, TopicName, decode_name
from magnetar.runtime.runtime import Entropy
from magnetar.schemas.data import SchemaData
from magnetar.words import counted

_NOT_PARTITIONED = ("-DLQ", "-RETRY")
"""Topics that clients make for themselves, and expect to be one each."""


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
        self.slices = resources.slices
        self.membership: Membership = ownership.membership or SoleMember(address)
        """The brokers of the cluster; replaced where there are several."""

    def new_producer_name(self) -> str:
        return self._producer_names.next()

    # --- lookups ------------------------------------------------------------------------------------------------------

    async def look_up(self, topic: TopicName, *, is_authoritative: bool = False) -> Owner:
        """The broker that serves the topic, which need not exist. `is_authoritative`: another broker has chosen this
        one to become the owner."""
        await self.require_namespace(topic.namespace)
        return await self.ownership.owner_of(topic, is_authoritative=is_authoritative)

    async def partitions_of(self, topic: TopicName, *, create: bool) -> int:
        """Returns 0 for a topic without partitions. TopicNotFoundError if it does not exist and may not be created."""
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
        if not await self.may_auto_create(topic):  # The client that uses it gets the reason.
            return 0
        return await self._make_partitioned(topic, partitions)

    async def _partitions_if_made(self, topic: TopicName) -> int:
        """Returns the partitions of a topic that is created by its use; 0 without any."""
        if topic.is_partition or topic.is_system or topic.local.endswith(_NOT_PARTITIONED):
            return 0
        await self.policies.load_namespace(topic.namespace)
        return self.policies.of_namespace(topic.namespace).auto_topic_creation.partitions

    async def _make_partitioned(self, topic: TopicName, partitions: int) -> int:
        try:
            await self.create_partitioned_topic(topic, partitions)
        except ResourceExistsError:  # Another client made it, perhaps with another number.
            found = await self.resources.partitioned_topics.get_fresh(topic)
            return 0 if found is None else found.partitions
        return partitions

    # --- topics -------------------------------------------------------------------------------------------------------

    async def topic(self, name: TopicName, *, create: bool) -> Topic:
        """Returns the topic, loaded; it is made if it does not exist and may be."""
        found = self.topics.find(name)
        if found is not None:
            return found
        await self.require_namespace(name.namespace)
        await self._require_consistent(name)
        may_create = create and await self.may_auto_create(name)
        if may_create:
            await self._require_room_for(name)
        if not name.is_persistent and not may_create and not name.is_partition:
            raise TopicNotFoundError(f"topic {name} does not exist")
        return await self.topics.get(name, create=may_create)

    async def _require_room_for(self, name: TopicName) -> None:
        """A topic that exists is one of those that count already, and brokers' own do not count."""
        if name.is_system or not self.policies.of_namespace(name.namespace).topics_max or await self.exists(name):
            return
        await self.require_topic_room(name.namespace, 1)

    async def require_topic_room(self, namespace: NamespaceName, more: int) -> None:
        """Before more topics are made. ResourceLimitError if the namespace may not have as many."""
        await self.require_namespace(namespace)
        limit = self.policies.of_namespace(namespace).topics_max
        if not limit:
            return
        count = len(await self.topics_of(namespace, (Domain.PERSISTENT,)))
        if count + more > limit:
            raise ResourceLimitError(
                f"namespace {namespace} may have {counted(limit, 'topic')}, and has {count}: delete some, or raise the "
                "limit"
            )

    async def persistent_topic(self, name: TopicName, *, create: bool) -> PersistentTopic:
        """As `topic`. NotAllowedError if the topic keeps no messages."""
        return require_persistent(await self.topic(name, create=create))

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
        return self.policies.of_namespace(topic.namespace).auto_topic_creation.is_allowed

    async def _require_consistent(self, topic: TopicName) -> None:
        """A partition has its partitioned topic; a partitioned topic is not used by its own name."""
        partitioned = await self.resources.partitioned_topics.get(topic.without_partition())
        if topic.is_partition and partitioned is None:
            if not await self.exists(topic):
                raise NotAllowedError(
                    f"{topic} is a partition of a topic that does not exist: create the partitioned topic first"
                )
        elif topic.is_partition and partitioned is not None and topic.partition >= partitioned.partitions:
            raise NotAllowedError(
                f"{topic.without_partition()} has {counted(partitioned.partitions, 'partition')}: "
                f"{topic} does not exist"
            )
        elif not topic.is_partition and partitioned is not None:
            raise NotAllowedError(
                f"{topic} has {counted(partitioned.partitions, 'partition')}: use one of them, {topic}-partition-0"
            )

    async def create_topic(self, name: TopicName) -> None:
        """Without partitions. ResourceExistsError."""
        await self.require_namespace(name.namespace)
        if await self.resources.partitioned_topics.get(name) is not None or await self.exists(name):
            raise ResourceExistsError(f"topic {name} exists already")
        await self._require_room_for(name)
        await self.topics.get(name, create=True)

    async def create_partitioned_topic(self, name: TopicName, partitions: int) -> None:
        """Its partitions are made when they are used. ResourceExistsError."""
        await self.require_namespace(name.namespace)
        if await self.exists(name):
            raise ResourceExistsError(f"topic {name} exists already, without partitions")
        await self.resources.partitioned_topics.create(name, partitions)

    async def delete_topic(self, name: TopicName, *, force: bool = False, with_subscriptions: bool = False) -> None:
        """With what was kept besides its messages; that of a partition belongs to its partitioned topic."""
        topic = await self.topics.get(name, create=False)
        await self.topics.delete(topic, force=force, with_subscriptions=with_subscriptions)
        self.resources.cache.drop(name.log_path)
        if not name.is_partition:
            await self.forget_topic(name)

    async def delete_partitioned_topic(
        self,
        topic: TopicName,
        partitions: Sequence[TopicName],
        delete_elsewhere: Callable[[TopicName], Awaitable[bool]],
    ) -> None:
        """With all its partitions, whose clients are disconnected. `delete_elsewhere` has another broker delete a
        partition which that one owns, and returns True; it returns False for a partition of this broker."""
        await self.resources.partitioned_topics.mark_deleted(topic)
        names = list(partitions)
        if topic.is_persistent:
            await self.resources.topics.delete_unused([name for name in names if self.topics.find(name) is None])
            left = set(await self.resources.topics.names(topic.namespace))
            names = [name for name in names if name in left]
        for name in names:
            if await self.exists(name) and not await delete_elsewhere(name):
                await self.delete_topic(name, force=True)
        await self.resources.partitioned_topics.delete(topic)
        await self.forget_topic(topic)

    async def forget_topic(self, name: TopicName) -> None:
        """Deletes the schema and the policies of a topic that was deleted."""
        await self.schemas.registry.delete_with_history(name.schema_name)
        if name.is_persistent:
            await self.policies.delete_topic(name)

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
            found += [name for name in await self.loaded_in(namespace) if not name.is_persistent]
        return await self._of_users(found)

    async def system_topics_of(self, namespace: NamespaceName) -> list[TopicName]:
        """Persistent ones that brokers made for themselves."""
        names = await self.resources.topics.names(namespace)
        are_system = await self.slices.map(lambda name: name.is_system, names)
        return [name for name, is_system in zip(names, are_system, strict=True) if is_system]

    async def loaded_in(self, namespace: NamespaceName) -> list[TopicName]:
        """The loaded topics of a namespace, of both domains."""
        found = []
        for topic in self.topics.loaded():
            if topic.name.namespace == namespace:
                found.append(topic.name)
            await self.slices.turn()
        return found

    async def _of_users(self, names: Iterable[TopicName]) -> list[TopicName]:
        found = []
        for name in names:
            if not name.is_system:
                found.append(name)
            await self.slices.turn()
        return found

    async def follow_topics(self, namespace: NamespaceName) -> AsyncGenerator[list[TopicName], None]:
        """The persistent topics of users now, and after every change."""
        async with aclosing(follow_children(self.resources.store, paths.logs(namespace))) as lists:
            async for encoded in lists:
                names = await self.slices.map(lambda name: namespace.topic(decode_name(name)), encoded or ())
                yield await self._of_users(names)
