"""Commands about subscriptions and their consumers: SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE, CONSUMER_STATS.

With SUBSCRIBE a client asks to consume from a subscription, which is made if necessary and allowed. A reader has a
subscription that is not durable, with a message to start at. The same id again is refused while the consumer is being
made, to be tried again; if it exists, it is answered again. A consumer to be closed that does not exist is closed
already; one that is being made is given up. UNSUBSCRIBE deletes the subscription, unless other clients are connected to
it. CONSUMER_STATS returns the statistics of one consumer, with rates since it came.

Order:     Topic (made only if the client and the policies want that) → room for one more → schema → subscription.
Failure:   If an UNSUBSCRIBE fails, the consumer that was released for it is closed, after the answer: its client comes
           back. If a SUBSCRIBE of the C++ client fails, the consumer is closed after the refusal: this client counts a
           consumer as connected from its first SUBSCRIBE on, so without that it would not try again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.schemas import schema_of
from magnetar.broker.pulsar.session import Session
from magnetar.broker.pulsar.values import NO_REQUEST, metadata_map, position_of
from magnetar.broker.subscriptions.consumer import (
    Consumer,
    ConsumerAbout,
    KeySharedMode,
    KeySharedSettings,
    SubscriptionType,
)
from magnetar.broker.topics.topic import SubscribeOptions, Topic
from magnetar.errors import MagnetarError, MetadataError, NotAllowedError, ServiceNotReadyError
from magnetar.names import TopicName
from magnetar.wire.pulsar.encode import encode_success
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, KeySharedMeta, Schema, ServerError
from magnetar.words import counted

_CPP: Final = "Pulsar-CPP-"
"""What the version of the C++ client, and of those based on it, begins with."""


def handle_subscribe(session: Session, command: BaseCommand) -> None:
    request = command.subscribe
    if request.consumer_id in session.creating_consumers:
        session.refuse(request.request_id, ServiceNotReadyError("this consumer is being made already: try again"))
    elif request.consumer_id in session.consumers:
        session.answer(encode_success(request.request_id))
    elif len(session.consumers) + len(session.creating_consumers) >= session.config.consumers_per_connection_max:
        limit = session.config.consumers_per_connection_max
        session.refuse(request.request_id, NotAllowedError(f"a connection has at most {counted(limit, 'consumer')}"))
    else:
        session.create(
            session.creating_consumers, request.consumer_id, _subscribe_or_close(session, request), request.request_id
        )


async def _subscribe_or_close(session: Session, request: CommandSubscribe) -> None:
    try:
        await _subscribe(session, request)
    except (MagnetarError, TimeoutError) as error:
        session.refuse(request.request_id, error)
        if session.client_version.startswith(_CPP):
            command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            command.close_consumer.consumer_id = request.consumer_id
            command.close_consumer.request_id = NO_REQUEST
            session.answer_command(command)


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


def handle_close(session: Session, command: BaseCommand) -> None:
    close = command.close_consumer
    creating = session.creating_consumers.pop(close.consumer_id, None)
    if creating is not None:
        creating.cancel()
    handle = session.consumers.get(close.consumer_id)
    if handle is not None:
        handle.close()
    session.answer(encode_success(close.request_id))


def handle_unsubscribe(session: Session, command: BaseCommand) -> None:
    unsubscribe = command.unsubscribe
    handle = session.consumers.get(unsubscribe.consumer_id)
    if handle is None:
        session.refuse(unsubscribe.request_id, MetadataError("this connection has no such consumer"))
        return
    session.serve(_unsubscribe(session, handle, unsubscribe.request_id, unsubscribe.force), unsubscribe.request_id)


async def _unsubscribe(session: Session, handle: ConsumerHandle, request_id: int, force: bool) -> None:
    try:
        await handle.topic.unsubscribe(handle.subscription, handle.consumer, force=force)
    except (MagnetarError, TimeoutError) as error:
        session.refuse(request_id, error)
        if not handle.consumer.is_connected:
            handle.disconnect("the subscription could not be deleted")
        return
    handle.close()
    session.answer(encode_success(request_id))


def handle_consumer_stats(session: Session, command: BaseCommand) -> None:
    request = command.consumerStats
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    response = answer.consumerStatsResponse
    response.request_id = request.request_id
    handle = session.consumers.get(request.consumer_id)
    if handle is None:
        response.error_code = ServerError.ConsumerNotFound
        response.error_message = f"there is no consumer {request.consumer_id} on this connection"
    else:
        _fill_stats(session, handle, answer)
    session.answer_command(answer)


def _fill_stats(session: Session, handle: ConsumerHandle, answer: BaseCommand) -> None:
    response, consumer = answer.consumerStatsResponse, handle.consumer
    connected_ms = consumer.about.connected_ms
    seconds = max(0.001, (session.service.entropy.wall_ms() - connected_ms) / 1000)
    response.msgRateOut = consumer.delivered_messages / seconds
    response.msgThroughputOut = consumer.delivered_bytes / seconds
    response.msgRateRedeliver = consumer.redelivered_messages / seconds
    response.messageAckRate = consumer.acked_messages / seconds
    response.consumerName = consumer.name
    response.availablePermits = max(0, consumer.permits)
    response.unackedMessages = consumer.unacked_messages
    response.blockedConsumerOnUnackedMsgs = consumer.is_blocked
    response.address = consumer.about.address
    response.connectedSince = datetime.fromtimestamp(connected_ms / 1000, UTC).isoformat(timespec="milliseconds")
    response.type = consumer.type.shown
    response.msgBacklog = handle.subscription.backlog_entries
