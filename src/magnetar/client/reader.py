"""A reader: goes through a topic from a place of its own choosing, and leaves nothing behind at the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.client.consumer import RECEIVE_TIMEOUT_S, parts_of
from magnetar.client.inbox import Inbox
from magnetar.client.message import EARLIEST, LATEST, Message, MessageId, before
from magnetar.client.topic_consumer import TopicConsumer


class Reader:
    """Made by `PulsarClient.reader`."""

    def __init__(self, topic: str, parts: Sequence[TopicConsumer], inbox: Inbox, start: MessageId) -> None:
        """`start`: the last place that is not wanted."""
        self.topic = topic
        self._parts = {part.topic: part for part in parts}
        self._inbox = inbox
        self._last: dict[str, MessageId | None] = {part.topic: start for part in parts}
        """What was read last; None: only the broker knows where we are."""

    async def read(self, timeout_s: float = RECEIVE_TIMEOUT_S) -> Message:
        """The next message. Raises TimeoutError; EndOfTopicError behind the last one of a terminated topic."""
        return self._read(await self._inbox.take(timeout_s))

    def read_nowait(self) -> Message | None:
        """None if there is none here now."""
        message = self._inbox.take_nowait()
        return None if message is None else self._read(message)

    async def has_next(self) -> bool:
        """Whether there is a message that was not read, now; it may still be on its way."""
        if len(self._inbox):
            return True
        return any(await asyncio.gather(*(self._has_next(part) for part in self._parts.values())))

    async def last_message_ids(self) -> list[MessageId]:
        """Of each partition; -1 as entry id if it is empty."""
        return [last for last, _ in await asyncio.gather(*(part.last_ids() for part in self._parts.values()))]

    async def seek(self, to: MessageId | int) -> None:
        """To a message, which is the next of its partition to come; EARLIEST; LATEST; or a publish time in ms."""
        parts = parts_of(to, self._parts)
        await asyncio.gather(*(part.seek(to) for part in parts))
        for part in parts:
            self._last[part.topic] = before(to) if isinstance(to, MessageId) else None

    async def aclose(self) -> None:
        await asyncio.gather(*(part.aclose() for part in self._parts.values()))

    def _read(self, message: Message) -> Message:
        self._last[message.topic] = message.id
        self._parts[message.topic].on_read(message)
        return message

    async def _has_next(self, part: TopicConsumer) -> bool:
        last, marked = await part.last_ids()
        read = self._last[part.topic]
        if last.entry_id < 0:
            return False
        if read == EARLIEST:
            return True
        if read is None or read == LATEST:
            return marked is not None and marked[:2] < last[:2]
        if read[:2] == last[:2] and read.batch_index >= 0:
            return read.batch_index < last.batch_index
        return read[:2] < last[:2]
