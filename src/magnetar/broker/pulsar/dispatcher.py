"""Passes each frame to its handler. Nothing else is decided here.

Order:     Plain SENDs that follow one another are handled in one loop (send.py); everything else one by one.
Failure:   CONNECT comes first; a client that begins with another command breaks the protocol. Commands that only
           brokers send, and unknown numbers, end the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.broker.pulsar import (
    connect,
    deliveries,
    lookup,
    positions,
    producer,
    schemas,
    send,
    subscribe,
    topic_lists,
    transactions,
)
from magnetar.broker.pulsar.session import Session
from magnetar.errors import RemoteProtocolError
from magnetar.wire.pulsar.frames import Buffer, Frame, FrameDecoder
from magnetar.wire.pulsar.hot_path import scan_sends
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

Handle = Callable[[Session, BaseCommand], None]

HANDLERS: Final[dict[int, Handle]] = {
    BaseCommand.CONNECT: connect.handle_connect,
    BaseCommand.AUTH_RESPONSE: connect.handle_auth_response,
    BaseCommand.PING: connect.handle_ping,
    BaseCommand.PONG: connect.handle_pong,
    BaseCommand.LOOKUP: lookup.handle_lookup,
    BaseCommand.PARTITIONED_METADATA: lookup.handle_partition_metadata,
    BaseCommand.PRODUCER: producer.handle,
    BaseCommand.CLOSE_PRODUCER: producer.handle_close,
    BaseCommand.SUBSCRIBE: subscribe.handle_subscribe,
    BaseCommand.CLOSE_CONSUMER: subscribe.handle_close,
    BaseCommand.FLOW: deliveries.handle_flow,
    BaseCommand.ACK: deliveries.handle_ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: deliveries.handle_redeliver,
    BaseCommand.UNSUBSCRIBE: subscribe.handle_unsubscribe,
    BaseCommand.SEEK: positions.handle_seek,
    BaseCommand.GET_LAST_MESSAGE_ID: positions.handle_last_message_id,
    BaseCommand.CONSUMER_STATS: subscribe.handle_consumer_stats,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: topic_lists.handle_get,
    BaseCommand.WATCH_TOPIC_LIST: topic_lists.handle_watch,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: topic_lists.handle_watch_close,
    BaseCommand.GET_SCHEMA: schemas.handle_get,
    BaseCommand.GET_OR_CREATE_SCHEMA: schemas.handle_get_or_create,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: transactions.handle_connect,
    BaseCommand.NEW_TXN: transactions.handle_new,
    BaseCommand.ADD_PARTITION_TO_TXN: transactions.handle_add_partition,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: transactions.handle_add_subscription,
    BaseCommand.END_TXN: transactions.handle_end,
    BaseCommand.END_TXN_ON_PARTITION: transactions.handle_end_on_partition,
    BaseCommand.END_TXN_ON_SUBSCRIPTION: transactions.handle_end_on_subscription,
}

_BEFORE_CONNECT: Final = frozenset({BaseCommand.CONNECT, BaseCommand.PING, BaseCommand.PONG})


def dispatch(decoder: FrameDecoder, session: Session, buffer: Buffer, start: int, end: int) -> int:
    """Returns where it stopped: before an incomplete frame, or because the connection is held."""
    connection = session.connection
    while start < end and not connection.is_held and not connection.is_closing:
        if session.producers or session.closed_producers:
            run = scan_sends(buffer, start, end, decoder.frame_bytes_max)
            if run.sends:
                start = send.handle_run(session, buffer, start, run)
                continue
        following = decoder.frame_end(buffer, start, end)
        if following is None or following > end:
            break
        if not _handle(session, decoder.decode(buffer, start, following)):
            break
        start = following
    return end if connection.is_closing else start


def _handle(session: Session, frame: Frame) -> bool:
    command, body = frame
    kind = command.type
    if kind == BaseCommand.SEND:
        if not session.is_connected or body is None:
            raise RemoteProtocolError("SEND before CONNECT, or without a message")
        return send.handle_one(session, command.send, body)
    if not session.is_connected and kind not in _BEFORE_CONNECT:
        raise RemoteProtocolError(f"{BaseCommand.Type.Name(kind)} before CONNECT")
    handle = HANDLERS.get(kind)
    if handle is None:
        raise RemoteProtocolError(f"{BaseCommand.Type.Name(kind)} is not for brokers")
    handle(session, command)
    return True
