"""Partitioned topics: how many partitions each has. A topic that is not here is not partitioned.

Form:      `{"partitions": 3, "deleted": false}`, with `properties` if the topic has some. `deleted` is set while the
           partitions are being deleted, so that nobody makes them again by using them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.broker.names import Domain, NamespaceName, TopicName, decode_name
from magnetar.broker.policies.fields import flag, nested, number
from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import Decision, Document, Documents
from magnetar.errors import (
    InvalidPolicyError,
    NodeExistsError,
    NoNodeError,
    ResourceExistsError,
    ResourceLimitError,
    ResourceMissingError,
)


@dataclass(frozen=True, slots=True)
class Partitioned:
    partitions: int
    is_being_deleted: bool
    properties: Mapping[str, str]


class PartitionedTopics:
    def __init__(self, documents: Documents, *, partitions_max: int) -> None:
        self._documents = documents
        self._partitions_max = partitions_max

    async def names(self, namespace: NamespaceName, domain: Domain = Domain.PERSISTENT) -> list[TopicName]:
        encoded = await self._documents.children(paths.partitioned_topics(namespace, domain))
        return [namespace.topic(decode_name(name), domain) for name in encoded]

    async def get(self, topic: TopicName) -> Partitioned | None:
        """Of the topic itself, not of a partition; None: it is not partitioned."""
        return _partitioned(await self._documents.read(paths.partitioned_topic(topic)))

    async def get_fresh(self, topic: TopicName) -> Partitioned | None:
        """Sees everything that any client was told is done before the call."""
        return _partitioned(await self._documents.read_fresh(paths.partitioned_topic(topic)))

    async def create(self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None) -> None:
        self._check(topic, partitions)
        document: Document = {"partitions": partitions, "deleted": False}
        if properties:
            document["properties"] = dict(properties)
        try:
            await self._documents.create(paths.partitioned_topic(topic), document)
        except NodeExistsError:
            raise ResourceExistsError(f"partitioned topic {topic} exists already") from None

    async def grow(self, topic: TopicName, partitions: int) -> None:
        """Partitions can only become more: a key's messages would be in two of them otherwise."""
        self._check(topic, partitions)

        def decide(document: Document) -> Document:
            before = number(document, "partitions", 0)
            if before > partitions:
                raise InvalidPolicyError(f"{topic} has {before} partitions: there can only be more, not {partitions}")
            return document | {"partitions": partitions}

        await self._update(topic, decide)

    async def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        await self._update(topic, lambda document: document | {"properties": dict(properties)})

    async def mark_deleted(self, topic: TopicName, *, is_deleted: bool = True) -> None:
        await self._update(topic, lambda document: document | {"deleted": is_deleted})

    async def delete(self, topic: TopicName) -> None:
        try:
            await self._documents.delete(paths.partitioned_topic(topic))
        except NoNodeError:
            raise _missing(topic) from None

    async def _update(self, topic: TopicName, decide: Decision) -> None:
        try:
            await self._documents.update(paths.partitioned_topic(topic), decide)
        except NoNodeError:
            raise _missing(topic) from None

    def _check(self, topic: TopicName, partitions: int) -> None:
        if topic.is_partition:
            raise InvalidPolicyError(f"{topic} is a partition itself, and cannot have partitions: choose another name")
        if partitions < 1:
            raise InvalidPolicyError(f"a partitioned topic has at least one partition, not {partitions}")
        if self._partitions_max and partitions > self._partitions_max:
            raise ResourceLimitError(
                f"{topic} may have {self._partitions_max} partitions, as broker.partitions_max says, not {partitions}"
            )


def _partitioned(document: Document | None) -> Partitioned | None:
    if document is None:
        return None
    properties = {str(name): str(value) for name, value in (nested(document, "properties") or {}).items()}
    return Partitioned(number(document, "partitions", 0), flag(document, "deleted") or False, properties)


def _missing(topic: TopicName) -> ResourceMissingError:
    return ResourceMissingError(f"partitioned topic {topic} does not exist")
