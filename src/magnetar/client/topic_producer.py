"""A producer's part for one topic that is not partitioned, or for one partition.

Batches:   a batch leaves when it is full, when its first message has waited long enough, and on `flush`.
Bound:     so many messages without a receipt; beyond it `send_nowait` raises.
Read next: sender.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypedDict, Unpack

from magnetar.client.brokers import Brokers
from magnetar.client.message import MessageId
from magnetar.client.options import ProducerOptions
from magnetar.client.outgoing import Outgoing, Seal, seal_batch, seal_single
from magnetar.client.pending_sends import PendingSend
from magnetar.client.sender import Sender
from magnetar.client.topics import partition_of
from magnetar.errors import ClosedError, MagnetarError, MessageTooLargeError, SendQueueFullError

Sent: TypeAlias = asyncio.Future[MessageId]


class SendOptions(TypedDict, total=False):
    """What may be said about a message."""

    key: str | None
    ordering_key: bytes
    properties: Mapping[str, str]
    event_ms: int
    deliver_at_ms: int
    """Not before this time; only Shared and Key_Shared subscriptions look at it."""
    sequence_id: int
    """Counted unless given; must grow."""


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
        self._check_size(payload)
        message = self._outgoing(payload, options)
        message.check()
        self.last_sequence_id = message.sequence_id
        sent = self._last_sent = self._loop.create_future()
        sent.add_done_callback(_look_at_error)
        if self._options.batching and not message.deliver_at_ms:
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
        )

    @property
    def has_open_batch(self) -> bool:
        return bool(self._batch)

    @property
    def waiting_messages(self) -> int:
        """Without a receipt."""
        return self._pending.messages + len(self._batch)

    @property
    def has_room(self) -> bool:
        return self.waiting_messages < self._options.pending_messages_max

    async def wait_room(self) -> None:
        """Until another message may be sent. Ends: messages that wait too long for their receipt fail."""
        self._check_open()
        while not self.has_room:
            self._send_batch()
            self._room.clear()
            await self._room.wait()
            self._check_open()

    async def flush(self) -> None:
        """Until everything sent before has its receipt or has failed; what failed, its own future tells."""
        self._send_batch()
        if self._last_sent is not None:
            await asyncio.wait([self._last_sent])

    async def aclose(self) -> None:
        """Waits for what was sent, then goes."""
        if self.error is None:
            await self.flush()
            await self._close_at_broker()
        await self._stop(ClosedError(f"the producer of {self.topic} is closed"))

    # --- batches ------------------------------------------------------------------------------------------------------

    def _check_size(self, payload: bytes | None) -> None:
        size = len(payload or b"")
        if size > self.message_bytes_max:
            limit = self.message_bytes_max
            raise MessageTooLargeError(f"a message of {size} bytes exceeds the {limit} that the broker takes")

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
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            self._submit_entry(batch, is_batch=True)

    def _submit_entry(self, batch: Sequence[tuple[Outgoing, Sent]], *, is_batch: bool) -> None:
        seal = Seal(self.name, self._options.compression, self._schema_version)
        messages = [message for message, _ in batch]
        sent = [future for _, future in batch]
        publish_ms = self._brokers.entropy.wall_ms()
        try:
            body = seal_batch(seal, messages, publish_ms) if is_batch else seal_single(seal, messages[0], publish_ms)
            if len(body) > self.message_bytes_max:
                limit = self.message_bytes_max
                raise MessageTooLargeError(f"an entry of {len(body)} bytes exceeds the {limit} that the broker takes")
        except Exception as error:  # Whatever it is: nobody may wait for ever for a batch that is gone.
            _fail(sent, error)
            return
        self._submit(
            PendingSend(
                sequence_id=messages[0].sequence_id,
                highest_sequence_id=messages[-1].sequence_id if is_batch else 0,
                messages=len(messages),
                body=body,
                since=self._loop.time(),
                on_done=partial(self._on_stored, sent, is_batch),
                on_failed=partial(_fail, sent),
            )
        )

    def _on_stored(self, sent: Sequence[Sent], is_batch: bool, ledger_id: int, entry_id: int) -> None:
        for index, future in enumerate(sent):
            if not future.done():  # Else: cancelled by whoever waited for it.
                batch_index = index if is_batch and ledger_id >= 0 else -1
                future.set_result(MessageId(ledger_id, entry_id, batch_index, self._partition))

    def _on_answered(self) -> None:
        self._room.set()

    def _fail_all(self, error: MagnetarError) -> None:
        """What waits for its batch, too: sent later, it would make what is resent look like repeats."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        super()._fail_all(error)
        _fail([sent for _, sent in batch], error)


def _fail(sent: Sequence[Sent], error: Exception) -> None:
    for future in sent:
        if not future.done():
            future.set_exception(error)


def _look_at_error(sent: Sent) -> None:
    """Nobody need await the future."""
    if not sent.cancelled():
        sent.exception()
