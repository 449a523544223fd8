"""CONSUMER_STATS: what the broker knows of one consumer. Rates are those since the consumer came."""

from __future__ import annotations

from datetime import UTC, datetime

from magnetar.broker.pulsar.consumer import ConsumerHandle
from magnetar.broker.pulsar.session import Session
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, ServerError


def handle(session: Session, command: BaseCommand) -> None:
    request = command.consumerStats
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    response = answer.consumerStatsResponse
    response.request_id = request.request_id
    handle = session.consumers.get(request.consumer_id)
    if handle is None:
        response.error_code = ServerError.ConsumerNotFound
        response.error_message = f"there is no consumer {request.consumer_id} on this connection"
    else:
        _fill(session, handle, answer)
    session.answer_command(answer)


def _fill(session: Session, handle: ConsumerHandle, answer: BaseCommand) -> None:
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
    response.msgBacklog = handle.topic.backlog_of(handle.subscription)
