"""ACK: messages that a consumer is done with, one by one or all up to one; whole entries, or some of a batch.

Receipt:   a request that has an id is answered when the cursor's write is durable; others are never answered.
Refused:   an acknowledgement within a transaction, as there are none here; a cumulative one where each is its own.
"""

from __future__ import annotations

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.errors import code_of, message_of
from magnetar.broker.pulsar.ids import position_of
from magnetar.broker.pulsar.session import Session
from magnetar.errors import MagnetarError, NotAllowedError
from magnetar.topic.position import Position
from magnetar.wire.pulsar.encode import encode_ack_error
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandAck


def handle(session: Session, command: BaseCommand) -> None:
    ack = command.ack
    handle = session.consumers.get(ack.consumer_id)
    if handle is None:  # Closed meanwhile: what it acknowledges will be delivered again.
        return
    try:
        _acknowledge(handle, ack)
    except MagnetarError as error:
        if ack.HasField("request_id"):
            session.answer(encode_ack_error(ack.consumer_id, ack.request_id, code_of(error), message_of(error)))
        return
    if ack.HasField("request_id"):
        handle.send_receipt(ack.request_id)


def _acknowledge(handle: ConsumerHandle, ack: CommandAck) -> None:
    if ack.txnid_most_bits or ack.txnid_least_bits:
        raise NotAllowedError("this broker has no transactions: acknowledge without one")
    if ack.ack_type == CommandAck.Cumulative:
        _acknowledge_to(handle, ack)
        return
    subscription, consumer = handle.subscription, handle.consumer
    whole: list[Position] = []
    for message_id in ack.message_id:
        if message_id.ack_set:
            words = list(message_id.ack_set)
            subscription.acknowledge_batch(consumer, position_of(message_id), words, message_id.batch_size)
        else:
            whole.append(position_of(message_id))
    if whole:
        subscription.acknowledge(consumer, whole)


def _acknowledge_to(handle: ConsumerHandle, ack: CommandAck) -> None:
    if len(ack.message_id) != 1:
        raise NotAllowedError(f"a cumulative acknowledgement is of one message, not of {len(ack.message_id)}")
    message_id = ack.message_id[0]
    handle.subscription.acknowledge_to(
        handle.consumer, position_of(message_id), list(message_id.ack_set), message_id.batch_size
    )
