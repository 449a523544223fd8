"""One connection to a broker: requests and their answers, and what belongs to producers and consumers handed to them.

Reading:   into one buffer that is used again; whole frames are handled after every read. A frame larger than the
           buffer makes it grow, up to the limit of a frame.
Writing:   what one turn of the loop sends leaves in one write. Producers and consumers bound what they send by their
           own queues, so that what waits here is bounded, too.
Requests:  requests.py. A connection that is lost fails all of them.
Alive:     a PING when nothing was heard for a while; no answer in the same time, and the connection is given up.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, cast

from magnetar.client.refusals import refusal
from magnetar.client.requests import ANSWERS, Requests
from magnetar.errors import BrokerUnavailableError, MagnetarError, RemoteProtocolError
from magnetar.wire.pulsar.encode import PING, PONG, encode_command
from magnetar.wire.pulsar.frames import Buffer, Frame, FrameDecoder
from magnetar.wire.pulsar.limits import MESSAGE_BYTES_MAX, PROTOCOL_VERSION
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandConnected

RECEIVE_BYTES: Final = 64 * 1024
CLIENT_VERSION: Final = "magnetar"

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
    """A producer or consumer on this connection."""

    def on_frame(self, frame: Frame) -> None:
        """Something for it. What it keeps of the frame it copies."""

    def on_connection_lost(self, error: MagnetarError) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """Made by `connect`."""

    def __init__(self, address: str, *, frame_bytes_max: int, keep_alive_s: float) -> None:
        self.address = address
        self.error: MagnetarError | None = None
        """Why it is lost, as soon as that is known."""
        self.protocol_version = 0
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.producers: dict[int, Attached] = {}
        self.consumers: dict[int, Attached] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(frame_bytes_max)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._end = 0
        self._unsent: list[Buffer] = []
        self._requests = Requests(address)
        self._connected: asyncio.Future[CommandConnected] = self._loop.create_future()
        self._keep_alive_s = keep_alive_s
        self._keep_alive: asyncio.TimerHandle | None = None
        self._was_heard = True
        self._has_asked = False

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
        self.send(encode_command(command))
        async with asyncio.timeout(timeout_s):
            connected = await self._connected
        self.protocol_version = connected.protocol_version
        if connected.HasField("max_message_size"):
            self.message_bytes_max = connected.max_message_size
        self._keep_alive = self._loop.call_later(self._keep_alive_s, self._check_alive)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, *parts: Buffer) -> None:
        """Joins this turn's write. The parts may not change any more."""
        if self.error is None:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent += parts

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and self.error is None:
            self._transport.writelines(unsent)

    async def request(self, command: BaseCommand, request_id: int, timeout_s: float) -> Any:
        """The answer's own message, such as CommandSuccess. Raises what the broker refuses with."""
        if self.error is not None:
            raise self.error
        self.send(encode_command(command))
        return await self._requests.wait_answer(request_id, timeout_s)

    # --- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class.

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._was_heard = True
        self._end += nbytes
        if self.error is not None:
            return
        try:
            rest = 0
            for frame, following in self._decoder.frames(self._buffer, 0, self._end):
                self._on_frame(frame)
                rest = following
            self._keep(rest)
        except RemoteProtocolError as error:
            self.lose(BrokerUnavailableError(f"broker {self.address} sent what it must not: {error}"))

    def _keep(self, rest: int) -> None:
        """What is not a whole frame yet goes to the front, with room for all of it."""
        if self.error is not None:
            return
        needed = self._decoder.frame_end(self._buffer, rest, self._end)
        kept = bytes(memoryview(self._buffer)[rest : self._end])
        size = max(RECEIVE_BYTES, 0 if needed is None else needed - rest)
        if size != len(self._buffer):
            self._buffer = bytearray(size)
        self._buffer[: len(kept)] = kept
        self._end = len(kept)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.error is None:
            why = "the broker closed it" if exc is None else str(exc) or type(exc).__name__
            self.error = BrokerUnavailableError(f"the connection to broker {self.address} was lost: {why}")
        self._transport = None
        self._tell_everybody(self.error)

    def _tell_everybody(self, error: MagnetarError) -> None:
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # Whoever waited for it may be gone.
        self._requests.fail_all(error)
        attached = [*self.producers.values(), *self.consumers.values()]
        self.producers.clear()
        self.consumers.clear()
        for one in attached:
            one.on_connection_lost(error)

    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection; everybody is told in a later turn of the loop."""
        if self.error is None:
            self.error = error
            if self._transport is not None:
                self._transport.abort()

    # --- frames -------------------------------------------------------------------------------------------------------

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
            self.send(PONG)
        elif kind == BaseCommand.CONNECTED and not self._connected.done():
            self._connected.set_result(command.connected)

    @staticmethod
    def _hand_over(attached: Attached | None, frame: Frame) -> None:
        if attached is not None:  # Else: closed meanwhile.
            attached.on_frame(frame)

    def _check_alive(self) -> None:
        if not self._was_heard and self._has_asked:
            message = f"broker {self.address} was silent for {2 * self._keep_alive_s:g} s"
            self.lose(BrokerUnavailableError(message))
            return
        self._has_asked = not self._was_heard
        if self._has_asked:
            self.send(PING)
        self._was_heard = False
        self._keep_alive = self._loop.call_later(self._keep_alive_s, self._check_alive)


async def connect(
    host: str, port: int, *, proxy_to: str, timeout_s: float, frame_bytes_max: int, keep_alive_s: float
) -> Connection:
    address = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    connection = Connection(address, frame_bytes_max=frame_bytes_max, keep_alive_s=keep_alive_s)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: connection, host, port)
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
