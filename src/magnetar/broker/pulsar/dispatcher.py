"""Which handler a frame goes to. Nothing else is decided here.

Runs:      plain SENDs that stand one behind the other are handled in one loop (send.py); everything else one by one.
Before:    CONNECT comes first; a client that begins with anything else breaks the protocol.
Unknown:   commands that only brokers send, and numbers we do not know, end the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.broker.pulsar import (
    ack,
    close,
    connect,
    consumer_stats,
    flow,
    last_message_id,
    lookup,
    partition_metadata,
    ping,
    producer,
    redeliver,
    schemas,
    seek,
    send,
    subscribe,
    topics_of_namespace,
    transactions,
    unsubscribe,
    watch_topic_list,
)
from magnetar.broker.pulsar.session import Session
from magnetar.errors import RemoteProtocolError
from magnetar.wire.pulsar.frames import Buffer, Frame
from magnetar.wire.pulsar.hot_path import scan_sends
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

Handle = Callable[[Session, BaseCommand], None]

HANDLERS: Final[dict[int, Handle]] = {
    BaseCommand.CONNECT: connect.handle,
    BaseCommand.AUTH_RESPONSE: connect.handle_auth_response,
    BaseCommand.PING: ping.handle_ping,
    BaseCommand.PONG: ping.handle_pong,
    BaseCommand.LOOKUP: lookup.handle,
    BaseCommand.PARTITIONED_METADATA: partition_metadata.handle,
    BaseCommand.PRODUCER: producer.handle,
    BaseCommand.CLOSE_PRODUCER: close.handle_producer,
    BaseCommand.SUBSCRIBE: subscribe.handle,
    BaseCommand.CLOSE_CONSUMER: close.handle_consumer,
    BaseCommand.FLOW: flow.handle,
    BaseCommand.ACK: ack.handle,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: redeliver.handle,
    BaseCommand.UNSUBSCRIBE: unsubscribe.handle,
    BaseCommand.SEEK: seek.handle,
    BaseCommand.GET_LAST_MESSAGE_ID: last_message_id.handle,
    BaseCommand.CONSUMER_STATS: consumer_stats.handle,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: topics_of_namespace.handle,
    BaseCommand.WATCH_TOPIC_LIST: watch_topic_list.handle,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: watch_topic_list.handle_close,
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


def dispatch(session: Session, buffer: Buffer, start: int, end: int) -> int:
    """Returns where it stopped: before an incomplete frame, or because the connection is held."""
    front_end, connection = session.front_end, session.connection
    decoder = front_end.decoder
    while start < end and not connection.is_held and not connection.is_closing:
        if session.producers or session.closed_producers:
            run = scan_sends(buffer, start, end, front_end.frame_bytes_max)
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
