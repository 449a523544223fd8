"""Single policies as values, read from Pulsar's JSON and written to it.

Absent:    a policy that is not set is None, in JSON `null` or no field at all.
Disabled:  a rate that limits nothing, a count below zero: as if it were not set, so that the level below counts.
Unknown:   these are views of what a broker acts on; the document they come from keeps every field it has.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Self

from magnetar.broker.policies.fields import Json, choice, flag, number
from magnetar.errors import MalformedMetadataError


class QuotaPolicy(enum.StrEnum):
    """What happens to a topic beyond its backlog quota."""

    HOLD_PRODUCERS = "producer_request_hold"
    REFUSE_PRODUCERS = "producer_exception"
    SKIP_OLDEST = "consumer_backlog_eviction"


class DeleteMode(enum.StrEnum):
    """Which topics that nobody is connected to count as unused."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of messages that all subscriptions have acknowledged; −1 is without limit, 0 is nothing."""

    minutes: int
    megabytes: int

    @classmethod
    def from_json(cls, value: Json) -> Self:
        return cls(number(value, "retentionTimeInMinutes", 0), number(value, "retentionSizeInMB", 0))

    def to_json(self) -> dict[str, Any]:
        return {"retentionTimeInMinutes": self.minutes, "retentionSizeInMB": self.megabytes}


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """Of one kind (size or age); a limit of −1 is none."""

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
class PublishRate:
    """In a second; 0 or less is no limit."""

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
    """In `period_s` seconds; 0 or less is no limit. Relative: added to the rate at which the topic is published to."""

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
    """When a topic that nobody uses is deleted."""

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
