"""Coordinators: which broker coordinates a group, and the coordinators of the partitions that are served here.

The topic of offsets is made when a client first asks for a coordinator. It keeps everything until a snapshot of the
coordinator replaces it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from magnetar.broker.kafka.groups.coordinator import Coordinator, not_coordinator
from magnetar.broker.kafka.groups.group import Group
from magnetar.broker.kafka.names import OFFSETS_NAMESPACE
from magnetar.broker.kafka.partition import Partition
from magnetar.broker.kafka.shared import Partitions
from magnetar.broker.resources.bundles import Bundles
from magnetar.broker.resources.namespaces import new_policies
from magnetar.broker.service import BrokerService
from magnetar.config.kafka import KafkaConfig
from magnetar.errors import KafkaRefusedError, ResourceExistsError, ServiceNotReadyError
from magnetar.names import TopicName
from magnetar.wire.kafka.error_codes import ErrorCode

_TOPIC: Final = OFFSETS_NAMESPACE.topic("__consumer_offsets")
_NAME_MAX: Final = 1_000
_FOREVER: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


class Coordinators:
    def __init__(self, service: BrokerService, config: KafkaConfig, partitions: Partitions) -> None:
        self._service = service
        self._config = config
        self._partitions = partitions
        self._serving: dict[Partition, Coordinator] = {}
        self._making = asyncio.Lock()

    async def locate(self, group: str) -> str:
        """Returns the id of the broker that coordinates the group."""
        topic = await self._topic_of(group)
        return (await self._service.look_up(topic)).address.broker_id

    async def of(self, group: str) -> Coordinator:
        """Returns the coordinator of a group, which must be here, when its state is known."""
        if not 0 < len(group) <= _NAME_MAX:
            raise KafkaRefusedError(ErrorCode.INVALID_GROUP_ID, f"the name of a group has 1 to {_NAME_MAX} characters")
        return await self._serve(await self._topic_of(group))

    async def all_groups(self) -> list[Group]:
        """Returns the groups of all partitions that are served here."""
        return [group for coordinator in await self._all() for group in coordinator.groups.values()]

    async def forget_topic(self, name: str) -> None:
        """Deletes the offsets that groups of this broker have committed for a topic that was deleted."""
        for coordinator in await self._all():
            for group in list(coordinator.groups.values()):
                await coordinator.delete_offsets(group, [where for where in group.offsets if where[0] == name])

    async def _all(self) -> list[Coordinator]:
        """Returns the coordinators of all partitions that are served here."""
        partitioned = await self._service.resources.partitioned_topics.get(_TOPIC)
        found: list[Coordinator] = []
        for index in range(0 if partitioned is None else partitioned.partitions):
            topic = _TOPIC.with_partition(index)
            if (await self._service.look_up(topic)).is_here:
                found.append(await self._serve(topic))
        return found

    async def _serve(self, topic: TopicName) -> Coordinator:
        try:
            partition = await self._partitions.open_topic(topic)
        except ServiceNotReadyError as error:
            raise not_coordinator() from error
        except KafkaRefusedError as error:
            raise not_coordinator() if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER else error from error
        coordinator = self._serving.get(partition)
        if coordinator is None:
            for ended in [each for each in self._serving if each.is_closed]:
                self._serving.pop(ended).close()
            coordinator = self._serving[partition] = Coordinator(partition, self._service, self._config)
        await coordinator.load()
        if partition.is_closed:  # It ended meanwhile, and its groups are forgotten: they are not without offsets.
            raise not_coordinator()
        return coordinator

    async def _topic_of(self, group: str) -> TopicName:
        partitioned = await self._service.resources.partitioned_topics.get(_TOPIC)
        if partitioned is None:
            async with self._making:
                await self._make()
            partitioned = await self._service.resources.partitioned_topics.get_fresh(_TOPIC)
            assert partitioned is not None
        return _TOPIC.with_partition(abs(java_hash(group)) % partitioned.partitions)

    async def _make(self) -> None:
        resources, broker = self._service.resources, self._service.config.broker
        policies = new_policies([broker.cluster], Bundles.equal(broker.namespace_bundles))
        with suppress(ResourceExistsError):
            await resources.namespaces.create(OFFSETS_NAMESPACE, policies | {"retention_policies": _FOREVER})
        with suppress(ResourceExistsError):
            await resources.partitioned_topics.create(_TOPIC, self._config.offsets_partitions)

    def close(self) -> None:
        for coordinator in self._serving.values():
            coordinator.close()
        self._serving.clear()


def java_hash(text: str) -> int:
    """Returns what `String.hashCode` returns in Java, which all brokers must agree on."""
    found = 0
    encoded = text.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        found = (31 * found + (encoded[at] << 8) + encoded[at + 1]) & 0xFFFFFFFF
    return found - 2**32 if found >= 2**31 else found
