"""Commands of a consumer about its messages: FLOW, ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES.

FLOW grants permits, in messages; for a consumer that does not exist any more it is ignored. ACK names messages that a
consumer has processed, one by one or all up to one; whole entries, or some of a batch. A request with an id is answered
when the cursor's write is durable; others are never answered. An acknowledgement within a transaction is refused, and
so is a cumulative one where each is its own. REDELIVER names messages that a consumer did not process, and is never
answered. With ids, on Shared and Key_Shared, it means those messages. Otherwise it means everything that is not
acknowledged, and the client's new epoch shows the client which messages were sent before it asked.
"""

from __future__ import annotations

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.errors import code_of, message_of
from magnetar.broker.pulsar.session import Session
from magnetar.broker.pulsar.values import position_of
from magnetar.errors import MagnetarError, NotAllowedError
from magnetar.topic.position import Position
from magnetar.wire.pulsar.encode import encode_ack_error
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandAck


def handle_flow(session: Session, command: BaseCommand) -> None:
    handle = session.consumers.get(command.flow.consumer_id)
    if handle is not None:
        handle.subscription.flow(handle.consumer, command.flow.messagePermits)


def handle_ack(session: Session, command: BaseCommand) -> None:
    ack = command.ack
    handle = session.consumers.get(ack.consumer_id)
    if handle is None:  # It was closed: what it acknowledges will be delivered again.
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
        raise NotAllowedError("this broker does not support transactions: acknowledge without one")
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
        raise NotAllowedError(f"a cumulative acknowledgement must have one message id, not {len(ack.message_id)}")
    message_id = ack.message_id[0]
    handle.subscription.acknowledge_to(
        handle.consumer, position_of(message_id), list(message_id.ack_set), message_id.batch_size
    )


def handle_redeliver(session: Session, command: BaseCommand) -> None:
    redeliver = command.redeliverUnacknowledgedMessages
    handle = session.consumers.get(redeliver.consumer_id)
    if handle is None:
        return
    consumer, subscription = handle.consumer, handle.subscription
    if redeliver.message_ids and consumer.type.is_individual:
        subscription.redeliver(consumer, [position_of(message_id) for message_id in redeliver.message_ids])
    elif redeliver.HasField("consumer_epoch"):
        subscription.redeliver(consumer, None, redeliver.consumer_epoch)
    else:
        subscription.redeliver(consumer, None)
