"""FLOW: permits, in messages. For a consumer that is not there (any more) they mean nothing."""

from __future__ import annotations

from magnetar.broker.pulsar.session import Session
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand


def handle(session: Session, command: BaseCommand) -> None:
    handle = session.consumers.get(command.flow.consumer_id)
    if handle is not None:
        handle.subscription.flow(handle.consumer, command.flow.messagePermits)
