"""PRODUCER and CLOSE_PRODUCER: a client wants to publish to a topic, which is loaded or made for it.

The same id again is refused while the producer is being made, to be tried again; if it exists, it is answered again. A
producer that must wait for exclusive access gets an answer at once, and another when it may publish.

Order:     Topic → room for one more → backlog quota → encryption → schema → initial subscription → admitted. A producer
           is closed when all it published is answered: its client waits for the receipts. One that does not exist is
           closed already; one that is being made is given up.
"""

from __future__ import annotations

from magnetar.broker.publishing.producers import AccessMode, Producer, ProducerOptions
from magnetar.broker.pulsar.schemas import schema_of
from magnetar.broker.pulsar.session import Session
from magnetar.broker.pulsar.values import metadata_map
from magnetar.broker.topics.topic import Topic
from magnetar.errors import MetadataError, NotAllowedError, ServiceNotReadyError
from magnetar.names import TopicName
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandProducer
from magnetar.words import counted


def handle(session: Session, command: BaseCommand) -> None:
    request = command.producer
    if request.producer_id in session.creating_producers:
        session.refuse(request.request_id, ServiceNotReadyError("this producer is being made already: try again"))
        return
    known = session.producers.get(request.producer_id)
    if known is not None:
        _answer(session, request.request_id, known)
        return
    limit = session.config.producers_per_connection_max
    if len(session.producers) + len(session.creating_producers) >= limit:
        session.refuse(request.request_id, NotAllowedError(f"a connection has at most {counted(limit, 'producer')}"))
        return
    session.create(session.creating_producers, request.producer_id, _create(session, request), request.request_id)


async def _create(session: Session, request: CommandProducer) -> None:
    name = TopicName.parse(request.topic)
    metadata = metadata_map(request.metadata, session.config.metadata_bytes_max)
    topic = await session.service.topic(name, create=True)
    producer_name = request.producer_name or session.service.new_producer_name()
    _require_encrypted(topic, request)
    schema = schema_of(request.schema) if request.HasField("schema") else None
    await topic.require_producer_room()
    version = await session.service.add_schema(topic, schema)
    if request.initial_subscription_name:
        await topic.ensure_subscription(request.initial_subscription_name)
    options = ProducerOptions(
        producer_id=request.producer_id,
        name=producer_name,
        epoch=request.epoch,
        access_mode=AccessMode(request.producer_access_mode),
        topic_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
        is_encrypted=request.encrypted,
        metadata=metadata,
        schema_version=version,
        supports_partial=session.features.supports_partial_producer,
    )
    producer = Producer(
        options,
        session,
        address=session.peer,
        client_version=session.client_version,
        now_ms=session.service.entropy.wall_ms(),
    )
    producer.topic = topic
    await topic.add_producer(producer, lambda: _tell_queued(session, request.request_id, producer))
    session.creating_producers.pop(request.producer_id, None)
    session.producers[request.producer_id] = producer
    session.closed_producers.pop(request.producer_id, None)
    _answer(session, request.request_id, producer)


def _tell_queued(session: Session, request_id: int, producer: Producer) -> None:
    session.takes_long()
    _answer(session, request_id, producer, is_ready=False)


def _require_encrypted(topic: Topic, request: CommandProducer) -> None:
    if topic.policies.encryption_required and not request.encrypted and not topic.name.is_system:
        raise MetadataError(f"topic {topic.name} takes encrypted messages only")


def _answer(session: Session, request_id: int, producer: Producer, *, is_ready: bool = True) -> None:
    command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    success = command.producer_success
    success.request_id = request_id
    success.producer_name = producer.name
    success.last_sequence_id = producer.topic.publisher.last_sequence_id(producer.name)
    success.schema_version = producer.options.schema_version
    success.producer_ready = is_ready
    if is_ready and producer.topic_epoch is not None:
        success.topic_epoch = producer.topic_epoch
    session.answer_command(command)


def handle_close(session: Session, command: BaseCommand) -> None:
    close = command.close_producer
    creating = session.creating_producers.pop(close.producer_id, None)
    if creating is not None:
        creating.cancel()
    producer = session.producers.get(close.producer_id)
    if producer is not None:
        session.forget_producer(producer)
        producer.topic.remove_producer(producer)
        if producer.pending:
            producer.on_drained = lambda: session.answer(encode_success(close.request_id))
            return
    session.answer(encode_success(close.request_id))
