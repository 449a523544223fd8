"""Message ids of the protocol and positions of ours: the wire's numbers have no sign, and ours do."""

from __future__ import annotations

from typing import Final

from magnetar.topic.position import Position
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageIdData

_SIGN: Final = 1 << 63
_ALL: Final = 1 << 64


def signed(value: int) -> int:
    """−1 travels as 2^64 − 1."""
    return value - _ALL if value >= _SIGN else value


def unsigned(value: int) -> int:
    return value % _ALL


def position_of(message_id: MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


NO_REQUEST: Final = _ALL - 1
"""In commands that are no answer to anything."""
