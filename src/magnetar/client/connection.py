"""One connection to a broker: requests with their answers, and the frames of the producers and consumers on it.

Limits:    Producers and consumers bound what they send by their own queues, so that what waits here is bounded, too.
Failure:   A connection that is lost fails all its requests and ends what is attached to it. A broker that
           was silent for an interval is pinged; one that is silent for another interval is given up.
           Each request has a timer of its own. A refusal that is not in the table may be transient, as in Apache's
           client.
Read next: runtime/framed_connection.py
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple, Protocol

from magnetar.errors import (
    BrokerError,
    BrokerTimeoutError,
    BrokerUnavailableError,
    ConsumerAssignError,
    ConsumerBusyError,
    IncompatibleSchemaError,
    InvalidNameError,
    MagnetarError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    RemoteProtocolError,
    ServiceNotReadyError,
    TooManyRequestsError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnsupportedRequestError,
)
from magnetar.runtime.framed_connection import ConnectionCounters, FramedConnection, PrivateInbox, dial
from magnetar.runtime.uncancelled import ignore_outcome
from magnetar.wire.pulsar.encode import PING, PONG, encode_command
from magnetar.wire.pulsar.frames import MESSAGE_BYTES_MAX, PROTOCOL_VERSION, Frame, FrameDecoder
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandConnected

_CLASSES: dict[int, type[MagnetarError]] = {
    api.ConsumerBusy: ConsumerBusyError,
    api.ServiceNotReady: ServiceNotReadyError,
    api.UnsupportedVersionError: UnsupportedRequestError,
    api.TopicNotFound: TopicNotFoundError,
    api.TooManyRequests: TooManyRequestsError,
    api.TopicTerminatedError: TopicTerminatedError,
    api.ProducerBusy: ProducerBusyError,
    api.InvalidTopicName: InvalidNameError,
    api.IncompatibleSchema: IncompatibleSchemaError,
    api.ConsumerAssignError: ConsumerAssignError,
    api.NotAllowedError: NotAllowedError,
    api.ProducerFenced: ProducerFencedError,
}
_FINAL: frozenset[int] = frozenset({
    api.AuthenticationError, api.AuthorizationError, api.ChecksumError, api.SubscriptionNotFound, api.ConsumerNotFound,
    api.TransactionCoordinatorNotFound, api.InvalidTxnStatus, api.TransactionConflict, api.TransactionNotFound,
})  # fmt: skip
"""Refusals without a class of their own that no other try can change."""
_ENDS_OPENING = (ConsumerBusyError, ProducerBusyError)
"""Refusals after which only the application may try again: another client holds the place, and may keep it."""


def refusal(code: int, message: str) -> MagnetarError:
    """Returns the error for the number and text in a broker's answer."""
    name = api.ServerError.Name(code) if code in api.ServerError.values() else f"error {code}"
    kind = BrokerError if code in _FINAL else _CLASSES.get(code, BrokerUnavailableError)
    return kind(f"{name}: {message}" if message else name)


def is_worth_another_try(error: MagnetarError, *, is_opening: bool) -> bool:
    return error.retryable and not (is_opening and isinstance(error, _ENDS_OPENING))


ANSWERS: dict[int, str] = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.ERROR: "error",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse",
    BaseCommand.ACK_RESPONSE: "ackResponse",
}
"""Commands that answer a request, and the field that has its id."""


# --- requests in progress ---------------------------------------------------------------------------------------------


class _Request(NamedTuple):
    answer: asyncio.Future[Any]
    timer: asyncio.TimerHandle


