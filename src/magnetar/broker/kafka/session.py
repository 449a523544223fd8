"""Session: one connection's requests, in order, and their answers, in the same order.

A request is decoded and handled to its end before the next one begins, as in Kafka: a fetch that waits for messages
holds up what comes after it. Only Produce is different. Once its batches are appended, the next request is handled,
and its answer is sent when they are durable.

    Answer       the place of one answer in the queue: it leaves when it is given and all before it have left
    Shared       what the sessions of a front end have together

Limits:    `pending_requests_per_connection_max` unanswered requests, and `unsent_bytes_max` of answers that wait for
           one before them, after which the connection is held. While a request is handled, nothing more is read once
           something was received: a peer that only waits is still noticed when it disconnects.
Failure:   An unknown request, or a version that is not served, ends the connection: its answer could not be read.
           ApiVersions is different (api_versions.py). So does a request that is not done within its time.
Read next: produce.py, fetch.py, metadata.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.broker.kafka.connection import Connection
from magnetar.broker.kafka.errors import code_of
from magnetar.broker.kafka.partition import Partition
from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.wire.kafka.codec import Api, Buffer, Reader, Value
from magnetar.wire.kafka.frames import (
    API_VERSIONS_KEY,
    SIZE_BYTES,
    RequestHead,
    encode_answer,
    finish_request_head,
    frame_end,
    read_request_head,
)
from magnetar.wire.kafka.tables import PRODUCE

if TYPE_CHECKING:
    from magnetar.broker.kafka.produce import Writer
    from magnetar.broker.kafka.shared import Shared

log = logging.getLogger(__name__)

Handle: TypeAlias = "Callable[[Session, RequestHead, Value], Awaitable[Mapping[str, Any]]]"
"""Returns the answer's fields."""
HandleProduce: TypeAlias = "Callable[[Session, RequestHead, Value], bool]"
"""Returns False if the request cannot be taken now: the session is busy or held, and it is offered again."""

REQUEST_S: Final = 900.0
"""Within this many seconds a request must be done: a member may wait this long for a rebalance of its group."""
_BUSY: Final = "busy"
_PENDING: Final = "pending requests"
_KEPT: Final = "answers that wait"


class Answer:
    """Is given once; until then those after it wait."""

    __slots__ = ("_api", "_correlation_id", "_session", "parts", "size", "version")

    def __init__(self, session: Session, api: Api, head: RequestHead, version: int) -> None:
        self.version = version
        self.parts: list[Buffer] | None = None
        self.size = 0
        self._session = session
        self._api = api
        self._correlation_id = head.correlation_id

    def give(self, fields: Mapping[str, Any]) -> None:
        body = self._api.encode_response(fields, self.version)
        self.parts = encode_answer(self._api, self.version, self._correlation_id, body)
        self.size = sum(map(len, self.parts))
        self._session.take(self)


