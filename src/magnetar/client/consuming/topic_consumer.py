"""A consumer's part for a topic without partitions, or for one partition: receives messages, sends acknowledgements.

After a lost connection the broker delivers everything that is unacknowledged again, so what waits here is dropped.

Limits:    The broker may send as many messages as the queue holds; permits are given back when half of them are used.
Failure:   An entry that cannot be opened is acknowledged with the reason, as Pulsar's clients do: otherwise it would
           come forever. If only a library is missing here, the application gets that error in its place.
Read next: subscriber.py, acknowledgements.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection, refusal
from magnetar.client.consuming.acknowledgements import AckState, NegativeAcks
from magnetar.client.consuming.incoming import Chunks, Inbox, is_chunk, open_entry
from magnetar.client.consuming.subscriber import Subscriber
from magnetar.client.values import EARLIEST, ConsumerOptions, Message, MessageId, before
from magnetar.errors import BrokerUnavailableError, MagnetarError, MalformedEntryError
from magnetar.wire.pulsar.encode import encode_command, encode_flow
from magnetar.wire.pulsar.frames import VERSION_ACK_RECEIPT
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandMessage,
    MessageIdData,
)

_IDS_MAX: Final = 1_000  # In one command.


class TopicConsumer(Subscriber):
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
        super().__init__(brokers, topic, subscription, options, start=start)
        self.inbox = Inbox() if inbox is None else inbox
        self.inbox.sources.append(self)
        self._acks = AckState(sends_indexes=options.batch_index_acks)
        self._acked: list[Message] = []
        """The messages acknowledged in this turn of the loop; sent at its end."""
        self._unanswered: dict[int, None] = {}
        """The requests of acknowledgements that have no receipt yet."""
        self._negative_acks = NegativeAcks(options.redelivery_delay_s, self._redeliver_due)
        self._read_last: Message | None = None
        self._chunks = Chunks()
        self._permits_due = 0
        self._is_seeking = False

    # --- attaching ----------------------------------------------------------------------------------------------------

    def _on_attached(self, connection: Connection) -> None:
        self._forget_received()
        self._permits_due = 0
        self._is_seeking = False
        connection.send((encode_flow(self.id, self._options.queue_messages_max),))

    def _detach(self) -> None:
        """A broker that closed the consumer may answer none of its acknowledgements. The messages come again."""
        connection = self.connection
        super()._detach()
        if connection is not None:
            error = BrokerUnavailableError(f"the broker closed the consumer of {self.topic} before it answered")
            for request_id in self._unanswered:
                connection.give_up(request_id, error)

    def _forget_received(self) -> int:
        self._acks.clear()
        self._chunks.clear()
        return self.inbox.drop(self)

    def _on_over(self, error: MagnetarError) -> None:
        del error
        self._negative_acks.clear()
        self._forget_received()
        self.inbox.wake()

    def _on_end(self) -> None:
        self.inbox.wake()

    async def aclose(self) -> None:
        if self.error is None:
            self._flush_acks()
        await super().aclose()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def on_taken(self, messages: int) -> None:
        """Gives permits back for messages that the application has, or that were dropped."""
        self._permits_due += messages
        if self.connection is not None and self._permits_due * 2 >= self._options.queue_messages_max:
            self.connection.send((encode_flow(self.id, self._permits_due),))
            self._permits_due = 0

    def _on_message(self, command: CommandMessage, data: bytes) -> None:
        try:
            messages = open_entry(self.topic, self._partition, command, data)
            counted = messages[0].batch_size if messages else 0
            is_stale = command.HasField("consumer_epoch") and command.consumer_epoch < self._epoch
            wanted = [] if is_stale or self._is_seeking else self._wanted(messages)
        except MalformedEntryError as error:
            self._discard(command, error)
            return
        except MagnetarError as error:
            self.inbox.put(self, [error])
            return
        self._acks.on_received(wanted)
        skipped = max(1, counted) - len(wanted)
        if wanted:
            self.inbox.put(self, wanted)
        if skipped > 0:
            self.on_taken(skipped)

    def _wanted(self, messages: list[Message]) -> list[Message]:
        if len(messages) == 1 and messages[0].metadata is not None and is_chunk(messages[0].metadata):
            whole = self._chunks.add(messages[0])
            messages = [] if whole is None else [whole]
        after = self._after
        if after is None:
            return messages
        if after.batch_index >= 0:
            # A broker begins with a whole entry: messages of its batch before the sought or read one come, too.
            return [message for message in messages if message.id[:2] != after[:2] or message.id > after]
        if self._start is None:  # The broker keeps the position, and has begun after it.
            return messages
        # The broker begins with the entry that it is given, and this one is the last that is not wanted.
        return [message for message in messages if message.id[:2] != after[:2]]

    def _discard(self, command: CommandMessage, error: MalformedEntryError) -> None:
        ack = self._ack_command([command.message_id], CommandAck.Individual)
        is_checksum = "checksum" in str(error)
        ack.ack.validation_error = CommandAck.ChecksumMismatch if is_checksum else CommandAck.BatchDeSerializeError
        if self.connection is not None:
            self.connection.send((encode_command(ack),))
        self.on_taken(1)

    # --- acknowledging ------------------------------------------------------------------------------------------------

    async def acknowledge(self, message: Message) -> None:
        self._flush_acks()  # Earlier acknowledgements stay earlier.
        await self._send_acks(self._acks.acknowledge([message]), CommandAck.Individual)

    async def acknowledge_to(self, message: Message) -> None:
        """Acknowledges all messages up to this one. Not on Shared and Key_Shared subscriptions."""
        self._flush_acks()
        await self._send_acks(self._acks.acknowledge_to(message), CommandAck.Cumulative)

    def acknowledge_nowait(self, message: Message) -> None:
        self._check_open()
        if not self._acked:
            self._loop.call_soon(self._flush_acks)
        self._acked.append(message)
        if len(self._acked) >= _IDS_MAX:
            self._flush_acks()

    async def _send_acks(self, ids: Sequence[MessageIdData], kind: CommandAck.AckType) -> None:
        connection = await self._wait_attached()
        if not ids:
            return
        command = self._ack_command(ids, kind)
        if connection.protocol_version < VERSION_ACK_RECEIPT:
            connection.send((encode_command(command),))
            return
        request_id = command.ack.request_id = self._brokers.next_id()
        self._unanswered[request_id] = None
        try:
            answer: CommandAckResponse = await self._brokers.ask(connection, command, request_id)
        finally:
            del self._unanswered[request_id]
        if answer.HasField("error"):
            raise refusal(answer.error, answer.message)

    def _flush_acks(self) -> None:
        acked, self._acked = self._acked, []
        ids = self._acks.acknowledge(acked)
        if self.connection is not None and ids:  # Without a connection these messages come again.
            self.connection.send((encode_command(self._ack_command(ids, CommandAck.Individual)),))

    def on_read(self, message: Message) -> None:
        """Records a message that was read, on a subscription that the broker does not keep.

        After a lost connection it continues after this message. The broker is informed once for many messages, so that
        it knows what is left and can report the topic's end.
        """
        self._start = self._after = message.id
        self._start_ms = None
        if self._read_last is None:
            self._loop.call_soon(self._send_read)
        self._read_last = message

    def _send_read(self) -> None:
        message, self._read_last = self._read_last, None
        if message is None or self.connection is None:
            return
        if ids := self._acks.acknowledge_to(message):
            self.connection.send((encode_command(self._ack_command(ids, CommandAck.Cumulative)),))

    # --- redelivery ---------------------------------------------------------------------------------------------------

    def negative_acknowledge(self, message: Message) -> None:
        """Asks for the message again after a while, with everything unacknowledged of its batch."""
        self._check_open()
        for message_id in message.chunk_ids or (message.id,):
            self._negative_acks.add(message_id)

    def redeliver_unacknowledged(self) -> None:
        self._check_open()
        self._epoch += 1
        dropped = self._forget_received()
        if self.connection is not None:  # Without a connection everything comes again anyway.
            self._send_redeliver(self.connection, [])
            self.on_taken(dropped)

    def _redeliver_due(self, ids: list[MessageIdData]) -> None:
        if self.connection is not None:  # Without a connection they come again anyway.
            for at in range(0, len(ids), _IDS_MAX):
                self._send_redeliver(self.connection, ids[at : at + _IDS_MAX])

    def _send_redeliver(self, connection: Connection, ids: Sequence[MessageIdData]) -> None:
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = self.id
        request.message_ids.extend(ids)
        if not ids:
            request.consumer_epoch = self._epoch
        connection.send((encode_command(command),))

    # --- seek ---------------------------------------------------------------------------------------------------------

    async def seek(self, to: MessageId | int) -> None:
        connection = await self._wait_attached()
        self._read_last = None  # A message that was read before the seek must not be acknowledged after it.
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
        self._after = before(to) if isinstance(to, MessageId) else None
        if self._is_seeking:  # Otherwise it was attached again since, and what is here came after the seek.
            self._is_seeking = False
            self.on_taken(self._forget_received())
