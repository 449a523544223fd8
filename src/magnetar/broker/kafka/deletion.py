"""DeleteTopics and DeleteRecords.

A topic is deleted with everything that it has, and its clients of both protocols are disconnected, as Kafka does it.
Partitions of other brokers are deleted by these, over their admin interface.

Deleting records moves the offset at which a partition begins for Kafka's clients, and drops the ledgers that are wholly
before it. A subscription of Pulsar that has not read a message keeps it.

Read next: partition.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.kafka.names import name_of, topic_of
from magnetar.broker.kafka.session import Session, refusal_of
from magnetar.client.http import HttpClient, succeeded
from magnetar.errors import BrokerUnavailableError, HttpRefusedError, MagnetarError, ServiceNotReadyError
from magnetar.names import TopicName
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_ELSEWHERE_S: Final = 60.0
_END: Final = -1
"""Stands for all records that exist."""


async def handle_topics(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    return {"responses": [{"name": name, **await _topic_deleted(session, name)} for name in request["topic_names"]]}


async def _topic_deleted(session: Session, name: str) -> dict[str, Any]:
    try:
        await _delete(session, topic_of(name, session.shared.namespace))
    except (MagnetarError, TimeoutError) as error:
        code, why = refusal_of(error)
        return {"error_code": code, "error_message": why}
    return {}


async def _delete(session: Session, topic: TopicName) -> None:
    service = session.service

    async def delete_elsewhere(name: TopicName) -> bool:
        owner = await service.look_up(name)
        if owner.is_here:
            return False
        path = f"/admin/v2/{name.domain}/{name.namespace}/{name.encoded}"
        try:
            async with HttpClient(owner.address.http_url, service.entropy.random, connections_max=1) as http:
                succeeded(await http.request("DELETE", path, {"force": True}, timeout_s=_ELSEWHERE_S))
        except (BrokerUnavailableError, HttpRefusedError) as error:
            raise ServiceNotReadyError(f"{owner.address.broker_id} did not delete {name}: {error}") from error
        return True

    await service.require_namespace(topic.namespace)
    found = await service.resources.partitioned_topics.get_fresh(topic)
    if found is not None:
        names = [topic.with_partition(index) for index in range(found.partitions)]
        await service.delete_partitioned_topic(topic, names, delete_elsewhere)
    elif not await delete_elsewhere(topic):
        await service.delete_topic(topic, force=True)
    await session.shared.coordinators.forget_topic(name_of(topic, session.shared.namespace))


async def handle_records(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [await _records_deleted(session, topic["name"], each) for each in topic["partitions"]],
            }
            for topic in request["topics"]
        ]
    }


async def _records_deleted(session: Session, name: str, wanted: Value) -> dict[str, Any]:
    index, offset = wanted["partition_index"], wanted["offset"]
    try:
        partition = await session.open_partition(name, index)
        low = await partition.delete_before(partition.high_watermark if offset == _END else offset)
    except (MagnetarError, TimeoutError) as error:
        return {"partition_index": index, "error_code": refusal_of(error)[0]}
    return {"partition_index": index, "low_watermark": low, "error_code": ErrorCode.NONE}
