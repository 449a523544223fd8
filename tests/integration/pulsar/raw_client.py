"""A client that says what the test wants, right or wrong: frames on a plain socket, and nothing else."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Self

from magnetar.testing.processes.servers import HOST
from magnetar.wire.pulsar.encode import PONG, encode_command, encode_flow, encode_send_head
from magnetar.wire.pulsar.frames import FrameDecoder, with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandSubscribe,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)

TIMEOUT_S = 20.0
_FRAME_BYTES_MAX = 2**26
_HELD_S = 0.5  # A broker that takes nothing for this long does so on purpose.
_BLOCK_BYTES = 2**16


def body_of(payload: bytes, sequence_id: int = 0, **fields: Any) -> bytes:
    """Returns what a producer sends after its command."""
    metadata = MessageMetadata(producer_name="raw", sequence_id=sequence_id, publish_time=1, **fields)
    return with_checksum(metadata.SerializeToString(), payload)


def batch_payload(payloads: list[bytes]) -> bytes:
    """Several messages as one entry has them."""
    parts = []
    for payload in payloads:
        single = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts.append(len(single).to_bytes(4, "big") + single + payload)
    return b"".join(parts)


def connect_command() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "raw"
    command.connect.protocol_version = 21
    return command


def _ping() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PING)
    command.ping.SetInParent()
    return command


class RawClient:
    """A connection that has passed the handshake, unless the test says otherwise."""

    def __init__(self, port: int, *, says_hello: bool = True, receive_bytes: int = 0) -> None:
        """A small `receive_bytes` makes one that does not read known to the other side soon."""
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((HOST, port))
        self._decoder = FrameDecoder(_FRAME_BYTES_MAX)
        self._buffer = bytearray()
        self._owed = b""
        self._requests = 0
        if says_hello:
            self.say_hello()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.socket.close()

    # --- saying -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """All of it; a peer that has closed already is no error."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def say(self, command: BaseCommand) -> None:
        self.write(encode_command(command))

    def say_hello(self) -> None:
        self.say(connect_command())
        self.hear(BaseCommand.CONNECTED)

    def request_id(self) -> int:
        self._requests += 1
        return self._requests

    def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> BaseCommand:
        """PRODUCER_SUCCESS or ERROR."""
        command = BaseCommand(type=BaseCommand.PRODUCER)
        request = command.producer
        request.topic, request.producer_id, request.request_id = topic, producer_id, self.request_id()
        for name, value in fields.items():
            setattr(request, name, value)
        self.say(command)
        return self.hear(BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR)

    def publish(self, producer_id: int, sequence_id: int, body: bytes, *, messages: int = 1) -> None:
        self.write(encode_send_head(producer_id, sequence_id, 0, messages, len(body)) + body)

    def published(self, producer_id: int, sequence_id: int, body: bytes, *, messages: int = 1) -> BaseCommand:
        """SEND_RECEIPT or SEND_ERROR."""
        self.publish(producer_id, sequence_id, body, messages=messages)
        return self.hear(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)

    def subscribe(
        self,
        topic: str,
        subscription: str = "s",
        consumer_id: int = 1,
        kind: CommandSubscribe.SubType = CommandSubscribe.Shared,
        permits: int = 0,
    ) -> BaseCommand:
        """SUCCESS or ERROR."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription, request.subType = topic, subscription, kind
        request.consumer_id, request.request_id = consumer_id, self.request_id()
        request.initialPosition = CommandSubscribe.Earliest
        self.say(command)
        answer = self.hear(BaseCommand.SUCCESS, BaseCommand.ERROR)
        if permits:
            self.write(encode_flow(consumer_id, permits))
        return answer

    def look_up(self, topic: str, request_id: int | None = None) -> None:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.request_id = self.request_id() if request_id is None else request_id
        self.say(command)

    def write_until_held(self, frame: bytes, bytes_max: int) -> int:
        """Writes it again and again, and reads nothing, until the broker takes no more for a moment, or `bytes_max`
        are written. What is left of the last one follows when it is read again. Returns how often it was written."""
        block = frame * (_BLOCK_BYTES // len(frame))
        self.socket.settimeout(_HELD_S)
        written = 0
        with contextlib.suppress(TimeoutError):
            while written < bytes_max:
                written += self.socket.send(block[written % len(frame) :])
        self.socket.settimeout(TIMEOUT_S)
        self._owed = frame[written % len(frame) :] if written % len(frame) else b""
        return -(-written // len(frame))

    def _pay_what_is_owed(self) -> None:
        if self._owed:
            with contextlib.suppress(BlockingIOError):
                self._owed = self._owed[self.socket.send(self._owed, socket.MSG_DONTWAIT) :]

    # --- hearing ------------------------------------------------------------------------------------------------------

    def hear(self, *kinds: int) -> BaseCommand:
        """The next command of one of these kinds; others are passed over. ConnectionError when there is none."""
        return self.hear_with_body(*kinds)[0]

    def hear_with_body(self, *kinds: int) -> tuple[BaseCommand, bytes]:
        while True:
            command, body = self._next()
            if command.type == BaseCommand.PING:
                self.write(PONG)
            if command.type in kinds:
                return command, body

    def _next(self) -> tuple[BaseCommand, bytes]:
        while True:
            end = self._decoder.frame_end(self._buffer, 0, len(self._buffer))
            if end is not None and end <= len(self._buffer):
                command, body = self._decoder.decode(bytes(self._buffer[:end]), 0, end)
                del self._buffer[:end]
                return command, bytes(body or b"")
            self._pay_what_is_owed()
            if not (data := self.socket.recv(2**20)):
                raise ConnectionError("closed by the broker")
            self._buffer += data

    def ids_until_pong(self) -> list[MessageIdData]:
        """Returns the ids of the messages that are delivered before the broker answers a ping."""
        self.say(_ping())
        found = []
        while (command := self.hear(BaseCommand.MESSAGE, BaseCommand.PONG)).type == BaseCommand.MESSAGE:
            found.append(command.message.message_id)
        return found

    def is_closed_by_peer(self) -> bool:
        """Waits for it: everything that is still said is passed over."""
        try:
            while self.socket.recv(2**20):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def is_served(self) -> bool:
        """Whether the broker still answers on this connection."""
        self.say(_ping())
        return self.hear(BaseCommand.PONG).type == BaseCommand.PONG

    def is_served_or_closed(self) -> bool:
        """Waits until the broker has dealt with what was said."""
        try:
            return self.is_served()
        except ConnectionError:
            return True
