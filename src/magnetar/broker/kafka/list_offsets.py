"""ListOffsets: the first offset, the next one, or the first one at a time or later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.kafka.fetch import check_epoch
from magnetar.broker.kafka.partition import LEADER_EPOCH
from magnetar.broker.kafka.session import Session, refusal_of
from magnetar.errors import MagnetarError
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.frames import RequestHead

LATEST: Final = -1
EARLIEST: Final = -2
_NOT_FOUND: Final = (-1, -1)


async def handle(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    topics = []
    for topic in request["topics"]:
        partitions = [await _answer(session, topic["name"], partition) for partition in topic["partitions"]]
        topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


async def _answer(session: Session, topic: str, request: Value) -> Mapping[str, Any]:
    index = request["partition_index"]
    try:
        offset, timestamp = await _find(session, topic, request)
    except (MagnetarError, TimeoutError) as error:
        code, _ = refusal_of(error)
        return {"partition_index": index, "error_code": code}
    return {"partition_index": index, "timestamp": timestamp, "offset": offset, "leader_epoch": LEADER_EPOCH}


async def _find(session: Session, topic: str, request: Value) -> tuple[int, int]:
    """Returns offset and timestamp."""
    partition = await session.open_partition(topic, request["partition_index"])
    check_epoch(request["current_leader_epoch"])
    timestamp = request["timestamp"]
    if timestamp == LATEST:
        return partition.high_watermark, -1
    if timestamp == EARLIEST:
        return await partition.log_start(), -1
    return await partition.offset_at_time(timestamp) or _NOT_FOUND
