"""Producer: publishes messages to a topic with or without partitions. TopicProducer is its part for one of them.

A message with a key goes to the partition where Apache's Java client would send that key. Other messages take the
partitions in turn, batch by batch. A batch is sent when it is full, when its first message has waited long enough, and
on `flush`.

Order:     Within each partition, messages are published in the order of the calls.
Limits:    `pending_messages_max` messages without a receipt on each partition; `send` waits for room, `send_nowait`
           raises.
Read next: sender.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypedDict, Unpack

from magnetar.client.brokers import Brokers
from magnetar.client.producing.outgoing import Outgoing, Seal, seal_batch, seal_chunks, seal_single
from magnetar.client.producing.sender import PendingSend, Sender
from magnetar.client.topics import java_hash, partition_of
from magnetar.client.values import MessageId, ProducerOptions
from magnetar.errors import ClosedError, MagnetarError, MessageTooLargeError, SendQueueFullError
from magnetar.runtime.uncancelled import ignore_outcome

Sent: TypeAlias = asyncio.Future[MessageId]


class SendOptions(TypedDict, total=False):
    """The options of one message."""

    key: str | None
    ordering_key: bytes
    properties: Mapping[str, str]
    event_ms: int
    deliver_at_ms: int
    """The earliest time of delivery; only Shared and Key_Shared subscriptions observe it."""
    sequence_id: int
    """If it is missing, it is counted. It must grow."""
    schema_version: bytes
    """If it is missing, that of the producer's schema. Not for producers with batches, as the next."""
    replicate_to: Sequence[str]
    """The clusters that get the message. If it is missing, all of them."""


class TopicProducer(Sender):
    def __init__(self, brokers: Brokers, topic: str, options: ProducerOptions) -> None:
        super().__init__(brokers, topic, options)
        self._partition = partition_of(topic)
        self._batch: list[tuple[Outgoing, Sent]] = []
        self._batch_bytes = 0
        self._batch_timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._last_sent: Sent | None = None

    def send_nowait(self, payload: bytes | None, **options: Unpack[SendOptions]) -> Sent:
        self._check_open()
        if not self.has_room:
            raise SendQueueFullError(f"{self.waiting_messages} messages to {self.topic} wait: call wait_room first")
        message = self._outgoing(payload, options)
        message.check()
        size = len(payload or b"")
        if size > self.message_bytes_max and not self._options.chunking:
            raise too_large(size, self.message_bytes_max)
        self.last_sequence_id = message.sequence_id
        sent = self._last_sent = self._loop.create_future()
        sent.add_done_callback(ignore_outcome)  # The caller need not await it.
        if self._options.chunking and size > self.message_bytes_max // 2:  # Metadata may take much of the rest.
            self._send_batch()
            self._submit_chunks(message, sent)
        elif self._options.batching and not message.deliver_at_ms:
            self._add_to_batch(message, sent)
        else:
            self._send_batch()
            self._submit_entry([(message, sent)], is_batch=False)
        return sent

    def _outgoing(self, payload: bytes | None, options: SendOptions) -> Outgoing:
        return Outgoing(
            sequence_id=options.get("sequence_id", self.last_sequence_id + 1),
            payload=payload,
            key=options.get("key"),
            ordering_key=options.get("ordering_key", b""),
            properties=dict(options.get("properties", {})),
            event_ms=options.get("event_ms", 0),
            deliver_at_ms=options.get("deliver_at_ms", 0),
            schema_version=options.get("schema_version", b""),
            replicate_to=options.get("replicate_to", ()),
        )

    @property
    def has_open_batch(self) -> bool:
        return bool(self._batch)

    @property
    def waiting_messages(self) -> int:
        """The number of messages without a receipt."""
        return self._pending.messages + len(self._batch)

    @property
    def has_room(self) -> bool:
        return self.waiting_messages < self._options.pending_messages_max

    async def wait_room(self) -> None:
        """Returns when another message may be sent. It ends, because messages without a receipt fail after a time."""
        self._check_open()
        while not self.has_room:
            self._send_batch()
            self._room.clear()
            await self._room.wait()
            self._check_open()

    async def flush(self) -> None:
        """Returns when everything sent before has its receipt or has failed. An error is in its message's future."""
        self._send_batch()
        if self._last_sent is not None:
            await asyncio.wait([self._last_sent])

    async def aclose(self) -> None:
        """Waits for what was sent, then closes."""
        if self.error is None:
            await self.flush()
            await self._close_at_broker()
        await self._stop(ClosedError(f"the producer of {self.topic} is closed"))

    def _add_to_batch(self, message: Outgoing, sent: Sent) -> None:
        options = self._options
        if self._batch_bytes + message.size > min(options.batch_bytes_max, self.message_bytes_max):
            self._send_batch()
        self._batch.append((message, sent))
        self._batch_bytes += message.size
        if len(self._batch) >= options.batch_messages_max or self._batch_bytes >= options.batch_bytes_max:
            self._send_batch()
        elif self._batch_timer is None:
            self._batch_timer = self._loop.call_later(options.batch_delay_s, self._send_batch)

    def _send_batch(self) -> None:
        if batch := self._take_batch():
            self._submit_entry(batch, is_batch=True)

    def _take_batch(self) -> list[tuple[Outgoing, Sent]]:
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        return batch

    def _submit_entry(self, batch: Sequence[tuple[Outgoing, Sent]], *, is_batch: bool) -> None:
        seal = Seal(self.name, self._options.compression, self._schema_version)
        messages = [message for message, _ in batch]
        sent = [future for _, future in batch]
        publish_ms = self._brokers.entropy.wall_ms()
        try:
            body = seal_batch(seal, messages, publish_ms) if is_batch else seal_single(seal, messages[0], publish_ms)
            if len(body) > self.message_bytes_max:
                raise too_large(len(body), self.message_bytes_max)
        except Exception as error:  # Any error: no caller may wait forever for a batch that is lost.
            _fail(sent, error)
            return
        last_id = messages[-1].sequence_id if is_batch else 0
        self._submit_body(messages[0].sequence_id, last_id, body, sent, partial(self._on_stored, sent, is_batch))

    def _submit_chunks(self, message: Outgoing, sent: Sent) -> None:
        seal = Seal(self.name, self._options.compression, self._schema_version)
        try:
            *others, last = seal_chunks(seal, message, self._brokers.entropy.wall_ms(), self.message_bytes_max)
        except MagnetarError as error:
            _fail([sent], error)
            return
        for body in others:
            self._submit_body(message.sequence_id, 0, body, [sent], _on_chunk_stored)
        self._submit_body(message.sequence_id, 0, last, [sent], partial(self._on_stored, [sent], False))

    def _submit_body(
        self, sequence_id: int, highest_id: int, body: bytes, sent: Sequence[Sent], on_done: Callable[[int, int], None]
    ) -> None:
        self._submit(
            PendingSend(
                sequence_id=sequence_id,
                highest_sequence_id=highest_id,
                messages=len(sent),
                body=body,
                since=self._loop.time(),
                on_done=on_done,
                on_failed=partial(_fail, sent),
            )
        )

    def _on_stored(self, sent: Sequence[Sent], is_batch: bool, ledger_id: int, entry_id: int) -> None:
        for index, future in enumerate(sent):
            if not future.done():  # Otherwise the caller cancelled it.
                batch_index = index if is_batch and ledger_id >= 0 else -1
                future.set_result(MessageId(ledger_id, entry_id, batch_index, self._partition))

    def _on_answered(self) -> None:
        self._room.set()

    def _fail_all(self, error: MagnetarError) -> None:
        """Fails the messages of the open batch, too: sent later, they would make resent ones look like duplicates."""
        batch = self._take_batch()
        super()._fail_all(error)
        _fail([sent for _, sent in batch], error)


