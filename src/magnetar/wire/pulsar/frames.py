"""One frame of the protocol: two sizes, a command, and for SEND and MESSAGE the producer's bytes.

Format:    total_size u32 | command_size u32 | BaseCommand | [headers_and_payload]      (big-endian)
           total_size counts everything that follows it. The bytes after the command are opaque here: entry.py.
           headers_and_payload: [0x0e01 u16 | crc32c u32] metadata_size u32 | MessageMetadata | payload
           The checksum covers everything that follows it. It is made by the producer, verified by each receiver and
           never recomputed. It is optional: very old clients send none.
Invariant: a size beyond the limit is refused as soon as it is read, so a peer cannot make us wait for, or keep, more
           than one frame of the limit; and a command is complete: it has every required field. Its strings are text.
           Protobuf accepts a string that is not UTF-8, and returns it as bytes. In commands such strings are refused;
           they would be names of topics, subscriptions, producers and consumers. In the metadata of messages, which the
           broker does not read when it accepts them, they are read as in Java, with replacement characters in the place
           of other bytes (`text_of`). They are delivered as they came.
Order:     functions take a buffer and the region `start` to `end` of it that holds received bytes; their results are
           positions in the same buffer. The owner of the buffer moves the rest after the last whole frame to the front,
           or lets the buffer grow to `frame_end`.
Read next: hot_path.py, for runs of SEND
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, cast

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from magnetar.errors import RemoteProtocolError
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

_Descriptor: TypeAlias = Any  # The stubs have two classes that are the same.


def text_of(value: str | bytes) -> str:
    """Returns a string field of a message's metadata."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def has_strings(kind: _Descriptor, above: tuple[_Descriptor, ...] = ()) -> bool:
    """Reports whether messages of this kind may have a string, at any depth."""
    inner = [field.message_type for field in kind.fields if field.message_type is not None]
    within = (*above, kind)
    return any(field.type == field.TYPE_STRING for field in kind.fields) or any(
        has_strings(each, within) for each in inner if each not in within
    )


def field_that_is_no_text(message: Message) -> str | None:
    """Returns the name of a string field that is not UTF-8, within the message or within its parts."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if any(isinstance(each, bytes) for each in _each(value)):
                return str(field.name)
        elif field.type == field.TYPE_MESSAGE:
            for each in _each(value):
                if (found := field_that_is_no_text(each)) is not None:
                    return found
    return None


def _each(value: Any) -> Iterable[Any]:
    """Returns all values of a repeated field, otherwise the one."""
    return (value,) if isinstance(value, str | bytes | Message) else value


PROTOCOL_VERSION: Final = 21
"""The highest version that we speak, on both sides; a connection uses the lower of the two."""
VERSION_BROKER_ENTRY_METADATA: Final = 18
"""From this version on a client may ask, by its feature flag, for broker entry metadata with its messages."""
VERSION_ACK_RECEIPT: Final = 17

MESSAGE_BYTES_MAX: Final = 5 * 2**20
"""Metadata and payload together, as a broker announces it in CONNECTED by default."""
FRAME_PADDING_BYTES: Final = 10 * 2**10
"""Pulsar's own allowance for the command around the largest message."""
FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + FRAME_PADDING_BYTES
"""The limit of a frame, its own four bytes included."""


Buffer: TypeAlias = bytes | bytearray | memoryview

SIZE = struct.Struct(">I")
SIZES = struct.Struct(">II")  # total_size, command_size
SIZE_BYTES = SIZE.size

_parse = BaseCommand.FromString
_FIELD_OF_TYPE = {
    number: field.name for field in BaseCommand.DESCRIPTOR.fields if (number := field.number) != 1
}  # A command's type has the number of the field that holds it.
_WITH_TEXT = frozenset(
    field.number
    for field in BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and has_strings(field.message_type)
) - {BaseCommand.ACK}  # There are many of them, and their strings are not used.


