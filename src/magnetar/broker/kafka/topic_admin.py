"""CreateTopics and CreatePartitions.

A topic that is made so is a partitioned topic, also with one partition. Its replication factor has no effect: copies
are made by the bookies, as the policies say. Assignments to brokers are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from magnetar.broker.kafka.names import topic_of
from magnetar.broker.kafka.retention import retention_of, with_retention
from magnetar.broker.kafka.session import Session, refusal_of
from magnetar.errors import KafkaRefusedError, MagnetarError, ResourceExistsError, TopicNotFoundError
from magnetar.names import TopicName
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_DEFAULT: Final = -1


async def handle_create(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    times = Counter(topic["name"] for topic in request["topics"])
    made = []
    for topic in request["topics"]:
        error = None
        try:
            if times[topic["name"]] > 1:
                raise _invalid("a request names a topic twice")
            await _create(session, topic, is_only_checked=request["validate_only"])
        except (MagnetarError, TimeoutError) as failure:
            error = failure
        made.append({"name": topic["name"], **_outcome(error)})
    return {"topics": made}


def _outcome(error: BaseException | None) -> dict[str, Any]:
    code, why = (ErrorCode.NONE, None) if error is None else refusal_of(error)
    return {"error_code": code, "error_message": why}


async def _create(session: Session, topic: Value, *, is_only_checked: bool) -> None:
    service = session.service
    name = topic_of(topic["name"], session.shared.namespace)
    partitions = _count(topic["num_partitions"])
    _require_no_assignment(topic["assignments"])
    if not (topic["replication_factor"] == _DEFAULT or topic["replication_factor"] > 0):
        raise KafkaRefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor is -1, or above 0")
    configs = {each["name"]: each["value"] for each in topic["configs"]}
    minutes, megabytes = retention_of(configs, session.config.retention_minutes)
    await service.require_namespace(name.namespace)
    if await service.resources.partitioned_topics.get_fresh(name) is not None or await service.exists(name):
        raise ResourceExistsError(f"topic {name} exists already")
    await service.require_topic_room(name.namespace, partitions)
    if is_only_checked:
        return
    await service.policies.update_topic(name, partial(with_retention, minutes, megabytes))
    await service.create_partitioned_topic(name, partitions)
    await _make_partitions(session, name, partitions)


async def _make_partitions(session: Session, name: TopicName, count: int) -> None:
    """Makes them, so that they exist before a client uses them."""
    await session.service.resources.topics.create_missing([name.with_partition(index) for index in range(count)])


def _count(partitions: int) -> int:
    if partitions == _DEFAULT:
        return 1
    if partitions < 1:
        raise KafkaRefusedError(ErrorCode.INVALID_PARTITIONS, "a topic has at least one partition")
    return partitions


def _require_no_assignment(assignments: object) -> None:
    if assignments:
        raise KafkaRefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are not assigned by clients: leave the assignment out"
        )


async def handle_create_partitions(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    results = []
    for topic in request["topics"]:
        error = None
        try:
            await _grow(session, topic, is_only_checked=request["validate_only"])
        except (MagnetarError, TimeoutError) as failure:
            error = failure
        results.append({"name": topic["name"], **_outcome(error)})
    return {"results": results}


async def _grow(session: Session, topic: Value, *, is_only_checked: bool) -> None:
    service, count = session.service, topic["count"]
    name = topic_of(topic["name"], session.shared.namespace)
    _require_no_assignment(topic["assignments"])
    before = await service.resources.partitioned_topics.get_fresh(name)
    if before is None:
        if await service.exists(name):
            raise KafkaRefusedError(ErrorCode.INVALID_PARTITIONS, f"topic {name} was made without partitions")
        raise TopicNotFoundError(f"topic {name} does not exist")
    if count <= before.partitions:
        raise KafkaRefusedError(
            ErrorCode.INVALID_PARTITIONS, f"topic {name} has {before.partitions} already: the number can only grow"
        )
    await service.require_topic_room(name.namespace, count - before.partitions)
    if not is_only_checked:
        await service.resources.partitioned_topics.grow(name, count)
        await _make_partitions(session, name, count)


def _invalid(why: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.INVALID_REQUEST, why)