class Requests:
    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Request] = {}

    async def wait_answer(self, request_id: int, timeout_s: float) -> Any:
        """Returns the answer's own message, such as CommandSuccess. Raises the broker's refusal."""
        timer = self._loop.call_later(timeout_s, self._on_timeout, request_id, timeout_s)
        request = self._waiting[request_id] = _Request(self._loop.create_future(), timer)
        try:
            return await request.answer
        finally:
            request.timer.cancel()
            del self._waiting[request_id]

    def on_answer(self, command: BaseCommand) -> None:
        answer = getattr(command, ANSWERS[command.type])
        request = self._waiting.get(answer.request_id)
        if request is None or request.answer.done():
            return  # Its timer was faster.
        if command.type == BaseCommand.ERROR:
            request.answer.set_exception(refusal(answer.error, answer.message))
        elif command.type == BaseCommand.PRODUCER_SUCCESS and not answer.producer_ready:
            request.timer.cancel()  # It waits for its turn as the only producer, however long that takes.
        else:
            request.answer.set_result(answer)

    def fail_all(self, error: MagnetarError) -> None:
        for request_id in self._waiting:
            self.fail(request_id, error)

    def fail(self, request_id: int, error: MagnetarError) -> None:
        request = self._waiting.get(request_id)
        if request is not None and not request.answer.done():
            request.answer.set_exception(error)

    def _on_timeout(self, request_id: int, timeout_s: float) -> None:
        request = self._waiting[request_id]
        if not request.answer.done():
            message = f"broker {self._address} did not answer within {timeout_s:g} s"
            request.answer.set_exception(BrokerTimeoutError(message))


RECEIVE_BYTES: Final = 64 * 1024
CLIENT_VERSION: Final = "magnetar"
_HTTP: Final = b"HTTP/"  # As the length of a frame, more than any frame has.
_HTTP_ADVICE: Final = "it is the port of the admin interface (usually 8080), not the one for clients (usually 6650)"

_OF_PRODUCERS: Final[dict[int, str]] = {
    BaseCommand.SEND_RECEIPT: "send_receipt",
    BaseCommand.SEND_ERROR: "send_error",
    BaseCommand.CLOSE_PRODUCER: "close_producer",
}
_OF_CONSUMERS: Final[dict[int, str]] = {
    BaseCommand.MESSAGE: "message",
    BaseCommand.CLOSE_CONSUMER: "close_consumer",
    BaseCommand.REACHED_END_OF_TOPIC: "reachedEndOfTopic",
    BaseCommand.ACTIVE_CONSUMER_CHANGE: "active_consumer_change",
}


class Attached(Protocol):
    """Is a producer or consumer on this connection."""

    def on_frame(self, frame: Frame) -> None:
        """Handles a frame for it. What it keeps of the frame it copies."""

    def on_connection_lost(self, error: MagnetarError) -> None: ...


