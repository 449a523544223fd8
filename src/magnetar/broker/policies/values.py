"""The values of policies, read from Pulsar's JSON and written to it, and checks of what may be written.

Format:    A policy that is not set is None, in JSON `null` or no field at all. A rate that limits nothing counts as not
           set, so that the next level is asked. The values have what a broker acts on; the document they come from
           keeps every field it has.
Failure:   A field of a wrong type is an error that names it. Checks are for changes: a broker reads what is stored
           without them, as another broker may have written it.
Read next: kinds.py
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar, cast

from magnetar.errors import InvalidPolicyError, MalformedMetadataError

Json: TypeAlias = Mapping[str, Any]
"""A JSON object as it was read."""

Choice = TypeVar("Choice", bound=enum.StrEnum)


def number(value: Json, name: str, default: int) -> int:
    found = optional_number(value, name)
    return default if found is None else found


def optional_number(value: Json, name: str) -> int | None:
    return cast("int | None", _typed(value, name, int, "not an integer"))


def flag(value: Json, name: str) -> bool | None:
    return cast("bool | None", _typed(value, name, bool, "neither true nor false"))


def nested(value: Json, name: str) -> Json | None:
    return cast("Json | None", _typed(value, name, Mapping, "not an object"))


def text(value: Json, name: str) -> str | None:
    return cast("str | None", _typed(value, name, str, "not a string"))


def _typed(value: Json, name: str, kind: type, what: str) -> object:
    found = value.get(name)
    if found is not None and (not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool)):
        raise MalformedMetadataError(f"{name} is {found!r}, which is {what}")
    return found


def names(value: Json, name: str) -> tuple[str, ...]:
    found = value.get(name)
    if found is None:
        return ()
    if not isinstance(found, (list, tuple)) or not all(isinstance(each, str) for each in found):
        raise MalformedMetadataError(f"{name} is {found!r}, which is not a list of names")
    return tuple(found)


def choice(value: Json, name: str, kind: type[Choice]) -> Choice | None:
    found = value.get(name)
    if found is None:
        return None
    try:
        return kind(found)
    except ValueError:
        raise MalformedMetadataError(f"{name} is {found!r}: known are {', '.join(kind)}") from None


QUORUM_MAX: Final = 5  # Pulsar's limit on each of the three; more copies make nothing safer.
_TOPIC_TYPES: Final = ("partitioned", "non-partitioned")


class QuotaPolicy(enum.StrEnum):
    """What happens to a topic that exceeds its backlog quota."""

    HOLD_PRODUCERS = "producer_request_hold"
    REFUSE_PRODUCERS = "producer_exception"
    SKIP_OLDEST = "consumer_backlog_eviction"


class DeleteMode(enum.StrEnum):
    """The topics without clients that count as unused."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the messages is kept that all subscriptions have acknowledged; −1 means all of it, 0 nothing."""

    minutes: int
    megabytes: int

    @classmethod
    def from_json(cls, value: Json) -> Self:
        return cls(number(value, "retentionTimeInMinutes", 0), number(value, "retentionSizeInMB", 0))

    def to_json(self) -> dict[str, Any]:
        return {"retentionTimeInMinutes": self.minutes, "retentionSizeInMB": self.megabytes}


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """A limit on a backlog's size or age; −1 means that there is no limit."""

    limit_bytes: int
    limit_s: int
    policy: QuotaPolicy

    @classmethod
    def from_json(cls, value: Json) -> Self:
        policy = choice(value, "policy", QuotaPolicy) or QuotaPolicy.HOLD_PRODUCERS
        size = "limitSize" if value.get("limitSize") is not None else "limit"  # The older name.
        return cls(number(value, size, -1), number(value, "limitTime", -1), policy)

    def to_json(self) -> dict[str, Any]:
        size = self.limit_bytes
        return {"limit": size, "limitSize": size, "limitTime": self.limit_s, "policy": str(self.policy)}


