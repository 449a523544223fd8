"""`__change_events` that other brokers serve: read and written over their client protocol, as Pulsar's brokers do.

The client looks topics up through this broker itself, and follows them when they move.

Failure:   A reader that was away while the topic was compacted may have missed a deletion. So everything is read again
           after `_REREAD_S`, besides whenever the reader fails.
Read next: change_events.py, broker/policies/events.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.broker.policies.events import IncomingEvent, OutgoingEvent
from magnetar.client.client import PulsarClient
from magnetar.client.consuming.consumer import Reader
from magnetar.client.values import EARLIEST, Message, ProducerOptions
from magnetar.errors import ServiceNotReadyError
from magnetar.names import TopicName
from magnetar.runtime.runtime import Entropy

_EVENTS_MAX: Final = 200
_READ_TIMEOUT_S: Final = 30.0
_REREAD_S: Final = 3_600.0


class RemoteEvents:
    """Ended by `aclose`."""

    def __init__(self, url: str, entropy: Entropy) -> None:
        """`url`: of this broker, for clients."""
        self._client = PulsarClient(url, entropy)

    async def open_reader(self, topic: TopicName) -> RemoteEventsReader:
        """Reads all partitions of the topic, which exists."""
        return RemoteEventsReader(await self._client.reader(str(topic), EARLIEST, read_compacted=True))

    async def publish(self, topic: TopicName, event: OutgoingEvent) -> tuple[int, int]:
        """Returns the ledger and the entry. The topic is not partitioned, or is a partition; it is made if missing."""
        producer = await self._client.producer(str(topic), ProducerOptions(batching=False))
        try:
            sent = await producer.send(
                event.payload,
                key=event.key,
                schema_version=event.schema_version,
                replicate_to=event.replicate_to,
            )
        finally:
            await producer.aclose()
        return sent.ledger_id, sent.entry_id

    async def aclose(self) -> None:
        await self._client.aclose()


class RemoteEventsReader:
    """Is an `EventsReader`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ahead: list[Message] = []
        """What `wait_for_more` has received."""
        self._ends_s = asyncio.get_running_loop().time() + _REREAD_S

    async def read_available(self) -> Sequence[IncomingEvent]:
        found: list[IncomingEvent] = []
        while len(found) < _EVENTS_MAX and (self._ahead or await self._reader.has_next()):
            found += _event_of(self._ahead.pop() if self._ahead else await self._next())
        return found

    async def _next(self) -> Message:
        try:
            return await self._reader.read(_READ_TIMEOUT_S)
        except TimeoutError:
            raise ServiceNotReadyError(f"no event of {self._reader.topic} came within {_READ_TIMEOUT_S:g} s") from None

    async def wait_for_more(self) -> None:
        left_s = self._ends_s - asyncio.get_running_loop().time()
        try:
            self._ahead.append(await self._reader.read(max(left_s, 0.0)))
        except TimeoutError:
            raise ServiceNotReadyError(f"{self._reader.topic} is read again every {_REREAD_S:g} s") from None

    async def aclose(self) -> None:
        await self._reader.aclose()


def _event_of(message: Message) -> list[IncomingEvent]:
    """Returns none for a message without a key."""
    if message.key is None:
        return []
    schema_version = message.metadata.schema_version if message.metadata is not None else b""
    payload = None if message.is_null or not message.payload else message.payload
    position = max(message.id.partition, 0), message.id.ledger_id, message.id.entry_id
    return [IncomingEvent(message.key, payload, schema_version or None, position)]