class Connection(FramedConnection):
    """Is made by `connect`."""

    __slots__ = (
        "_connected",
        "_decoder",
        "_keep_alive_s",
        "_requests",
        "address",
        "consumers",
        "error",
        "message_bytes_max",
        "producers",
        "protocol_version",
    )

    def __init__(self, address: str, *, frame_bytes_max: int, keep_alive_s: float) -> None:
        self._decoder = FrameDecoder(frame_bytes_max)
        super().__init__(PrivateInbox(RECEIVE_BYTES, self._decoder.frame_end), ConnectionCounters())
        self.address = address
        self.error: MagnetarError | None = None
        """The reason for the loss, as soon as it is known."""
        self.protocol_version = 0
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.producers: dict[int, Attached] = {}
        self.consumers: dict[int, Attached] = {}
        self._requests = Requests(address)
        self._connected: asyncio.Future[CommandConnected] = self._loop.create_future()
        self._keep_alive_s = keep_alive_s

    async def handshake(self, proxy_to: str, timeout_s: float) -> None:
        command = BaseCommand(type=BaseCommand.CONNECT)
        connect = command.connect
        connect.client_version = CLIENT_VERSION
        connect.protocol_version = PROTOCOL_VERSION
        connect.auth_method_name = "none"
        connect.feature_flags.supports_broker_entry_metadata = True
        connect.feature_flags.supports_partial_producer = True
        connect.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
        if proxy_to:
            connect.proxy_to_broker_url = proxy_to
        self.send((encode_command(command),))
        async with asyncio.timeout(timeout_s):
            connected = await self._connected
        self.protocol_version = connected.protocol_version
        if connected.HasField("max_message_size"):
            self.message_bytes_max = connected.max_message_size
        self.is_established = True
        self.keep_alive(self._keep_alive_s, PING, self._on_silent)

    async def request(self, command: BaseCommand, request_id: int, timeout_s: float) -> Any:
        """Returns the answer's own message, such as CommandSuccess. Raises the broker's refusal."""
        if self.error is not None:
            raise self.error
        self.send((encode_command(command),))
        return await self._requests.wait_answer(request_id, timeout_s)

    def give_up(self, request_id: int, error: MagnetarError) -> None:
        """Ends the wait for an answer that may never come."""
        self._requests.fail(request_id, error)

    # --- ending -------------------------------------------------------------------------------------------------------

    def on_closed(self, exc: Exception | None) -> None:
        if self.error is None:
            why = "the broker closed it" if exc is None else str(exc) or type(exc).__name__
            self.error = BrokerUnavailableError(f"the connection to broker {self.address} was lost: {why}")
        if not self._connected.done():
            self._connected.set_exception(self.error)
            ignore_outcome(self._connected)  # The caller that waited for it may have left.
        self._requests.fail_all(self.error)
        attached = [*self.producers.values(), *self.consumers.values()]
        self.producers.clear()
        self.consumers.clear()
        for one in attached:
            one.on_connection_lost(self.error)

    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection; all that wait for it get the error in a later turn of the loop."""
        if self.error is None:
            self.error = error
            self.abort()

    def _on_silent(self) -> None:
        self.lose(BrokerUnavailableError(f"broker {self.address} was silent for {2 * self._keep_alive_s:g} s"))

    # --- frames -------------------------------------------------------------------------------------------------------

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        if not self._connected.done() and buffer.startswith(_HTTP, start):
            self.lose(BrokerUnavailableError(f"{self.address} speaks HTTP: {_HTTP_ADVICE}"))
            return end
        rest = start
        for frame, following in self._decoder.frames(buffer, start, end):
            self._on_frame(frame)
            rest = following
        return rest

    def on_failed(self, error: MagnetarError) -> None:
        if not isinstance(error, RemoteProtocolError):
            raise error
        self.lose(BrokerUnavailableError(f"broker {self.address} sent what it must not: {error}"))

    def _on_frame(self, frame: Frame) -> None:
        command = frame.command
        kind = command.type
        if kind in _OF_CONSUMERS:
            self._hand_over(self.consumers.get(getattr(command, _OF_CONSUMERS[kind]).consumer_id), frame)
        elif kind in _OF_PRODUCERS:
            self._hand_over(self.producers.get(getattr(command, _OF_PRODUCERS[kind]).producer_id), frame)
        elif kind == BaseCommand.ERROR and not self._connected.done():
            self._connected.set_exception(refusal(command.error.error, command.error.message))
        elif kind in ANSWERS:
            self._requests.on_answer(command)
        elif kind == BaseCommand.PING:
            self.send((PONG,))
        elif kind == BaseCommand.CONNECTED and not self._connected.done():
            self._connected.set_result(command.connected)

    @staticmethod
    def _hand_over(attached: Attached | None, frame: Frame) -> None:
        if attached is not None:  # Otherwise it was closed.
            attached.on_frame(frame)


async def connect(
    host: str, port: int, *, proxy_to: str, timeout_s: float, frame_bytes_max: int, keep_alive_s: float
) -> Connection:
    address = f"{host}:{port}"
    connection = Connection(address, frame_bytes_max=frame_bytes_max, keep_alive_s=keep_alive_s)
    try:
        async with asyncio.timeout(timeout_s):
            await dial(lambda: connection, host, port)
            await connection.handshake(proxy_to, timeout_s)
    except (OSError, UnicodeError) as error:  # TimeoutError is one; the latter for a name that no host can have.
        why = str(error) or f"no answer within {timeout_s:g} s"
        connection.lose(BrokerUnavailableError(f"cannot connect to broker {address}: {why}"))
        assert connection.error is not None
        raise connection.error from error
    except MagnetarError as error:
        connection.lose(error)
        raise
    except asyncio.CancelledError:
        connection.lose(BrokerUnavailableError(f"connecting to broker {address} was cancelled"))
        raise
    return connection
