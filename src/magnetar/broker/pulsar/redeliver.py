"""REDELIVER_UNACKNOWLEDGED_MESSAGES: messages that a consumer did not manage to process. Never answered.

With ids, on Shared and Key_Shared: those. Else everything that is not acknowledged, and the client's new epoch tells
it which messages were sent before it asked.
"""

from __future__ import annotations

from magnetar.broker.pulsar.ids import position_of
from magnetar.broker.pulsar.session import Session
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand


def handle(session: Session, command: BaseCommand) -> None:
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