def too_large(size: int, limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"a message of {size:,} bytes exceeds the broker's limit of {limit:,} bytes with metadata: make it smaller, or "
        "turn chunking on"
    )


def _on_chunk_stored(_ledger_id: int, _entry_id: int) -> None:
    """Does nothing: the message is stored when its last chunk is."""


def _fail(sent: Sequence[Sent], error: Exception) -> None:
    for future in sent:
        if not future.done():
            future.set_exception(error)


class Producer:
    """Is made by `PulsarClient.producer`."""

    def __init__(self, topic: str, parts: Sequence[TopicProducer]) -> None:
        self.topic = topic
        self._parts = parts
        self._current = 0

    @property
    def name(self) -> str:
        """The name that the broker knows."""
        return self._parts[0].name

    @property
    def message_bytes_max(self) -> int:
        """The broker's limit for metadata and payload of an entry."""
        return min(part.message_bytes_max for part in self._parts)

    @property
    def last_sequence_id(self) -> int:
        """The highest one given to a message; before the first one, the last that the broker knows for this name."""
        return max(part.last_sequence_id for part in self._parts)

    async def send(self, payload: bytes | None, **options: Unpack[SendOptions]) -> MessageId:
        """Returns when the broker has the message. -1:-1 is the id of a message that the broker had before.

        None as the payload deletes the key from a compacted topic.
        """
        part = self._part_for(options.get("key"))
        await part.wait_room()
        return await part.send_nowait(payload, **options)

    def send_nowait(self, payload: bytes | None, **options: Unpack[SendOptions]) -> Sent:
        """Works like `send`; the future may be awaited later, or never: `flush` waits for all."""
        return self._part_for(options.get("key")).send_nowait(payload, **options)

    async def wait_room(self) -> None:
        """Returns when every partition takes another message. It ends, because messages without a receipt fail."""
        for part in self._parts:
            await part.wait_room()

    async def flush(self) -> None:
        """Returns when everything sent before has its receipt or has failed. An error is in its message's future."""
        await asyncio.gather(*(part.flush() for part in self._parts))

    async def aclose(self) -> None:
        """Waits for what was sent, then closes."""
        await asyncio.gather(*(part.aclose() for part in self._parts))

    def _part_for(self, key: str | None) -> TopicProducer:
        if key is not None:
            return self._parts[java_hash(key) % len(self._parts)]
        if not self._parts[self._current].has_open_batch:
            self._current = (self._current + 1) % len(self._parts)
        return self._parts[self._current]
