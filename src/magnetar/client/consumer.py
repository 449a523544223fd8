"""A consumer, of a topic with or without partitions.

Receive:   in the order in which the broker delivers, within each partition.
Done:      `acknowledge` returns when the broker has made it durable; `acknowledge_nowait` says it in passing: if the
           connection is lost first, the message comes again.
Seek:      the subscription moves for all of its consumers; what was received before is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.client.inbox import Inbox
from magnetar.client.message import EARLIEST, LATEST, Message, MessageId
from magnetar.client.topic_consumer import TopicConsumer

RECEIVE_TIMEOUT_S: Final = 30.0


class Consumer:
    """Made by `PulsarClient.consumer`."""

    def __init__(self, topic: str, parts: Sequence[TopicConsumer], inbox: Inbox) -> None:
        self.topic = topic
        self._parts = {part.topic: part for part in parts}
        self._inbox = inbox

    async def receive(self, timeout_s: float = RECEIVE_TIMEOUT_S) -> Message:
        """Raises TimeoutError; EndOfTopicError behind the last message of a terminated topic."""
        return await self._inbox.take(timeout_s)

    def receive_nowait(self) -> Message | None:
        """None if there is none here now."""
        return self._inbox.take_nowait()

    @property
    def is_active(self) -> bool:
        """Of a Failover subscription: whether the messages of any partition go to this consumer."""
        return any(part.is_active for part in self._parts.values())

    async def acknowledge(self, message: Message) -> None:
        await self._parts[message.topic].acknowledge(message)

    async def acknowledge_to(self, message: Message) -> None:
        """All of its partition up to and including it. Not on Shared and Key_Shared subscriptions."""
        await self._parts[message.topic].acknowledge_to(message)

    def acknowledge_nowait(self, message: Message) -> None:
        self._parts[message.topic].acknowledge_nowait(message)

    def negative_acknowledge(self, message: Message) -> None:
        """Please again, after a while; all of its batch that is not acknowledged."""
        self._parts[message.topic].negative_acknowledge(message)

    def redeliver_unacknowledged(self) -> None:
        """Everything that was delivered here and is not acknowledged, again and now."""
        for part in self._parts.values():
            part.redeliver_unacknowledged()

    async def seek(self, to: MessageId | int) -> None:
        """To a message, which is the next of its partition to come; EARLIEST; LATEST; or a publish time in ms."""
        await asyncio.gather(*(part.seek(to) for part in parts_of(to, self._parts)))

    async def last_message_ids(self) -> list[MessageId]:
        """Of each partition; -1 as entry id if it is empty."""
        return [last for last, _ in await asyncio.gather(*(part.last_ids() for part in self._parts.values()))]

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Deletes the subscription and closes the consumer. `force`: also if others are connected."""
        await asyncio.gather(*(part.unsubscribe(force=force) for part in self._parts.values()))

    async def aclose(self) -> None:
        await asyncio.gather(*(part.aclose() for part in self._parts.values()))


def parts_of(to: MessageId | int, parts: dict[str, TopicConsumer]) -> list[TopicConsumer]:
    """Which parts a seek to there concerns."""
    every = list(parts.values())
    if not isinstance(to, MessageId) or to in (EARLIEST, LATEST) or len(every) == 1:
        return every
    if not 0 <= to.partition < len(every):
        raise ValueError(f"the topic has {len(every)} partitions, and the message id {to} names none of them")
    return [every[to.partition]]
