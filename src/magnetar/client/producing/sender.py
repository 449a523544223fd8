"""The producer's side towards the broker: it sends entries, again if necessary, until each has its receipt.

Entries without a receipt wait in `PendingSends`, in order, whether they were sent or wait for a connection. A receipt
for an entry before the first one is late: its entry was given up or answered before. A receipt for an entry after the
first one means that a receipt was lost, and is ignored.

Order:     After a lost connection everything without a receipt is sent again in its order, with the same sequence ids,
           so that deduplication on the topic recognizes it. Receipts come in the order of the entries.
Failure:   A transient error makes the producer attach again, which sends again; any other fails that entry alone. When
           the oldest entry has waited too long, all fail: their outcome is unknown, and later entries must not overtake
           them. A caller that repeats them on a topic with deduplication must send nothing new before: that would be
           stored, and the repeats would look like duplicates. Futures are done at once; their callbacks run a turn of
           the loop later.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.client.attachment import Attachment
from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection, refusal
from magnetar.client.values import ProducerOptions, id_from_wire
from magnetar.errors import BrokerTimeoutError, MagnetarError
from magnetar.wire.pulsar.encode import encode_send_head
from magnetar.wire.pulsar.frames import MESSAGE_BYTES_MAX, Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandProducerSuccess,
    CommandSendError,
    CommandSendReceipt,
    KeyValue,
)


@dataclass(frozen=True, slots=True)
class PendingSend:
    sequence_id: int
    highest_sequence_id: int
    """0 if the entry is a single message."""
    messages: int
    body: bytes
    since: float
    on_done: Callable[[int, int], None]
    """Is called with ledger id and entry id."""
    on_failed: Callable[[MagnetarError], None]


class Receipt(enum.Enum):
    DONE = "done"
    LATE = "late"
    AHEAD = "ahead"


class PendingSends:
    def __init__(self) -> None:
        self._sends: deque[PendingSend] = deque()
        self.messages = 0

    def __len__(self) -> int:
        return len(self._sends)

    def add(self, send: PendingSend) -> None:
        self._sends.append(send)
        self.messages += send.messages

    def on_receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> Receipt:
        verdict = self._is_first(sequence_id)
        if verdict is Receipt.DONE:
            self._pop().on_done(ledger_id, entry_id)
        return verdict

    def on_refused(self, sequence_id: int, error: MagnetarError) -> Receipt:
        """Fails the entry, which the broker will never accept."""
        verdict = self._is_first(sequence_id)
        if verdict is Receipt.DONE:
            self._pop().on_failed(error)
        return verdict

    def fail_all(self, error: MagnetarError) -> None:
        while self._sends:
            self._pop().on_failed(error)

    @property
    def all(self) -> Sequence[PendingSend]:
        return tuple(self._sends)

    @property
    def oldest_since(self) -> float | None:
        return self._sends[0].since if self._sends else None

    def _is_first(self, sequence_id: int) -> Receipt:
        if not self._sends or sequence_id < self._sends[0].sequence_id:
            return Receipt.LATE
        return Receipt.DONE if sequence_id == self._sends[0].sequence_id else Receipt.AHEAD

    def _pop(self) -> PendingSend:
        send = self._sends.popleft()
        self.messages -= send.messages
        return send


class Sender(Attachment):
    def __init__(self, brokers: Brokers, topic: str, options: ProducerOptions) -> None:
        super().__init__(brokers, topic)
        self.name = options.name
        """The name that the broker knows; the broker makes it if none was given."""
        self.last_sequence_id = -1 if options.first_sequence_id is None else options.first_sequence_id - 1
        """The sequence id of the last message given to `send`."""
        self.message_bytes_max = MESSAGE_BYTES_MAX
        """The largest entry that the broker accepts, metadata and payload together."""
        self._options = options
        self._schema_version = b""
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._pending = PendingSends()
        self._timer: asyncio.TimerHandle | None = None

    def _submit(self, send: PendingSend) -> None:
        self._pending.add(send)
        if self.connection is not None:
            self._write(self.connection, send)
        if self._timer is None:
            self._timer = self._loop.call_at(send.since + self._options.send_timeout_s, self._on_timer)

    def _write(self, connection: Connection, send: PendingSend) -> None:
        head = encode_send_head(self.id, send.sequence_id, send.highest_sequence_id, send.messages, len(send.body))
        connection.send((head, send.body))

    async def _attach(self, connection: Connection) -> None:
        connection.producers[self.id] = self
        command = self._producer_command()
        answer: CommandProducerSuccess = await self._brokers.ask(connection, command, command.producer.request_id)
        self.message_bytes_max = connection.message_bytes_max
        self.name = answer.producer_name
        self._schema_version = answer.schema_version
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        if not self._epoch and self._options.first_sequence_id is None:
            self.last_sequence_id = answer.last_sequence_id
        self._epoch += 1

    def _producer_command(self) -> BaseCommand:
        options = self._options
        command = BaseCommand(type=BaseCommand.PRODUCER)
        producer = command.producer
        producer.topic, producer.producer_id, producer.request_id = self.topic, self.id, self._brokers.next_id()
        producer.epoch = self._epoch
        producer.user_provided_producer_name = bool(options.name)
        producer.producer_access_mode = options.access_mode
        producer.metadata.extend(KeyValue(key=key, value=value) for key, value in options.properties.items())
        if self.name:
            producer.producer_name = self.name
        if options.schema is not None:
            producer.schema.CopyFrom(options.schema)
        if self._topic_epoch is not None:
            producer.topic_epoch = self._topic_epoch
        if options.initial_subscription:
            producer.initial_subscription_name = options.initial_subscription
        return command

    def _on_attached(self, connection: Connection) -> None:
        for send in self._pending.all:
            self._write(connection, send)

    def _unregister(self, connection: Connection) -> None:
        connection.producers.pop(self.id, None)

    def _close_command(self, request_id: int) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id, command.close_producer.request_id = self.id, request_id
        return command

    def on_frame(self, frame: Frame) -> None:
        command = frame.command
        if command.type == BaseCommand.SEND_RECEIPT:
            self._on_receipt(command.send_receipt)
        elif command.type == BaseCommand.SEND_ERROR:
            self._on_send_error(command.send_error)
        else:
            self._detach()

    def _on_receipt(self, receipt: CommandSendReceipt) -> None:
        message_id = id_from_wire(receipt.message_id, -1)
        verdict = self._pending.on_receipt(receipt.sequence_id, message_id.ledger_id, message_id.entry_id)
        if verdict is Receipt.AHEAD:
            self._attach_again()
        self._on_answered()

    def _on_send_error(self, error: CommandSendError) -> None:
        refused = refusal(error.error, error.message)
        if refused.retryable or self._pending.on_refused(error.sequence_id, refused) is Receipt.AHEAD:
            self._attach_again()
        self._on_answered()

    def _attach_again(self) -> None:
        """Detaches because the order at the broker is broken; attaching again sends everything that is pending."""
        connection = self.connection
        if connection is not None:
            self._close_and_forget(connection)
            self._detach()

    def _on_timer(self) -> None:
        self._timer = None
        since = self._pending.oldest_since
        if since is None:
            return
        due = since + self._options.send_timeout_s
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._on_timer)
            return
        waited = f"no receipt from {self.topic} within {self._options.send_timeout_s:g} s"
        self._fail_all(BrokerTimeoutError(f"{waited}: the messages may or may not be stored"))

    def _fail_all(self, error: MagnetarError) -> None:
        self._pending.fail_all(error)
        self._on_answered()

    def _on_over(self, error: MagnetarError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fail_all(error)

    def _on_answered(self) -> None:
        """Is called when an entry may have left the queue."""
