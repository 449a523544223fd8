"""A subscription's side towards the broker, for one topic that is not partitioned or for one partition.

It subscribes again after a lost connection. A subscription that the broker does not keep then begins after the last
message that the application took. What is done with the messages is up to the two subclasses.
Read next: topic_consumer.py (messages for an application), raw_reader.py (whole entries)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from magnetar.client.attachment import Attachment
from magnetar.client.brokers import Brokers
from magnetar.client.connection import Connection
from magnetar.client.topics import partition_of
from magnetar.client.values import ConsumerOptions, MessageId, id_from_wire
from magnetar.errors import ClosedError
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandGetLastMessageIdResponse,
    CommandMessage,
    CommandSubscribe,
    KeyValue,
    MessageIdData,
)


class Subscriber(Attachment):
    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: str,
        options: ConsumerOptions,
        *,
        start: MessageId | None = None,
    ) -> None:
        """With `start` the broker keeps no position, and this is the last message that is not wanted."""
        super().__init__(brokers, topic)
        self.subscription = subscription
        self.is_at_end = False
        self.is_active = True
        """Whether this consumer of a Failover subscription gets the messages."""
        self._options = options
        self._partition = partition_of(topic)
        self._start = self._after = start
        self._start_ms: int | None = None
        """The time that was sought, if nothing was read since."""
        self._epoch = 0

    @abstractmethod
    def _on_message(self, command: CommandMessage, data: bytes) -> None: ...

    @abstractmethod
    def _on_end(self) -> None:
        """Is called when the topic is terminated, and everything is acknowledged."""

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

    def _unregister(self, connection: Connection) -> None:
        connection.consumers.pop(self.id, None)

    def _close_command(self, request_id: int) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id, command.close_consumer.request_id = self.id, request_id
        return command

    def on_frame(self, frame: Frame) -> None:
        command = frame.command
        if command.type == BaseCommand.MESSAGE:
            self._on_message(command.message, bytes(frame.headers_and_payload or b""))
        elif command.type == BaseCommand.REACHED_END_OF_TOPIC:
            self.is_at_end = True
            self._on_end()
        elif command.type == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.is_active = command.active_consumer_change.is_active
        else:
            self._detach()

    def _ack_command(self, ids: Sequence[MessageIdData], kind: CommandAck.AckType) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = self.id, kind
        command.ack.message_id.extend(ids)
        return command

    async def last_ids(self) -> tuple[MessageId, MessageId | None]:
        """Returns the last message, and the last one acknowledged without a gap, if the broker reports it."""
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
        """Deletes the subscription and closes the consumer, with `force` even if others are connected."""
        command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
        request = command.unsubscribe
        request.consumer_id, request.request_id = self.id, self._brokers.next_id()
        if force:
            request.force = True
        await self._brokers.ask(await self._wait_attached(), command, request.request_id)
        await self._stop(ClosedError(f"{self.subscription} is unsubscribed from {self.topic}"))

    async def aclose(self) -> None:
        if self.error is None:
            await self._close_at_broker()
        await self._stop(ClosedError(f"the consumer of {self.topic} is closed"))