@dataclass(frozen=True, slots=True)
class BacklogQuotas:
    """The two quotas of a topic. Pulsar keeps them in one map."""

    NAMES: ClassVar = ("destination_storage", "message_age")

    storage: BacklogQuota
    """By size; a `limit_bytes` of 0 or less means that there is no limit."""
    age: BacklogQuota
    """By age of the oldest message; a `limit_s` of 0 or less means that there is no limit."""

    def to_json(self) -> dict[str, Any]:
        return {name: quota.to_json() for name, quota in zip(self.NAMES, (self.storage, self.age), strict=True)}


@dataclass(frozen=True, slots=True)
class DelayedDelivery:
    """Whether messages are delivered later if their producer asks for it, and how."""

    NAMES: ClassVar = ("active", "tickTime", "maxDeliveryDelayInMillis")

    is_enabled: bool
    tick_ms: int
    max_ms: int
    """The longest delay; 0 means that there is no limit."""

    def to_json(self) -> dict[str, Any]:
        return dict(zip(self.NAMES, (self.is_enabled, self.tick_ms, self.max_ms), strict=True))


@dataclass(frozen=True, slots=True)
class PublishRate:
    """A rate in a second; 0 or less means that there is no limit."""

    messages: int
    bytes: int

    @classmethod
    def from_json(cls, value: Json) -> Self | None:
        rate = cls(number(value, "publishThrottlingRateInMsg", -1), number(value, "publishThrottlingRateInByte", -1))
        return rate if rate.is_limiting else None

    def to_json(self) -> dict[str, Any]:
        return {"publishThrottlingRateInMsg": self.messages, "publishThrottlingRateInByte": self.bytes}

    @property
    def is_limiting(self) -> bool:
        return self.messages > 0 or self.bytes > 0


@dataclass(frozen=True, slots=True)
class DispatchRate:
    """A rate in `period_s` seconds; 0 or less means that there is no limit.

    A relative rate is added to the rate at which the topic is published to.
    """

    messages: int
    bytes: int
    period_s: int = 1
    is_relative: bool = False

    @classmethod
    def from_json(cls, value: Json) -> Self | None:
        rate = cls(
            number(value, "dispatchThrottlingRateInMsg", -1),
            number(value, "dispatchThrottlingRateInByte", -1),
            max(1, number(value, "ratePeriodInSecond", 1)),
            flag(value, "relativeToPublishRate") or False,
        )
        return rate if rate.is_limiting else None

    def to_json(self) -> dict[str, Any]:
        return {
            "dispatchThrottlingRateInMsg": self.messages,
            "dispatchThrottlingRateInByte": self.bytes,
            "relativeToPublishRate": self.is_relative,
            "ratePeriodInSecond": self.period_s,
        }

    @property
    def is_limiting(self) -> bool:
        return self.messages > 0 or self.bytes > 0


@dataclass(frozen=True, slots=True)
class SubscribeRate:
    """How often one consumer may subscribe in `period_s` seconds."""

    per_consumer: int
    period_s: int

    @classmethod
    def from_json(cls, value: Json) -> Self | None:
        rate = cls(number(value, "subscribeThrottlingRatePerConsumer", -1), number(value, "ratePeriodInSecond", 30))
        return rate if rate.is_limiting else None

    def to_json(self) -> dict[str, Any]:
        return {"subscribeThrottlingRatePerConsumer": self.per_consumer, "ratePeriodInSecond": self.period_s}

    @property
    def is_limiting(self) -> bool:
        return self.per_consumer > 0 and self.period_s > 0


