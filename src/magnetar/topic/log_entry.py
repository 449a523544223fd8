"""LogEntry: one entry of a topic as it is stored, and what its header says, parsed when somebody asks."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.entry import EntryHead, body_offset_of, messages_in, parse_entry
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BrokerEntryMetadata

_HEADER_BYTES: Final = 6  # Magic and size.


class LogEntry:
    """Shared by everybody who reads it from the tail cache: it does not change once it is confirmed."""

    __slots__ = ("_head", "data", "known_messages", "position", "token")

    def __init__(self, position: Position, data: Buffer, messages: int = 0, token: Any = None) -> None:
        """`messages`: 0 if that has to be read from the entry."""
        self.position = position
        self.data = data
        """As stored: broker entry header, if there is one, then what the producer sent."""
        self.known_messages = messages
        self.token = token
        """Whose append it is, while it is under way."""
        self._head: EntryHead | None = None

    @property
    def head(self) -> EntryHead:
        """MalformedEntryError if the entry is not a Pulsar message."""
        if self._head is None:
            self._head = parse_entry(self.data)
        return self._head

    @property
    def messages(self) -> int:
        """How many messages it holds: those of a batch, or one."""
        if not self.known_messages:
            self.known_messages = messages_in(self.head.metadata)
        return self.known_messages

    def __repr__(self) -> str:
        return f"LogEntry({self.position}, {len(self.data)} bytes)"


def broker_header_of(data: Buffer) -> tuple[int | None, int | None]:
    """Index of the last message, and the broker's time, if the entry has them: also of one whose message nobody can
    read, since the broker's header is ours."""
    end = body_offset_of(data)
    if not end:
        return None, None
    try:
        header = BrokerEntryMetadata.FromString(memoryview(data)[_HEADER_BYTES:end])  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"broker entry metadata that is not protobuf: {error}") from None
    index = header.index if header.HasField("index") else None
    return index, header.broker_timestamp if header.HasField("broker_timestamp") else None
