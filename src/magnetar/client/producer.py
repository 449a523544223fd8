"""A producer, of a topic with or without partitions.

Order:     messages are published in the order of the calls, within each partition.
Partition: a message with a key goes where Apache's Java client would send that key; others go round, batch by batch.
Bound:     so many messages without a receipt on each partition; `send` waits for room, `send_nowait` raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Unpack

from magnetar.client.message import MessageId
from magnetar.client.topic_producer import SendOptions, Sent, TopicProducer
from magnetar.client.topics import java_hash


class Producer:
    """Made by `PulsarClient.producer`."""

    def __init__(self, topic: str, parts: Sequence[TopicProducer]) -> None:
        self.topic = topic
        self._parts = parts
        self._current = 0

    @property
    def name(self) -> str:
        """As the broker knows it."""
        return self._parts[0].name

    @property
    def last_sequence_id(self) -> int:
        """The highest one given to a message; before the first one, the last that the broker knows of this name."""
        return max(part.last_sequence_id for part in self._parts)

    async def send(self, payload: bytes | None, **options: Unpack[SendOptions]) -> MessageId:
        """Returns when the broker has it. -1:-1 is the id of a message that the broker had before.

        No payload at all (None) deletes the key from a compacted topic.
        """
        part = self._part_for(options.get("key"))
        await part.wait_room()
        return await part.send_nowait(payload, **options)

    def send_nowait(self, payload: bytes | None, **options: Unpack[SendOptions]) -> Sent:
        """As `send`, for the future to be awaited later, or never: `flush` waits for all."""
        return self._part_for(options.get("key")).send_nowait(payload, **options)

    async def wait_room(self) -> None:
        """Until every partition takes another message. Ends: messages that wait too long for their receipt fail."""
        for part in self._parts:
            await part.wait_room()

    async def flush(self) -> None:
        """Until everything sent before has its receipt or has failed; what failed, its own future tells."""
        await asyncio.gather(*(part.flush() for part in self._parts))

    async def aclose(self) -> None:
        """Waits for what was sent, then goes."""
        await asyncio.gather(*(part.aclose() for part in self._parts))

    def _part_for(self, key: str | None) -> TopicProducer:
        if key is not None:
            return self._parts[java_hash(key) % len(self._parts)]
        if not self._parts[self._current].has_open_batch:
            self._current = (self._current + 1) % len(self._parts)
        return self._parts[self._current]
