"""PING and PONG: a sign of life. A pong needs no answer: that something came is all that counts."""

from __future__ import annotations

from magnetar.broker.pulsar.session import Session
from magnetar.wire.pulsar.encode import PONG
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand


def handle_ping(session: Session, command: BaseCommand) -> None:
    del command
    session.answer(PONG)


def handle_pong(session: Session, command: BaseCommand) -> None:
    del session, command
