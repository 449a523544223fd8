"""Consumer and Reader: what an application receives messages from, for a topic with or without partitions.

A consumer has a subscription at the broker. `acknowledge` returns when the broker has made it durable.
`acknowledge_nowait` sends it without waiting: if the connection is lost first, the message comes again. A seek moves
the subscription for all of its consumers; what was received before is dropped. A reader reads from a position that it
chooses, and leaves no subscription at the broker.

Order:     Within each partition, messages come in the order in which the broker delivers them.
Read next: topic_consumer.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.client.consuming.incoming import Inbox
from magnetar.client.consuming.topic_consumer import TopicConsumer
from magnetar.client.values import EARLIEST, LATEST, Message, MessageId, before
from magnetar.words import counted

RECEIVE_TIMEOUT_S: Final = 30.0


class Parts:
    """What a consumer and a reader have in common: the parts for the partitions of a topic, and their inbox."""

    def __init__(self, topic: str, parts: Sequence[TopicConsumer], inbox: Inbox) -> None:
        self.topic = topic
        self._parts = {part.topic: part for part in parts}
        self._inbox = inbox

    async def last_message_ids(self) -> list[MessageId]:
        """Returns the last id of each partition; its entry id is -1 if the partition is empty."""
        return [last for last, _ in await asyncio.gather(*(part.last_ids() for part in self._parts.values()))]

    async def seek(self, to: MessageId | int) -> None:
        """Seeks a message, the next of its partition to come; EARLIEST; LATEST; or a publish time in ms."""
        await asyncio.gather(*(part.seek(to) for part in self._sought(to)))

    def _sought(self, to: MessageId | int) -> list[TopicConsumer]:
        """Returns the parts that a seek to this place concerns."""
        every = list(self._parts.values())
        if not isinstance(to, MessageId) or to in (EARLIEST, LATEST) or len(every) == 1:
            return every
        if not 0 <= to.partition < len(every):
            raise ValueError(
                f"the topic has {counted(len(every), 'partition')}, and the message id {to} names none of them"
            )
        return [every[to.partition]]

    async def aclose(self) -> None:
        await asyncio.gather(*(part.aclose() for part in self._parts.values()))


class Consumer(Parts):
    """Is made by `PulsarClient.consumer`."""

    async def receive(self, timeout_s: float = RECEIVE_TIMEOUT_S) -> Message:
        """Raises TimeoutError, and EndOfTopicError after the last message of a terminated topic."""
        return await self._inbox.take(timeout_s)

    def receive_nowait(self) -> Message | None:
        """Returns None if no message has arrived."""
        return self._inbox.take_nowait()

    @property
    def is_active(self) -> bool:
        """Whether this consumer of a Failover subscription gets the messages of any partition."""
        return any(part.is_active for part in self._parts.values())

    async def acknowledge(self, message: Message) -> None:
        await self._parts[message.topic].acknowledge(message)

    async def acknowledge_to(self, message: Message) -> None:
        """Acknowledges all messages of its partition up to it. Not on Shared and Key_Shared subscriptions."""
        await self._parts[message.topic].acknowledge_to(message)

    def acknowledge_nowait(self, message: Message) -> None:
        self._parts[message.topic].acknowledge_nowait(message)

    def negative_acknowledge(self, message: Message) -> None:
        """Asks for the message again after a while, with all of its batch that is not acknowledged."""
        self._parts[message.topic].negative_acknowledge(message)

    def redeliver_unacknowledged(self) -> None:
        """Asks at once for everything that was delivered here and is not acknowledged."""
        for part in self._parts.values():
            part.redeliver_unacknowledged()

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Deletes the subscription and closes the consumer, with `force` even if others are connected."""
        await asyncio.gather(*(part.unsubscribe(force=force) for part in self._parts.values()))


class Reader(Parts):
    """Is made by `PulsarClient.reader`."""

    def __init__(self, topic: str, parts: Sequence[TopicConsumer], inbox: Inbox, start: MessageId) -> None:
        """`start`: the last message that is not wanted."""
        super().__init__(topic, parts, inbox)
        self._last: dict[str, MessageId | None] = {part.topic: start for part in parts}
        """The message that was read last; None if only the broker knows the position."""

    async def read(self, timeout_s: float = RECEIVE_TIMEOUT_S) -> Message:
        """Returns the next message. Raises TimeoutError, and EndOfTopicError after the last one of a terminated
        topic."""
        return self._read(await self._inbox.take(timeout_s))

    def read_nowait(self) -> Message | None:
        """Returns None if no message has arrived."""
        message = self._inbox.take_nowait()
        return None if message is None else self._read(message)

    async def has_next(self) -> bool:
        """Returns whether an unread message exists now. It may not have arrived yet."""
        if len(self._inbox):
            return True
        return any(await asyncio.gather(*(self._has_next(part) for part in self._parts.values())))

    async def seek(self, to: MessageId | int) -> None:
        await super().seek(to)
        for part in self._sought(to):
            self._last[part.topic] = before(to) if isinstance(to, MessageId) else None

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
