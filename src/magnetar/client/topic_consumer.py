"""A consumer's part for one topic that is not partitioned, or for one partition: what it asks of the broker.

Read next: receiver.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection
from magnetar.client.inbox import Inbox
from magnetar.client.message import EARLIEST, Message, MessageId, before, id_from_wire
from magnetar.client.options import ConsumerOptions
from magnetar.client.receiver import Receiver
from magnetar.client.refusals import refusal
from magnetar.errors import ClosedError, MagnetarError
from magnetar.wire.pulsar.encode import encode_command
from magnetar.wire.pulsar.limits import VERSION_ACK_RECEIPT
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandGetLastMessageIdResponse,
    MessageIdData,
)

_IDS_MAX: Final = 1_000  # In one command.


class TopicConsumer(Receiver):
    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: str,
        options: ConsumerOptions,
        *,
        start: MessageId | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        super().__init__(brokers, topic, subscription, options, start=start, inbox=inbox)
        self._acked: list[Message] = []
        self._rejected: dict[tuple[int, int], tuple[float, MessageIdData]] = {}
        self._redelivery_timer: asyncio.TimerHandle | None = None
        self._read_last: Message | None = None

    # --- acknowledging ------------------------------------------------------------------------------------------------

    async def acknowledge(self, message: Message) -> None:
        self._flush_acks()  # What was said in passing before stays before.
        await self._send_acks(self._acks.acknowledge([message]), CommandAck.Individual)

    async def acknowledge_to(self, message: Message) -> None:
        """All up to and including it. Not on Shared and Key_Shared subscriptions."""
        self._flush_acks()
        await self._send_acks(self._acks.acknowledge_to(message), CommandAck.Cumulative)

    def acknowledge_nowait(self, message: Message) -> None:
        self._check_open()
        if not self._acked:
            self._loop.call_soon(self._flush_acks)
        self._acked.append(message)
        if len(self._acked) >= _IDS_MAX:
            self._flush_acks()

    def negative_acknowledge(self, message: Message) -> None:
        """Please again, after a while; all of its batch that is not acknowledged."""
        self._check_open()
        due = self._loop.time() + self._options.redelivery_delay_s
        for message_id in message.chunk_ids or (message.id,):
            self._rejected[message_id[:2]] = (due, message_id._replace(batch_index=-1).to_wire())
        if self._redelivery_timer is None:
            self._redelivery_timer = self._loop.call_at(due, self._redeliver_due)

    def redeliver_unacknowledged(self) -> None:
        self._check_open()
        self._epoch += 1
        dropped = self._forget_received()
        if self.connection is not None:  # Else all of it comes again without asking.
            self._send_redeliver(self.connection, [])
            self.on_taken(dropped)

    # --- the subscription ---------------------------------------------------------------------------------------------

    async def seek(self, to: MessageId | int) -> None:
        connection = await self._wait_attached()
        self._read_last = None  # What was read before the seek must not be told behind it.
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id, command.seek.request_id = self.id, self._brokers.next_id()
        if isinstance(to, MessageId):
            command.seek.message_id.CopyFrom(to.to_wire())
        else:
            command.seek.message_publish_time = to
        self._is_seeking = True
        try:
            await self._brokers.ask(connection, command, command.seek.request_id)
        except MagnetarError:
            self._is_seeking = False
            raise
        if self._start is not None:
            self._start = before(to) if isinstance(to, MessageId) else EARLIEST
            self._start_ms = None if isinstance(to, MessageId) else to
        self._behind = before(to) if isinstance(to, MessageId) else None
        if self._is_seeking:  # Else: attached again since, and what is here came after the seek.
            self._is_seeking = False
            self.on_taken(self._forget_received())

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """The last message's, and that of the last one acknowledged without a gap, if the broker tells."""
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        request = command.getLastMessageId
        request.consumer_id, request.request_id = self.id, self._brokers.next_id()
        answer: CommandGetLastMessageIdResponse = await self._brokers.ask(
            await self._wait_attached(), command, request.request_id
        )
        marked = answer.consumer_mark_delete_position
        has_mark = answer.HasField("consumer_mark_delete_position")
        last = id_from_wire(answer.last_message_id, self._partition)
        return last, id_from_wire(marked, self._partition) if has_mark else None

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Deletes the subscription and closes the consumer. `force`: also if others are connected."""
        command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        request = command.unsubscribe
        request.consumer_id, request.request_id = self.id, self._brokers.next_id()
        if force:
            request.force = True
        await self._brokers.ask(await self._wait_attached(), command, request.request_id)
        await self._stop(ClosedError(f"{self.subscription} is unsubscribed from {self.topic}"))

    async def aclose(self) -> None:
        if self.error is None:
            self._flush_acks()
            await self._close_at_broker()
        await self._stop(ClosedError(f"the consumer of {self.topic} is closed"))

    def on_read(self, message: Message) -> None:
        """Of a subscription that the broker does not keep: from here on after a lost connection. The broker is told
        in passing, once for many, so that it knows what is left, and can say when the end of the topic is reached."""
        self._start = self._behind = message.id
        self._start_ms = None
        if self._read_last is None:
            self._loop.call_soon(self._tell_read)
        self._read_last = message

    def _tell_read(self) -> None:
        message, self._read_last = self._read_last, None
        if message is None or self.connection is None:
            return
        if ids := self._acks.acknowledge_to(message):
            self.connection.send(encode_command(self._ack_command(ids, CommandAck.Cumulative)))

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _send_acks(self, ids: Sequence[MessageIdData], kind: CommandAck.AckType) -> None:
        connection = await self._wait_attached()
        if not ids:
            return
        command = self._ack_command(ids, kind)
        if connection.protocol_version < VERSION_ACK_RECEIPT:
            connection.send(encode_command(command))
            return
        command.ack.request_id = self._brokers.next_id()
        answer: CommandAckResponse = await self._brokers.ask(connection, command, command.ack.request_id)
        if answer.HasField("error"):
            raise refusal(answer.error, answer.message)

    def _ack_command(self, ids: Sequence[MessageIdData], kind: CommandAck.AckType) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = self.id, kind
        command.ack.message_id.extend(ids)
        return command

    def _flush_acks(self) -> None:
        acked, self._acked = self._acked, []
        ids = self._acks.acknowledge(acked)
        if self.connection is not None and ids:  # Without one they come again.
            self.connection.send(encode_command(self._ack_command(ids, CommandAck.Individual)))

    def _redeliver_due(self) -> None:
        self._redelivery_timer = None
        now = self._loop.time()
        due = [key for key, (when, _) in self._rejected.items() if when <= now]
        ids = [self._rejected.pop(key)[1] for key in due]
        if self.connection is not None:  # Else they come again without asking.
            for at in range(0, len(ids), _IDS_MAX):
                self._send_redeliver(self.connection, ids[at : at + _IDS_MAX])
        if self._rejected:
            next_due = min(when for when, _ in self._rejected.values())
            self._redelivery_timer = self._loop.call_at(next_due, self._redeliver_due)

    def _send_redeliver(self, connection: Connection, ids: Sequence[MessageIdData]) -> None:
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = self.id
        request.message_ids.extend(ids)
        if not ids:
            request.consumer_epoch = self._epoch
        connection.send(encode_command(command))

    def _on_over(self, error: MagnetarError) -> None:
        if self._redelivery_timer is not None:
            self._redelivery_timer.cancel()
        self._rejected.clear()
        super()._on_over(error)
