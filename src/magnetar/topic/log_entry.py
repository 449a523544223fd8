"""LogEntry: one entry of a topic as it is stored. Its header is parsed when it is first needed."""

from __future__ import annotations

from typing import Any

from magnetar.topic.entry_format.head import EntryHead, read_head
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer


class LogEntry:
    """Is shared by all that read it from the tail cache: it does not change once it is confirmed."""

    __slots__ = ("_head", "data", "known_messages", "position", "token")

    def __init__(self, position: Position, data: Buffer, messages: int = 0, token: Any = None) -> None:
        """`messages`: 0 if the number has to be read from the entry."""
        self.position = position
        self.data = data
        """The stored bytes: broker entry header, if there is one, then what the producer sent."""
        self.known_messages = messages
        self.token = token
        """The token of its append, while that is in progress."""
        self._head: EntryHead | None = None

    @property
    def head(self) -> EntryHead:
        """The parsed header. Raises MalformedEntryError if the entry is not a message."""
        if self._head is None:
            self._head = read_head(self.data)
        return self._head

    @property
    def messages(self) -> int:
        """How many messages it holds: those of a batch, or one."""
        if not self.known_messages:
            self.known_messages = self.head.messages
        return self.known_messages

    def __repr__(self) -> str:
        return f"LogEntry({self.position}, {len(self.data)} bytes)"
