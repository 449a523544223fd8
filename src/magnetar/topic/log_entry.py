"""LogEntry: one entry of a topic as it is stored, and what its header says, parsed when somebody asks."""

from __future__ import annotations

from typing import Any

from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.entry import EntryHead, messages_in, parse_entry


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
