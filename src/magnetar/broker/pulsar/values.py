"""Conversions between the protocol's values and ours.

Format:    Positions on the wire have no sign: −1 travels as 2^64 − 1. Metadata of producers and consumers is keys and
           values, up to a size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnetar.errors import MetadataError
from magnetar.topic.position import Position
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import KeyValue, MessageIdData

_SIGN: Final = 1 << 63
_ALL: Final = 1 << 64


def signed(value: int) -> int:
    """Restores the sign: −1 travels as 2^64 − 1."""
    return value - _ALL if value >= _SIGN else value


def unsigned(value: int) -> int:
    return value % _ALL


def position_of(message_id: MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


NO_REQUEST: Final = _ALL - 1
"""The request id in commands that answer no request."""


def metadata_map(pairs: Iterable[KeyValue], bytes_max: int) -> dict[str, str]:
    found = {pair.key: pair.value for pair in pairs}
    size = sum(len(key) + len(value) for key, value in found.items())
    if size > bytes_max:
        raise MetadataError(f"the metadata has {size} characters: at most {bytes_max} are allowed")
    return found
