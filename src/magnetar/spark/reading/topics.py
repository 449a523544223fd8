"""Which topics and partitions a read is about: names looked up, patterns matched. Nothing is made by asking.

Partition: each is a topic of its own, with a log of its own; one that is asked for by name is read alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.client.topics import partition_name, partition_of
from magnetar.errors import HttpRefusedError, TopicNotFoundError
from magnetar.spark.reading.options import Subject

_NOT_FOUND: Final = 404
_DOMAIN: Final = "persistent://"
_PARTITION: Final = re.compile(r"-partition-\d+$")


@dataclass(frozen=True, slots=True, order=True)
class TopicPart:
    """A topic without partitions, or one partition."""

    name: str
    """In full; of a partition, with its number."""

    @property
    def topic(self) -> str:
        """The topic that the partition is of."""
        return topic_of(self.name)

    @property
    def partition(self) -> int:
        """-1: it has no partitions."""
        return partition_of(self.name)


class TopicLister(Protocol):
    """As much of a `Cluster` as is needed."""

    async def partitions(self, topic: str) -> int: ...
    async def topics_of(self, namespace: str) -> list[str]: ...


def topic_of(part: str) -> str:
    return _PARTITION.sub("", part)


async def find_parts(cluster: TopicLister, subject: Subject) -> list[TopicPart]:
    """Sorted by name. Of names, also those that do not exist: who opens them says so. Patterns may match nothing."""
    if subject.pattern:
        return await _matching(cluster, subject)
    parts: dict[TopicPart, None] = {}
    for name in subject.names:
        parts.update(dict.fromkeys(await _parts_of(cluster, name)))
    return sorted(parts)


async def _parts_of(cluster: TopicLister, name: str) -> Sequence[TopicPart]:
    count = 0 if partition_of(name) >= 0 else await cluster.partitions(name)
    return [TopicPart(partition_name(name, number)) for number in range(count)] or [TopicPart(name)]


async def _matching(cluster: TopicLister, subject: Subject) -> list[TopicPart]:
    try:
        names = await cluster.topics_of(subject.namespace)
    except HttpRefusedError as error:
        if error.status != _NOT_FOUND:
            raise
        raise TopicNotFoundError(f"option topicsPattern: there is no namespace {subject.namespace}") from None
    return sorted(TopicPart(name) for name in names if is_meant(name, subject))


def is_meant(part: str, subject: Subject) -> bool:
    """Whether a read of this subject reads the part, if there is one of this name."""
    topic = topic_of(part)
    if not subject.pattern:
        return part in subject.names or topic in subject.names
    prefix = f"{_DOMAIN}{subject.namespace}/"
    return topic.startswith(prefix) and re.fullmatch(subject.pattern, topic.removeprefix(prefix)) is not None
