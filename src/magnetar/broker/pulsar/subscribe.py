"""SUBSCRIBE: a client wants to consume from a subscription, which is made if it must be and may be.

Order:     topic (made only if the client and the policies want that) → room for one more → schema → subscription.
Reader:    a subscription that is not durable, with a message to start at.
Repeated:  as with producers: while it is being made refused, to be tried again; when it is there, answered again.
"""

from __future__ import annotations

from magnetar.broker.consumer import Consumer, ConsumerAbout, KeySharedMode, KeySharedSettings, SubscriptionType
from magnetar.broker.names import TopicName
from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.ids import position_of
from magnetar.broker.pulsar.metadata import metadata_map
from magnetar.broker.pulsar.schemas import schema_of
from magnetar.broker.pulsar.session import Session
from magnetar.broker.topic import SubscribeOptions, Topic
from magnetar.errors import NotAllowedError, ServiceNotReadyError
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, KeySharedMeta, Schema


def handle(session: Session, command: BaseCommand) -> None:
    request = command.subscribe
    key = ("consumer", request.consumer_id)
    if key in session.creating:
        session.refuse(request.request_id, ServiceNotReadyError("this consumer is being made already: try again"))
    elif request.consumer_id in session.consumers:
        session.answer(encode_success(request.request_id))
    elif len(session.consumers) + len(session.creating) >= session.config.consumers_per_connection_max:
        limit = session.config.consumers_per_connection_max
        session.refuse(request.request_id, NotAllowedError(f"a connection has at most {limit} consumers"))
    else:
        task = session.serve(_subscribe(session, request), request.request_id)
        session.creating[key] = task
        task.add_done_callback(lambda done: session.created(key, done))


async def _subscribe(session: Session, request: CommandSubscribe) -> None:
    name = TopicName.parse(request.topic)
    metadata = metadata_map(request.metadata, session.config.metadata_bytes_max)
    topic = await session.service.topic(name, create=request.force_topic_creation)
    topic.require_consumer_room()
    takes_any_schema = request.HasField("schema") and request.schema.type == Schema.AutoConsume
    if request.HasField("schema") and not takes_any_schema:
        await session.service.check_consumer_schema(topic, schema_of(request.schema))
    handle = _make_handle(session, topic, request, metadata)
    subscription = await topic.subscribe(_options_of(request), handle.consumer)
    handle.begin(subscription, takes_any_schema=takes_any_schema)
    session.answer(encode_success(request.request_id))


def _make_handle(session: Session, topic: Topic, request: CommandSubscribe, metadata: dict[str, str]) -> ConsumerHandle:
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
    handle = ConsumerHandle(session, topic, request.consumer_id, epoch)
    handle.consumer = Consumer(
        request.consumer_id,
        request.consumer_name,
        handle,
        SubscriptionType(request.subType),
        priority=request.priority_level,
        key_shared=_key_shared_of(request.keySharedMeta) if request.HasField("keySharedMeta") else None,
        epoch=epoch or 0,
        read_compacted=request.read_compacted,
        start=position_of(request.start_message_id) if request.HasField("start_message_id") else None,
        about=ConsumerAbout(
            address=session.peer,
            client_version=session.client_version,
            connected_ms=session.service.entropy.wall_ms(),
            properties=metadata,
        ),
    )
    return handle


def _options_of(request: CommandSubscribe) -> SubscribeOptions:
    return SubscribeOptions(
        subscription=request.subscription,
        type=SubscriptionType(request.subType),
        is_durable=request.durable,
        start=position_of(request.start_message_id) if request.HasField("start_message_id") else None,
        from_earliest=request.initialPosition == CommandSubscribe.Earliest,
        rollback_s=request.start_message_rollback_duration_sec,
        read_compacted=request.read_compacted,
        is_replicated=request.replicate_subscription_state,
        properties={pair.key: pair.value for pair in request.subscription_properties},
    )


def _key_shared_of(meta: KeySharedMeta) -> KeySharedSettings:
    return KeySharedSettings(
        KeySharedMode(meta.keySharedMode),
        tuple((each.start, each.end) for each in meta.hashRanges),
        meta.allowOutOfOrderDelivery,
    )
