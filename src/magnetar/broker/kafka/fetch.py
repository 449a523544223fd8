"""Fetch: batches from an offset on, as they are stored; a fetch without messages waits for them.

A fetch that finds less than the client wants waits until something is appended to one of its partitions, or until its
time is over. It is woken by the log, and never looks by itself.

Order:     Partitions are served in the order in which the client names them. Each batch is whole, the first one may
           begin before the offset, and one batch is sent even if it exceeds all limits: otherwise a consumer would
           never pass it.
Limits:    `fetch_bytes_max` for an answer, `fetch_wait_ms_max` for waiting. There are no sessions of partitions (the
           answer's session id is 0, which declines them), so each fetch names all that it wants.
Failure:   Each partition has its own error, which is answered at once.
Read next: partition.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.kafka.partition import LEADER_EPOCH, Partition
from magnetar.broker.kafka.session import Session, refusal_of
from magnetar.errors import KafkaRefusedError, MagnetarError
from magnetar.wire.kafka.codec import Buffer, Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead

_NO_EPOCH: Final = -1
_NO_SESSION: Final = 0
_FIRST_EPOCHS: Final = (-1, 0)
"""Session epochs of a fetch that names all its partitions."""


@dataclass(slots=True)
class _Wanted:
    """One partition of a fetch."""

    topic: str
    request: Value
    partition: Partition | None = None
    error: int = 0
    log_start: int = -1
    batches: Sequence[Buffer] = ()
    size: int = 0

    def answer(self) -> Mapping[str, Any]:
        offset = -1 if self.partition is None else self.partition.high_watermark
        return {
            "partition_index": self.request["partition"],
            "error_code": self.error,
            "high_watermark": offset,
            "last_stable_offset": offset,
            "log_start_offset": self.log_start,
            "aborted_transactions": [],
            "records": self.batches,
        }


@dataclass(slots=True)
class _Round:
    """What one look at all partitions brought."""

    size: int = 0
    has_error: bool = False
    partitions: list[Partition] = field(default_factory=list)


async def handle(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    del head
    if request["session_epoch"] not in _FIRST_EPOCHS or request["session_id"] != _NO_SESSION:
        return {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "session_id": _NO_SESSION, "responses": []}
    wanted = [_Wanted(topic["topic"], partition) for topic in request["topics"] for partition in topic["partitions"]]
    bytes_max = min(max(0, request["max_bytes"]), session.config.fetch_bytes_max)
    wait_s = min(max(0, request["max_wait_ms"]), session.config.fetch_wait_ms_max) / 1000
    await _fetch(session, wanted, min(request["min_bytes"], bytes_max), bytes_max, session.loop.time() + wait_s)
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for each in wanted:
        topics.setdefault(each.topic, []).append(each.answer())
    responses = [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]
    return {"session_id": _NO_SESSION, "responses": responses}


async def _fetch(session: Session, wanted: Sequence[_Wanted], min_bytes: int, bytes_max: int, end_s: float) -> None:
    waiter = _Waiter()
    try:
        while True:
            waiter.clear()
            looked = await _look(session, wanted, bytes_max, waiter)
            if looked.size >= min_bytes or looked.has_error or session.loop.time() >= end_s:
                return
            await waiter.wait(end_s)
    finally:
        waiter.close()


async def _look(session: Session, wanted: Sequence[_Wanted], bytes_max: int, waiter: _Waiter) -> _Round:
    looked = _Round()
    for each in wanted:
        try:
            await _look_at(session, each, bytes_max - looked.size, looked.size == 0, waiter)
        except (MagnetarError, TimeoutError) as error:
            each.error, _ = refusal_of(error)
            each.batches, each.size = (), 0
            looked.has_error = True
        looked.size += each.size
    return looked


async def _look_at(session: Session, wanted: _Wanted, room: int, is_first: bool, waiter: _Waiter) -> None:
    """`is_first`: nothing was found before, so that one batch may exceed the room."""
    request = wanted.request
    partition = wanted.partition
    if partition is None or partition.is_closed:
        partition = wanted.partition = await session.open_partition(wanted.topic, request["partition"])
    check_epoch(request["current_leader_epoch"])
    waiter.watch(partition)
    wanted.log_start = await partition.log_start()
    wanted.batches, wanted.size = (), 0
    if room <= 0 and not is_first:
        return
    limit = min(room, request["partition_max_bytes"])
    found = await partition.read(request["fetch_offset"], max(1, limit))
    if found.size <= limit or is_first:
        wanted.batches, wanted.size = found.batches, found.size


def check_epoch(epoch: int) -> None:
    """Compares the leader epoch that a client knows. KafkaRefusedError."""
    if epoch in (_NO_EPOCH, LEADER_EPOCH):
        return
    code = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > LEADER_EPOCH else ErrorCode.FENCED_LEADER_EPOCH
    raise KafkaRefusedError(code, f"the leader epoch is {LEADER_EPOCH}, not {epoch}")


class _Waiter:
    """Is woken by any of the partitions that it watches."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._watched: dict[Partition, None] = {}

    def clear(self) -> None:
        self._event.clear()

    def watch(self, partition: Partition) -> None:
        """Begins before the partition is read, so that nothing is missed in between."""
        if partition not in self._watched:
            self._watched[partition] = None
            partition.watch(self._event.set)

    async def wait(self, end_s: float) -> None:
        try:
            async with asyncio.timeout_at(end_s):
                await self._event.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._event.set)
