"""A consumer of one connection: entries are sent as MESSAGE frames, everything after the head uncopied.

A batch of a Kafka producer is sent as a batch of Pulsar's (topic/entry_format/conversions.py), with the same header.
The broker's own header (index and time) is stripped, unless the client speaks version 18, asked for it by its feature
flag, and our setting allows it.

Order:     Acknowledgements that want a receipt are answered after the cursor's write; one write serves all that wait.
Limits:    When too many wait, the connection is held.
Read next: subscribe.py, deliveries.py; broker/subscriptions/consumer.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.pulsar.errors import code_of, message_of
from magnetar.broker.pulsar.values import NO_REQUEST
from magnetar.broker.subscriptions.consumer import Consumer, Delivery
from magnetar.broker.topics.topic import SubscriptionLike, Topic
from magnetar.errors import MagnetarError
from magnetar.topic.entry_format.kafka import is_kafka
from magnetar.wire.pulsar.encode import encode_ack_error, encode_ack_response, encode_message_head
from magnetar.wire.pulsar.entry import body_offset_of
from magnetar.wire.pulsar.frames import VERSION_BROKER_ENTRY_METADATA, Buffer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from magnetar.broker.pulsar.session import Session

_VERSION_END_OF_TOPIC: Final = 9
_VERSION_ACTIVE_CONSUMER: Final = 12


class ConsumerHandle:
    """Is the sink of one consumer, and what the session knows of it."""

    consumer: Consumer
    subscription: SubscriptionLike

    def __init__(self, session: Session, topic: Topic, consumer_id: int, epoch: int | None) -> None:
        self.session = session
        self.topic = topic
        self.consumer_id = consumer_id
        self._partition = topic.name.partition
        self._has_epoch = epoch is not None
        self._is_counted = False
        self._waiting_receipts: list[int] = []
        self._is_flushing = False
        self._gives_header = (
            session.config.expose_broker_entry_metadata
            and session.features.supports_broker_entry_metadata
            and session.protocol_version >= VERSION_BROKER_ENTRY_METADATA
        )

    # --- what the subscription wants ----------------------------------------------------------------------------------

    @property
    def client(self) -> Session:
        return self.session

    @property
    def is_writable(self) -> bool:
        return self.session.connection.is_writable

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        consumer_id, partition = self.consumer_id, self._partition
        epoch = self.consumer.epoch if self._has_epoch and not self.consumer.type.is_individual else None
        gives_header, converted = self._gives_header, self.session.conversions.for_pulsar
        parts: list[Buffer] = []
        for entry, redelivery_count, ack_set in deliveries:
            data = entry.data
            start = body_offset_of(data)
            if start < len(data) and not data[start]:  # Without a checksum, as all entries of Kafka's.
                data = converted(entry)
                if data is entry.data and ack_set is None and is_kafka(data):  # One message, where many were counted.
                    self.session.loop.call_soon(self._give_permits_back, entry.messages - 1)
            offset = 0 if gives_header else start
            ledger_id, entry_id = entry.position
            length = len(data) - offset
            parts += (
                encode_message_head(
                    consumer_id, ledger_id, entry_id, partition, redelivery_count, ack_set, epoch, length
                ),
                memoryview(data)[offset:],
            )
        self.session.connection.send(parts)

    def _give_permits_back(self, permits: int) -> None:
        self.subscription.flow(self.consumer, permits)

    def active_changed(self, is_active: bool) -> None:
        if self.session.protocol_version < _VERSION_ACTIVE_CONSUMER:
            return
        command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = self.consumer_id
        command.active_consumer_change.is_active = is_active
        self.session.answer_command(command)

    def reached_end_of_topic(self) -> None:
        if self.session.protocol_version < _VERSION_END_OF_TOPIC:
            return
        command = BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC)
        command.reachedEndOfTopic.consumer_id = self.consumer_id
        self.session.answer_command(command)

    def disconnect(self, why: str) -> None:
        """Disconnects the consumer; the client is informed, and comes back if it wants to."""
        del why  # The command has no room for it.
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self.consumer_id
        command.close_consumer.request_id = NO_REQUEST
        self.session.answer_when_known(command, command.close_consumer, self.topic.successor)
        self._forget()
        self.session.loop.call_soon(self.close)  # Not from inside the subscription.

    def begin(self, subscription: SubscriptionLike, *, takes_any_schema: bool) -> None:
        """Marks the consumer as connected."""
        self.subscription = subscription
        self.session.creating_consumers.pop(self.consumer_id, None)
        self.session.consumers[self.consumer_id] = self
        if not takes_any_schema:
            self._is_counted = True
            self.topic.consumers_with_schema += 1

    def close(self) -> None:
        """Closes the consumer, or does nothing if it is closed."""
        self._forget()
        if self._is_counted:
            self._is_counted = False
            self.topic.consumers_with_schema -= 1
        self.topic.remove_consumer(self.subscription, self.consumer)

    def _forget(self) -> None:
        if self.session.consumers.get(self.consumer_id) is self:
            del self.session.consumers[self.consumer_id]

    # --- receipts -----------------------------------------------------------------------------------------------------

    def send_receipt(self, request_id: int) -> None:
        """Answers when what was acknowledged until now is durable."""
        self._waiting_receipts.append(request_id)
        self.session.on_receipt_awaited()
        if not self._is_flushing:
            self._is_flushing = True
            self.session.serve(self._flush(), request_id)

    async def _flush(self) -> None:
        try:
            while self._waiting_receipts:
                waiting, self._waiting_receipts = self._waiting_receipts, []
                await self._flush_for(waiting)
        finally:
            self._is_flushing = False

    async def _flush_for(self, waiting: list[int]) -> None:
        consumer_id, connection = self.consumer_id, self.session.connection
        try:
            await self.subscription.flush()
        except (MagnetarError, TimeoutError) as error:  # Each is answered: those that wait after them are served, too.
            code, why = code_of(error), message_of(error)
            connection.send([encode_ack_error(consumer_id, request_id, code, why) for request_id in waiting])
        else:
            connection.send([encode_ack_response(consumer_id, request_id) for request_id in waiting])
        finally:
            self.session.on_receipts_sent(len(waiting))
