"""Metadata: brokers, and which of them serves which partition.

All brokers of the cluster that serve Kafka's clients are named. A topic that does not exist is made only
if the client allows it, and the namespace's policies do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from magnetar.broker.kafka.names import name_of, partition_of, topic_of
from magnetar.broker.kafka.partition import LEADER_EPOCH
from magnetar.broker.kafka.retention import with_retention
from magnetar.broker.kafka.session import Session, refusal_of
from magnetar.errors import KafkaRefusedError, MagnetarError, TopicNotFoundError
from magnetar.names import Domain, TopicName
from magnetar.runtime.gather import gather_bounded
from magnetar.wire.kafka.codec import NO_UUID, Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_AT_ONCE: Final = 32
_NO_LIMIT: Final = -1
NO_OPERATIONS: Final = -(2**31)
"""Says that the client did not ask what it is allowed to do."""


@dataclass(slots=True)
class BrokersOfAnswer:
    """The brokers that an answer names."""

    session: Session
    found: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    async def add(self, broker_id: str) -> int:
        """Returns the broker's number."""
        number, host, port = await self.session.shared.brokers.get(broker_id)
        self.found[number] = {"node_id": number, "host": host, "port": port}
        return number

    async def add_alive(self) -> None:
        """Adds the brokers of the cluster that serve Kafka's clients."""
        for broker_id in await self.session.service.membership.alive():
            if await self.session.shared.brokers.find(broker_id) is not None:
                await self.add(broker_id)


async def handle(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    brokers = BrokersOfAnswer(session)
    here = await brokers.add(session.service.address.broker_id)
    await brokers.add_alive()
    is_all = request["topics"] is None or (head.version == 0 and not request["topics"])
    if is_all:
        names = await _all_names(session)
    else:
        names = list(dict.fromkeys(topic["name"] for topic in request["topics"]))
    create = bool(request["allow_auto_topic_creation"]) and not is_all
    topics = await gather_bounded([partial(_topic, brokers, name, create) for name in names], _AT_ONCE)
    return {
        "brokers": list(brokers.found.values()),
        "cluster_id": session.service.config.broker.cluster,
        "controller_id": here,
        "topics": topics,
        "cluster_authorized_operations": NO_OPERATIONS,
    }


async def _all_names(session: Session) -> list[str]:
    """Returns the topics of the front end's namespace."""
    service, namespace = session.service, session.shared.namespace
    topics = await service.topics_of(namespace, (Domain.PERSISTENT,))
    partitioned = await service.resources.partitioned_topics.names(namespace)
    return sorted({name_of(topic.without_partition(), namespace) for topic in (*topics, *partitioned)})


async def _topic(brokers: BrokersOfAnswer, name: str | None, create: bool) -> Mapping[str, Any]:
    session = brokers.session
    try:
        if name is None:
            raise KafkaRefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "this broker gives topics no ids")
        topic = topic_of(name, session.shared.namespace)
        partitions = await _partitions(session, topic, create)
        found = [await _partition(brokers, partition_of(topic, index, partitions), index)
                 for index in range(max(1, partitions))]  # fmt: skip
    except (MagnetarError, TimeoutError) as error:
        code, _ = refusal_of(error)
        return _named(name, (), code)
    return _named(name_of(topic, session.shared.namespace), found)


def _named(name: str | None, partitions: Sequence[Mapping[str, Any]], error: int = ErrorCode.NONE) -> Mapping[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": NO_UUID,
        "partitions": partitions,
        "topic_authorized_operations": NO_OPERATIONS,
    }


async def _partitions(session: Session, topic: TopicName, create: bool) -> int:
    """Returns the number of partitions, 0 for a topic without any. TopicNotFoundError."""
    service = session.service
    partitions = await service.partitions_of(topic, create=False) if not create else await _made(session, topic)
    found = await service.resources.partitioned_topics.get(topic)
    if found is not None and found.is_being_deleted:
        raise TopicNotFoundError(f"topic {topic} is being deleted")
    return partitions


async def _made(session: Session, topic: TopicName) -> int:
    """Returns the number of partitions of a topic, which is made if it does not exist and may be."""
    service = session.service
    await service.require_namespace(topic.namespace)
    partitioned = await service.resources.partitioned_topics.get(topic)
    if partitioned is not None:
        return partitioned.partitions
    if await service.exists(topic):
        return 0
    if not await service.may_auto_create(topic):
        raise TopicNotFoundError(f"topic {topic} does not exist, and is not made by using it: create it first")
    async with session.shared.creating:
        await service.require_topic_room(topic.namespace, 1)
        await service.policies.update_topic(topic, partial(with_retention, session.config.retention_minutes, _NO_LIMIT))
        partitions = await service.partitions_of(topic, create=True)
        if not partitions:
            await service.resources.topics.create_if_absent(topic)
    return partitions


async def _partition(brokers: BrokersOfAnswer, where: TopicName, index: int) -> Mapping[str, Any]:
    try:
        owner = await brokers.session.service.look_up(where)
        leader = await brokers.add(owner.address.broker_id)
    except (MagnetarError, TimeoutError):  # There is none now: the client asks again.
        return {"error_code": ErrorCode.LEADER_NOT_AVAILABLE, "partition_index": index, "leader_id": -1}
    return {
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": [leader],
        "isr_nodes": [leader],
        "offline_replicas": [],
    }
