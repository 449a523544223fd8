"""The retention of a topic that a Kafka client makes or changes, which becomes a policy of the topic.

Kafka's consumers have no subscriptions that would keep messages for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.broker.resources.documents import Document
from magnetar.errors import KafkaRefusedError
from magnetar.wire.kafka.error_codes import ErrorCode

_MINUTE_MS: Final = 60_000
_MEGABYTE: Final = 2**20
_FOREVER: Final = -1
_INT32_MAX: Final = 2**31 - 1
DELETE_POLICY: Final = "delete"
CONFIGS: Final = ("retention.ms", "retention.bytes")


def with_retention(minutes: int, megabytes: int, policies: Document) -> Document:
    """Returns a topic's policies with this retention; -1 is forever."""
    return policies | {"retentionPolicies": {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}}


def retention_of(configs: Mapping[str, str | None], minutes: int) -> tuple[int, int]:
    """Returns minutes and megabytes from a topic's configurations; `minutes` without one. KafkaRefusedError for those
    that nothing here would follow."""
    megabytes = _FOREVER
    for name, value in configs.items():
        if name == "retention.ms":
            minutes = _units(name, value, _MINUTE_MS)
        elif name == "retention.bytes":
            megabytes = _units(name, value, _MEGABYTE)
        elif (name, value) != ("cleanup.policy", DELETE_POLICY):
            raise _refused(f"{name}={value} has no effect here: leave it out, and set policies of the topic instead")
    return minutes, megabytes


def milliseconds_of(minutes: int) -> int:
    return minutes if minutes < 0 else minutes * _MINUTE_MS


def bytes_of(megabytes: int) -> int:
    return megabytes if megabytes < 0 else megabytes * _MEGABYTE


def _units(name: str, value: str | None, unit: int) -> int:
    """Returns a number in larger units, at least one of them."""
    try:
        number = int(value or "")
    except ValueError:
        raise _refused(f"{name}={value} is not a number") from None
    return _FOREVER if number < 0 else min(_INT32_MAX, max(1, -(-number // unit)))


def _refused(why: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.INVALID_CONFIG, why)
