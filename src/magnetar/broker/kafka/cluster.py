"""DescribeCluster and DescribeLogDirs.

The bookies have the messages, and a broker has no directories of logs. The answer names one place, `ledgers`, with the
partitions that are loaded here and the size of one copy of each. How much room the bookies have is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.kafka.metadata import NO_OPERATIONS, BrokersOfAnswer
from magnetar.broker.kafka.names import OFFSETS_NAMESPACE, name_of
from magnetar.broker.kafka.session import Session
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_OF_BROKERS: Final = 1
_PLACE: Final = "ledgers"


async def handle_describe(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    kind = request["endpoint_type"]
    if kind != _OF_BROKERS:
        return {
            "error_code": ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            "error_message": "this is a broker: ask for the endpoints of brokers, which is type 1",
            "endpoint_type": kind,
        }
    brokers = BrokersOfAnswer(session)
    here = await brokers.add(session.service.address.broker_id)
    await brokers.add_alive()
    return {
        "cluster_id": session.service.config.broker.cluster,
        "controller_id": here,
        "brokers": [{**each, "broker_id": each["node_id"]} for each in brokers.found.values()],
        "cluster_authorized_operations": NO_OPERATIONS,
    }


async def handle_log_dirs(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    wanted = None
    if request["topics"] is not None:
        wanted = {(topic["topic"], index) for topic in request["topics"] for index in topic["partitions"]}
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for topic in session.service.topics.loaded_persistent():
        await session.service.slices.turn()
        if topic.name.is_system or topic.name.namespace == OFFSETS_NAMESPACE:
            continue
        name = name_of(topic.name.without_partition(), session.shared.namespace)
        index = topic.name.partition if topic.name.is_partition else 0
        if wanted is None or (name, index) in wanted:
            size = topic.log.chain.size_bytes
            topics.setdefault(name, []).append({"partition_index": index, "partition_size": size})
    found = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    return {"results": [{"log_dir": _PLACE, "topics": found}]}
