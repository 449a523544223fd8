"""Topics in the metadata: the number of partitions of partitioned topics, and the persistent topics that exist.

Format:    A partitioned topic is `{"partitions": 3, "deleted": false}`, with `properties` if it has any. `deleted` is
           set while the partitions are being deleted, so that clients do not make them again by using them. A
           persistent topic is a node with the state of its log, with one child for each subscription.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.policies.values import flag, nested, number
from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import Document, Documents, NamedDocuments
from magnetar.errors import (
    BadVersionError,
    InvalidPolicyError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ResourceLimitError,
    TransactionFailedError,
)
from magnetar.metadata.store import Create, Delete
from magnetar.names import Domain, NamespaceName, TopicName, decode_name
from magnetar.runtime.slices import Slices
from magnetar.words import counted


@dataclass(frozen=True, slots=True)
class Partitioned:
    partitions: int
    is_being_deleted: bool
    properties: Mapping[str, str]


class PartitionedTopics:
    def __init__(self, documents: Documents, *, partitions_max: int) -> None:
        self._documents = documents
        self._named = NamedDocuments(documents, paths.partitioned_topic, lambda topic: f"partitioned topic {topic}", "")
        self._partitions_max = partitions_max

    async def names(self, namespace: NamespaceName, domain: Domain = Domain.PERSISTENT) -> list[TopicName]:
        encoded = await self._documents.children(paths.partitioned_topics(namespace, domain))
        return [namespace.topic(decode_name(name), domain) for name in encoded]

    async def get(self, topic: TopicName) -> Partitioned | None:
        """Returns the entry of the topic itself, not of a partition; None if it is not partitioned."""
        return _partitioned(await self._documents.read(paths.partitioned_topic(topic), expects_nothing=True))

    async def get_fresh(self, topic: TopicName) -> Partitioned | None:
        """Returns a state that includes every change that any client completed before the call."""
        return _partitioned(await self._documents.read_fresh(paths.partitioned_topic(topic)))

    async def create(self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None) -> None:
        self._check(topic, partitions)
        document: Document = {"partitions": partitions, "deleted": False}
        if properties:
            document["properties"] = dict(properties)
        await self._named.create(topic, document)

    async def grow(self, topic: TopicName, partitions: int) -> None:
        """Raises the number. It cannot go down: a key's messages would be in two partitions."""
        self._check(topic, partitions)

        def decide(document: Document) -> Document:
            before = number(document, "partitions", 0)
            if before > partitions:
                raise InvalidPolicyError(
                    f"{topic} has {counted(before, 'partition')}: the number can only grow, not change to {partitions}"
                )
            return document | {"partitions": partitions}

        await self._named.update(topic, decide)

    async def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        await self._named.update(topic, lambda document: document | {"properties": dict(properties)})

    async def mark_deleted(self, topic: TopicName, *, is_deleted: bool = True) -> None:
        await self._named.update(topic, lambda document: document | {"deleted": is_deleted})

    async def delete(self, topic: TopicName) -> None:
        await self._named.delete(topic)

    def _check(self, topic: TopicName, partitions: int) -> None:
        if topic.is_partition:
            raise InvalidPolicyError(f"{topic} is a partition itself, and cannot have partitions: choose another name")
        if partitions < 1:
            raise InvalidPolicyError(f"a partitioned topic has at least one partition, not {partitions}")
        if self._partitions_max and partitions > self._partitions_max:
            raise ResourceLimitError(
                f"{topic} may have {counted(self._partitions_max, 'partition')},"
                f" as broker.partitions_max says, not {partitions}"
            )


def _partitioned(document: Document | None) -> Partitioned | None:
    if document is None:
        return None
    properties = {str(name): str(value) for name, value in (nested(document, "properties") or {}).items()}
    return Partitioned(number(document, "partitions", 0), flag(document, "deleted") or False, properties)


# --- persistent topics ------------------------------------------------------------------------------------------------

_STEP: Final = 500  # Nodes in one transaction: far below the megabyte that ZooKeeper takes.
_NEVER_WRITTEN: Final = 0  # The version of a node as it was created.


class Topics:
    def __init__(self, documents: Documents, slices: Slices) -> None:
        self._documents = documents
        self._slices = slices

    async def names(self, namespace: NamespaceName) -> list[TopicName]:
        """Returns all topics of a namespace, each partition by itself, sorted by the store."""
        children = await self._documents.children(paths.logs(namespace))
        return await self._slices.map(lambda name: namespace.topic(decode_name(name)), children)

    async def exists(self, topic: TopicName) -> bool:
        return await self._documents.store.get(topic.log_path) is not None

    async def create_if_absent(self, topic: TopicName) -> bool:
        """Makes an empty node, which is a new topic; returns False if it exists already."""
        try:
            await self._documents.store.create(topic.log_path, make_parents=True)
        except NodeExistsError:
            return False
        self._documents.cache.drop(paths.logs(topic.namespace))
        return True

    async def create_missing(self, topics: Sequence[TopicName]) -> None:
        """Creates those that do not exist, many in one step. If it raises, some of them may have been created."""
        for first in range(0, len(topics), _STEP):
            one, *others = topics[first : first + _STEP]
            await self.create_if_absent(one)  # With the nodes above it, which a transaction does not make.
            try:
                await self._documents.store.transact([Create(each.log_path) for each in others])
            except TransactionFailedError:  # Some exist.
                for each in others:
                    await self.create_if_absent(each)
            self._documents.cache.drop(paths.logs(one.namespace))

    async def delete_unused(self, topics: Sequence[TopicName]) -> None:
        """Deletes those that exist and were never opened, many in one step."""
        for first in range(0, len(topics), _STEP):
            some = topics[first : first + _STEP]
            try:
                await self._documents.store.transact([Delete(each.log_path, _NEVER_WRITTEN) for each in some])
            except TransactionFailedError:
                for each in some:
                    with contextlib.suppress(NoNodeError, NotEmptyError, BadVersionError):
                        await self._documents.store.delete(each.log_path, _NEVER_WRITTEN)
            self._documents.cache.drop(paths.logs(some[0].namespace))