@dataclass(frozen=True, slots=True)
class Persistence:
    """How a topic's ledgers are replicated, and how often a second a cursor's position is written."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    mark_delete_rate: float

    @classmethod
    def from_json(cls, value: Json) -> Self:
        rate = value.get("managedLedgerMaxMarkDeleteRate", -1.0)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            raise MalformedMetadataError(f"managedLedgerMaxMarkDeleteRate is {rate!r}, which is not a number")
        return cls(
            number(value, "bookkeeperEnsemble", 2),
            number(value, "bookkeeperWriteQuorum", 2),
            number(value, "bookkeeperAckQuorum", 2),
            float(rate),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "bookkeeperEnsemble": self.ensemble_size,
            "bookkeeperWriteQuorum": self.write_quorum,
            "bookkeeperAckQuorum": self.ack_quorum,
            "managedLedgerMaxMarkDeleteRate": self.mark_delete_rate,
        }


@dataclass(frozen=True, slots=True)
class InactiveTopics:
    """When a topic that is not used is deleted."""

    is_deleted: bool
    mode: DeleteMode
    after_s: int

    @classmethod
    def from_json(cls, value: Json) -> Self:
        mode = choice(value, "inactiveTopicDeleteMode", DeleteMode) or DeleteMode.NO_SUBSCRIPTIONS
        return cls(flag(value, "deleteWhileInactive") or False, mode, number(value, "maxInactiveDurationSeconds", 0))

    def to_json(self) -> dict[str, Any]:
        return {
            "inactiveTopicDeleteMode": str(self.mode),
            "maxInactiveDurationSeconds": self.after_s,
            "deleteWhileInactive": self.is_deleted,
        }


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """What happens when a client asks for a topic that does not exist."""

    PARTITIONED: ClassVar = "partitioned"

    is_allowed: bool
    is_partitioned: bool
    partitions_if_partitioned: int

    @property
    def partitions(self) -> int:
        """0: the topic is made without partitions."""
        return self.partitions_if_partitioned if self.is_partitioned else 0


# --- what may be written ----------------------------------------------------------------------------------------------


def check_retention(retention: Retention) -> None:
    if retention.minutes < -1 or retention.megabytes < -1:
        raise InvalidPolicyError("the limits of a retention policy must be -1 (no limit) or more")
    if (retention.minutes == 0) != (retention.megabytes == 0):
        raise InvalidPolicyError(
            "only one limit of the retention policy is 0: use -1 for no limit, or 0 for both to keep nothing"
        )


def check_quota_and_retention(quota: BacklogQuota, retention: Retention) -> None:
    """Otherwise messages would be kept longer before their acknowledgement than after it."""
    if retention.megabytes > 0 and quota.limit_bytes >= retention.megabytes * 2**20:
        raise InvalidPolicyError(
            f"a backlog quota of {quota.limit_bytes} bytes must be below the retention of {retention.megabytes} MB"
        )
    if retention.minutes > 0 and quota.limit_s >= retention.minutes * 60:
        raise InvalidPolicyError(
            f"a backlog quota of {quota.limit_s} s must be below the retention of {retention.minutes} minutes"
        )


def check_persistence(persistence: Persistence) -> None:
    sizes = (persistence.ensemble_size, persistence.write_quorum, persistence.ack_quorum)
    if not all(0 < size <= QUORUM_MAX for size in sizes):
        raise InvalidPolicyError(f"ensemble, write quorum and ack quorum are between 1 and {QUORUM_MAX}, not {sizes}")
    if not sizes[0] >= sizes[1] >= sizes[2]:
        raise InvalidPolicyError(f"ensemble, write quorum and ack quorum must not increase in this order: {sizes}")


def check_auto_topic_creation(override: Json, *, partitions_max: int) -> None:
    if not flag(override, "allowAutoTopicCreation"):
        return
    kind, partitions = text(override, "topicType"), optional_number(override, "defaultNumPartitions")
    if kind not in _TOPIC_TYPES:
        raise InvalidPolicyError(f"topicType is {kind!r}: one of {', '.join(_TOPIC_TYPES)}")
    if kind == "non-partitioned" and partitions is not None:
        raise InvalidPolicyError("defaultNumPartitions is for partitioned topics only")
    if kind == "partitioned" and (partitions is None or partitions < 1):
        raise InvalidPolicyError(f"defaultNumPartitions is {partitions}: a partitioned topic has at least one")
    if kind == "partitioned" and partitions_max and (partitions or 0) > partitions_max:
        raise InvalidPolicyError(f"defaultNumPartitions is {partitions}, and broker.partitions_max {partitions_max}")
