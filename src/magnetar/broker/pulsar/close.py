"""CLOSE_PRODUCER and CLOSE_CONSUMER. What is not there is closed already; what is being made is given up.

A producer is closed when all it published is answered: its client waits for the receipts.
"""

from __future__ import annotations

from magnetar.broker.pulsar.session import Session
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand


def handle_producer(session: Session, command: BaseCommand) -> None:
    close = command.close_producer
    _give_up(session, "producer", close.producer_id)
    producer = session.producers.get(close.producer_id)
    if producer is not None:
        session.forget_producer(producer)
        producer.topic.remove_producer(producer)
        if producer.pending:
            producer.on_drained = lambda: session.answer(encode_success(close.request_id))
            return
    session.answer(encode_success(close.request_id))


def handle_consumer(session: Session, command: BaseCommand) -> None:
    close = command.close_consumer
    _give_up(session, "consumer", close.consumer_id)
    handle = session.consumers.get(close.consumer_id)
    if handle is not None:
        handle.close()
    session.answer(encode_success(close.request_id))


def _give_up(session: Session, kind: str, number: int) -> None:
    creating = session.creating.pop((kind, number), None)
    if creating is not None:
        creating.cancel()