class Session:
    """Is made with its connection, ended by `on_closed`, which calls `on_ended`."""

    def __init__(self, shared: Shared, connection: Connection, on_ended: Callable[[Session], None]) -> None:
        self.shared = shared
        self.service = shared.service
        self.config = shared.config
        self.connection = connection
        self.loop = asyncio.get_running_loop()
        self.writers: dict[tuple[str, int], Writer] = {}
        """Partitions that this connection writes, by Kafka's name and number."""
        self.refused: dict[tuple[str, int], BaseException] = {}
        """Partitions that could not be opened for the request that is offered again."""
        self._on_ended = on_ended
        self._answers: deque[Answer] = deque()
        self._kept_bytes = 0
        """Of answers that were given, and wait for one before them."""
        self._task: asyncio.Task[None] | None = None

    @property
    def peer(self) -> str:
        return self.connection.peer

    # --- the connection's side ----------------------------------------------------------------------------------------

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        connection = self.connection
        connection.is_established = True
        while start < end and self._task is None and not connection.is_held and not connection.is_closing:
            following = frame_end(buffer, start, end, self.config.request_bytes_max)
            if following is None or following > end:
                break
            frame = memoryview(buffer)[start + SIZE_BYTES : following]
            if not self._handle(frame):
                break
            start = following
        if self._task is not None and start < end:
            connection.hold(_BUSY)
        return end if connection.is_closing else start

    def on_closed(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._answers.clear()
        self._on_ended(self)

    def release(self) -> None:
        """Removes the connection's producers from their topics."""
        for writer in list(self.writers.values()):
            writer.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _handle(self, frame: memoryview) -> bool:
        reader = Reader(frame)
        head = read_request_head(reader)
        entry = self.shared.handlers.get(head.key)
        if entry is None:
            raise RemoteProtocolError(f"request {head.key} is not served: the client must ask for ApiVersions first")
        api, handle = entry
        version = head.version
        if not api.serves(version):
            if api.key != API_VERSIONS_KEY:
                raise RemoteProtocolError(
                    f"{api.name} v{version} is not served, only {api.version_min} to {api.version_max}: the client "
                    "must ask for ApiVersions first"
                )
            self._begin(Answer(self, api, head, 0), handle(self, head, {}))
            return True
        finish_request_head(reader, api, version)
        request = api.decode_request(frame, version, reader.at)
        if api is PRODUCE:
            return self.shared.produce(self, head, request)
        self._begin(Answer(self, api, head, version), handle(self, head, request))
        return True

    def expect_answer(self, api: Api, head: RequestHead) -> Answer:
        """Takes the next place in the order of answers."""
        answer = Answer(self, api, head, head.version)
        self._expect(answer)
        return answer

    def _expect(self, answer: Answer) -> None:
        self._answers.append(answer)
        if len(self._answers) >= self.config.pending_requests_per_connection_max:
            self.connection.hold(_PENDING)

    def _begin(self, answer: Answer, work: Awaitable[Mapping[str, Any]]) -> None:
        self._expect(answer)
        self.wait_for(self._answer(answer, work))

    async def _answer(self, answer: Answer, work: Awaitable[Mapping[str, Any]]) -> None:
        answer.give(await work)

    def wait_for(self, work: Awaitable[None]) -> None:
        """Handles no other request until this is done."""
        assert self._task is None
        task = self._task = self.loop.create_task(self._run(work), name="kafka-request")
        task.add_done_callback(self._on_done)

    async def _run(self, work: Awaitable[None]) -> None:
        async with asyncio.timeout(REQUEST_S):
            await work

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MagnetarError | TimeoutError):
            log.warning("connection closed: a request failed", extra={"peer": self.peer, "why": str(error)})
            self.connection.abort()
        elif error is not None:
            log.error("a request failed", extra={"peer": self.peer}, exc_info=error)
            self.connection.abort()
        elif not self.connection.is_closed:
            self.connection.hold(_BUSY)  # Whether or not it was: the release looks at what was received.
            self.connection.release(_BUSY)

    def take(self, answer: Answer) -> None:
        """Takes an answer that was given, and sends what can leave now."""
        answers, limit = self._answers, self.config.unsent_bytes_max
        self._kept_bytes += answer.size
        while answers and (parts := answers[0].parts) is not None:
            self._kept_bytes -= answers.popleft().size
            self.connection.send(parts)
        if self._kept_bytes > limit:
            self.connection.hold(_KEPT)
        elif self._kept_bytes <= limit // 2:
            self.connection.release(_KEPT)
        if len(answers) <= self.config.pending_requests_per_connection_max // 2:
            self.connection.release(_PENDING)

    # --- holding ------------------------------------------------------------------------------------------------------

    def hold(self, reason: str) -> None:
        self.connection.hold(reason)

    def let_go(self, reason: str) -> None:
        self.connection.release(reason)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def open_partition(self, name: str, index: int) -> Partition:
        """Returns a partition that this broker serves. Raises a MagnetarError."""
        return await self.shared.partitions.open(name, index)


def refusal_of(error: BaseException) -> tuple[int, str]:
    """Returns the code and the text for a client."""
    return code_of(error), str(error) or type(error).__name__
