"""Commands of a connection: CONNECT and AUTH_RESPONSE, PING and PONG.

In the handshake the lower of both versions counts. There is no authentication yet: a client that brings credentials is
served like one that does not, as Pulsar does when its authentication is off. PONG needs no answer: it counts as a sign
of life.
"""

from __future__ import annotations

from magnetar.broker.pulsar.session import Session
from magnetar.errors import RemoteProtocolError
from magnetar.wire.pulsar.encode import PONG
from magnetar.wire.pulsar.frames import PROTOCOL_VERSION
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

SERVER_VERSION = "magnetar"


def handle_connect(session: Session, command: BaseCommand) -> None:
    if session.is_connected:
        raise RemoteProtocolError("CONNECT was sent twice on one connection")
    connect = command.connect
    session.is_connected = True
    session.connection.is_established = True
    session.protocol_version = min(PROTOCOL_VERSION, connect.protocol_version)
    session.client_version = connect.client_version
    session.features.CopyFrom(connect.feature_flags)
    answer = BaseCommand(type=BaseCommand.CONNECTED)
    connected = answer.connected
    connected.server_version = SERVER_VERSION
    connected.protocol_version = session.protocol_version
    connected.max_message_size = session.config.message_bytes_max
    connected.feature_flags.supports_topic_watchers = True
    connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    session.answer_command(answer)


def handle_auth_response(session: Session, command: BaseCommand) -> None:
    """Refuses the command, since no client was challenged."""
    del session, command
    raise RemoteProtocolError("AUTH_RESPONSE without a challenge: this broker does not authenticate")


def handle_ping(session: Session, command: BaseCommand) -> None:
    del command
    session.answer(PONG)


def handle_pong(session: Session, command: BaseCommand) -> None:
    del session, command