class Frame(NamedTuple):
    command: BaseCommand
    headers_and_payload: memoryview | None
    """A view of the receive buffer: copy what is kept. None if the frame ends with its command."""


class FrameDecoder:
    """Decodes frames of one connection, from either side. It keeps nothing between calls."""

    __slots__ = ("frame_bytes_max",)

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max

    def frame_end(self, buffer: Buffer, start: int, end: int) -> int | None:
        """Returns the end of the frame at `start`, which may lie beyond `end`; None if not even its size has
        arrived."""
        if end - start < SIZE_BYTES:
            return None
        (size,) = SIZE.unpack_from(buffer, start)
        if size + SIZE_BYTES > self.frame_bytes_max:
            message = f"a frame of {size + SIZE_BYTES} bytes exceeds the limit of {self.frame_bytes_max}"
            raise RemoteProtocolError(message)
        if size < SIZE_BYTES:
            raise RemoteProtocolError(f"a frame of {size} bytes is too short for any command")
        return start + SIZE_BYTES + int(size)

    def decode(self, buffer: Buffer, start: int, frame_end: int) -> Frame:
        """Decodes the whole frame from `start` up to its `frame_end`."""
        (command_size,) = SIZE.unpack_from(buffer, start + SIZE_BYTES)
        command_start = start + SIZES.size
        command_end = command_start + command_size
        if command_end > frame_end:
            raise RemoteProtocolError(f"a command of {command_size} bytes does not fit into its frame")
        view = memoryview(buffer)
        command = decode_command(view[command_start:command_end])
        return Frame(command, view[command_end:frame_end] if command_end < frame_end else None)

    def frames(self, buffer: Buffer, start: int, end: int) -> Iterator[tuple[Frame, int]]:
        """Yields each whole frame of the region with the position after it. `frame_end` describes the rest."""
        while (following := self.frame_end(buffer, start, end)) is not None and following <= end:
            yield self.decode(buffer, start, following), following
            start = following


def decode_command(data: Buffer) -> BaseCommand:
    try:
        command = _parse(data)  # type: ignore[arg-type]  # The stub knows only bytes; every buffer is read.
    except DecodeError as error:
        raise RemoteProtocolError(f"a command that is not protobuf: {error}") from None
    if not command.IsInitialized():
        missing = missing_fields(command)
        raise RemoteProtocolError(f"a command of unknown type, or without a required field: {missing}")
    kind = command.type
    if not command.HasField(_FIELD_OF_TYPE[kind]):
        raise RemoteProtocolError(f"a command of type {kind} without its field")
    if kind in _WITH_TEXT and (field := field_that_is_no_text(command)) is not None:
        raise RemoteProtocolError(f"a command of type {kind} whose {field} is not UTF-8")
    return command


def missing_fields(message: Message) -> str:
    """Returns the names of missing required fields."""
    return ", ".join(cast("Any", message).FindInitializationErrors())  # The stubs do not know it.


CHECKSUM_MAGIC: Final = 0x0E01
CHECKSUM = struct.Struct(">HI")
CHECKSUM_BYTES: Final = CHECKSUM.size


def has_checksum(headers_and_payload: Buffer) -> bool:
    return len(headers_and_payload) >= CHECKSUM_BYTES and CHECKSUM.unpack_from(headers_and_payload)[0] == CHECKSUM_MAGIC


def verify_checksum(headers_and_payload: Buffer) -> bool:
    """Reports whether it is right; a missing one is not wrong."""
    if not has_checksum(headers_and_payload):
        return True
    expected = CHECKSUM.unpack_from(headers_and_payload)[1]
    return crc32c(memoryview(headers_and_payload)[CHECKSUM_BYTES:]) == int(expected)


def with_checksum(metadata: bytes, payload: Buffer) -> bytes:
    """Joins headers and payload from a serialized MessageMetadata and its payload."""
    covered = b"".join((len(metadata).to_bytes(4, "big"), metadata, payload))
    return CHECKSUM.pack(CHECKSUM_MAGIC, crc32c(covered)) + covered
