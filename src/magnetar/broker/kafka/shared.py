"""Shared: what all sessions of a Kafka front end have together, and the partitions that are open.

A partition is made when a client first uses a topic that this broker serves. It ends when the topic is unloaded.

Read next: partition.py, session.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.kafka.brokers import Brokers
from magnetar.broker.kafka.names import partition_of, topic_of
from magnetar.broker.kafka.partition import Partition
from magnetar.broker.kafka.producer_ids import ProducerIds
from magnetar.broker.publishing.publish_memory import PublishMemory
from magnetar.broker.service import BrokerService
from magnetar.config.kafka import KafkaConfig
from magnetar.errors import KafkaRefusedError, TopicFencedError
from magnetar.names import NamespaceName, TopicName
from magnetar.topic.entry_format.conversions import Conversions
from magnetar.wire.kafka.codec import Api
from magnetar.wire.kafka.error_codes import ErrorCode

if TYPE_CHECKING:
    from magnetar.broker.kafka.groups.coordinators import Coordinators
    from magnetar.broker.kafka.session import Handle, HandleProduce


class Partitions:
    def __init__(self, service: BrokerService, namespace: NamespaceName, conversions: Conversions) -> None:
        self._service = service
        self._namespace = namespace
        self._conversions = conversions
        self._open: dict[TopicName, Partition] = {}
        service.topics.changed.append(self._on_changed)

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, name: str, index: int) -> Partition:
        """Returns a partition that is served here. Topics are made by Metadata, and their partitions here.

        Raises a MagnetarError; KafkaRefusedError with NOT_LEADER_OR_FOLLOWER if another broker serves it.
        """
        service = self._service
        topic = topic_of(name, self._namespace)
        await service.require_namespace(topic.namespace)
        partitioned = await service.resources.partitioned_topics.get(topic)
        where = partition_of(topic, index, 0 if partitioned is None else partitioned.partitions)
        return await self.open_topic(where)

    async def open_topic(self, where: TopicName) -> Partition:
        """Does the same for a topic by its own name."""
        service = self._service
        found = self._open.get(where)
        if found is not None and not found.is_closed:
            return found
        owner = await service.look_up(where, is_authoritative=True)
        if not owner.is_here:
            raise KafkaRefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{where} is served by {owner.address.broker_id}: look it up again"
            )
        loaded = await service.persistent_topic(where, create=where.is_partition)
        found = self._open.get(where)
        if found is not None and found.topic is loaded:  # Another client was faster.
            return found
        if service.topics.find(where) is not loaded:
            raise TopicFencedError(f"{where} was unloaded: look it up again")
        made = self._open[where] = Partition(loaded, self._conversions, service.slices)
        return made

    def _on_changed(self, name: TopicName, is_loaded: bool) -> None:
        found = self._open.get(name)
        if found is not None and (not is_loaded or self._service.topics.find(name) is not found.topic):
            del self._open[name]
            found.close()

    def close(self) -> None:
        self._service.topics.changed.remove(self._on_changed)
        for partition in self._open.values():
            partition.close()
        self._open.clear()


@dataclass(frozen=True, slots=True)
class Shared:
    service: BrokerService
    config: KafkaConfig
    namespace: NamespaceName
    memory: PublishMemory
    partitions: Partitions
    brokers: Brokers
    producer_ids: ProducerIds
    coordinators: Coordinators
    creating: asyncio.Semaphore
    """Topics that are made by their first use, at a time."""
    handlers: Mapping[int, tuple[Api, Handle]]
    produce: HandleProduce
