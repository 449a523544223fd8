"""The consumer's side towards the broker: subscribed, permits out, messages in and opened into the inbox.

Permits:   as many messages as the queue holds may be on their way; half of them are given back at a time.
Again:     after a lost connection the broker delivers everything unacknowledged again, so what waits here is dropped.
           A subscription that the broker does not keep begins behind the last message that the application took.
Damaged:   an entry that cannot be opened is acknowledged with the reason, as Pulsar's clients do, or it would come for
           ever; if only a library is missing here, the application gets that error in its place.
"""

from __future__ import annotations

from magnetar.client.ack_state import AckState
from magnetar.client.attachment import Attachment
from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection
from magnetar.client.inbox import Inbox
from magnetar.client.incoming import Chunks, is_chunk, open_entry
from magnetar.client.message import Message, MessageId
from magnetar.client.options import ConsumerOptions
from magnetar.client.topics import partition_of
from magnetar.errors import MagnetarError, MalformedEntryError
from magnetar.wire.pulsar.encode import encode_command, encode_flow
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandMessage,
    CommandSubscribe,
    KeyValue,
)


class Receiver(Attachment):
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
        """`start`: the broker keeps no position, and this is the last message that is not wanted."""
        super().__init__(brokers, topic)
        self.subscription = subscription
        self.is_at_end = False
        self.is_active = True
        """Of a Failover subscription: whether the messages go to this consumer."""
        self.inbox = Inbox() if inbox is None else inbox
        self.inbox.sources.append(self)
        self._options = options
        self._partition = partition_of(topic)
        self._start = self._behind = start
        self._start_ms: int | None = None  # Sought, and nothing was read since.
        self._acks = AckState(tells_indexes=options.batch_index_acks)
        self._chunks = Chunks()
        self._permits_due = 0
        self._epoch = 0
        self._is_seeking = False

    # --- attaching ----------------------------------------------------------------------------------------------------

    async def _attach(self, connection: Connection) -> None:
        connection.consumers[self.id] = self
        command = self._subscribe_command()
        await self._brokers.ask(connection, command, command.subscribe.request_id)

    def _subscribe_command(self) -> BaseCommand:
        options = self._options
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription, subscribe.subType = self.topic, self.subscription, options.type
        subscribe.consumer_id, subscribe.request_id = self.id, self._brokers.next_id()
        subscribe.consumer_name = options.name
        subscribe.priority_level = options.priority
        subscribe.read_compacted = options.read_compacted
        subscribe.force_topic_creation = options.force_topic_creation
        subscribe.consumer_epoch = self._epoch
        subscribe.durable = self._start is None
        if self._start is not None:
            subscribe.start_message_id.CopyFrom(self._start.to_wire())
        if self._start_ms is not None:
            back_ms = self._brokers.entropy.wall_ms() - self._start_ms
            subscribe.start_message_rollback_duration_sec = max(1, -(-back_ms // 1_000))
        if options.from_earliest:
            subscribe.initialPosition = CommandSubscribe.Earliest
        subscribe.metadata.extend(KeyValue(key=key, value=value) for key, value in options.properties.items())
        subscribe.subscription_properties.extend(
            KeyValue(key=key, value=value) for key, value in options.subscription_properties.items()
        )
        if options.key_shared is not None:
            subscribe.keySharedMeta.CopyFrom(options.key_shared)
        if options.schema is not None:
            subscribe.schema.CopyFrom(options.schema)
        return command

    def _on_attached(self, connection: Connection) -> None:
        self._forget_received()
        self._permits_due = 0
        self._is_seeking = False
        connection.send(encode_flow(self.id, self._options.queue_messages_max))

    def _forget_received(self) -> int:
        self._acks.clear()
        self._chunks.clear()
        return self.inbox.drop(self)

    def _unregister(self, connection: Connection) -> None:
        connection.consumers.pop(self.id, None)

    def _close_command(self, request_id: int) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id, command.close_consumer.request_id = self.id, request_id
        return command

    def _on_over(self, error: MagnetarError) -> None:
        del error
        self._forget_received()
        self.inbox.wake()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def on_taken(self, messages: int) -> None:
        """The application has them, or nobody will."""
        self._permits_due += messages
        if self.connection is not None and self._permits_due * 2 >= self._options.queue_messages_max:
            self.connection.send(encode_flow(self.id, self._permits_due))
            self._permits_due = 0

    def on_frame(self, frame: Frame) -> None:
        command = frame.command
        if command.type == BaseCommand.MESSAGE:
            self._on_message(command.message, bytes(frame.headers_and_payload or b""))
        elif command.type == BaseCommand.REACHED_END_OF_TOPIC:
            self.is_at_end = True
            self.inbox.wake()
        elif command.type == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.is_active = command.active_consumer_change.is_active
        else:
            self._detach()

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
        behind = self._behind
        if behind is None:
            return messages
        if behind.batch_index >= 0:
            # A broker begins with whole entries: of a batch, what lies before the place sought or read comes, too.
            return [message for message in messages if message.id[:2] != behind[:2] or message.id > behind]
        if self._start is None:  # The broker keeps the place, and has begun behind it.
            return messages
        # It begins with the entry that it is told, and this one is the last that is not wanted.
        return [message for message in messages if message.id[:2] != behind[:2]]

    def _discard(self, command: CommandMessage, error: MalformedEntryError) -> None:
        ack = BaseCommand(type=BaseCommand.ACK)
        ack.ack.consumer_id, ack.ack.ack_type = self.id, CommandAck.Individual
        ack.ack.message_id.add().CopyFrom(command.message_id)
        is_checksum = "checksum" in str(error)
        ack.ack.validation_error = CommandAck.ChecksumMismatch if is_checksum else CommandAck.BatchDeSerializeError
        if self.connection is not None:
            self.connection.send(encode_command(ack))
        self.on_taken(1)
