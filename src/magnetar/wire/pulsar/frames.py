"""One frame of the protocol: two sizes, a command, and for SEND and MESSAGE what the producer made.

Format:    total_size u32 | command_size u32 | BaseCommand | [headers_and_payload]      (big-endian)
           total_size counts all that follows it. What stands behind the command is opaque here: entry.py.
Invariant: a size beyond the limit is refused as soon as it is read, so a peer cannot make us wait for, or keep, more
           than one frame of the limit; and a command is complete: every required field is there. Its strings are text.
Regions:   functions take a buffer and the region `start` to `end` of it that holds received bytes; what they return
           are positions in the same buffer. What is left after the last whole frame is moved to the front, or the
           buffer grows to `frame_end`, by whoever owns the buffer.
Read next: hot_path.py, for runs of SEND
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias, cast

from google.protobuf.message import DecodeError, Message

from magnetar.errors import RemoteProtocolError
from magnetar.wire.pulsar.limits import FRAME_BYTES_MAX
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand
from magnetar.wire.pulsar.text import field_that_is_no_text, has_strings

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
) - {BaseCommand.ACK}  # Of which there are many, and whose strings nobody reads.


class Frame(NamedTuple):
    command: BaseCommand
    headers_and_payload: memoryview | None
    """A view of the receive buffer: copy what is kept. None if the frame ends with its command."""


class FrameDecoder:
    """Frames of one connection, from whichever side. It keeps nothing between calls."""

    __slots__ = ("frame_bytes_max",)

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max

    def frame_end(self, buffer: Buffer, start: int, end: int) -> int | None:
        """Where the frame at `start` ends, which may lie beyond `end`; None if not even its size is there yet."""
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
        """The whole frame from `start` up to what `frame_end` said."""
        (command_size,) = SIZE.unpack_from(buffer, start + SIZE_BYTES)
        command_start = start + SIZES.size
        command_end = command_start + command_size
        if command_end > frame_end:
            raise RemoteProtocolError(f"a command of {command_size} bytes does not fit into its frame")
        view = memoryview(buffer)
        command = decode_command(view[command_start:command_end])
        return Frame(command, view[command_end:frame_end] if command_end < frame_end else None)

    def frames(self, buffer: Buffer, start: int, end: int) -> Iterator[tuple[Frame, int]]:
        """Each whole frame of the region with the position behind it. `frame_end` tells about what is left."""
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
    """The names of required fields that are not there."""
    return ", ".join(cast("Any", message).FindInitializationErrors())  # The stubs do not know it.
