"""What may be written as a policy: each by itself, and those that must fit each other. For whoever changes policies.

A broker reads what is stored without these checks: another one may have written it.
"""

from __future__ import annotations

from magnetar.broker.policies.fields import Json, flag, optional_number, text
from magnetar.broker.policies.values import BacklogQuota, Persistence, Retention
from magnetar.errors import InvalidPolicyError

QUORUM_MAX = 5  # Pulsar's limit on each of the three; more copies make nothing safer.
_TOPIC_TYPES = ("partitioned", "non-partitioned")


def check_retention(retention: Retention) -> None:
    if retention.minutes < -1 or retention.megabytes < -1:
        raise InvalidPolicyError("a retention's limits are -1, which is none, or more")
    if (retention.minutes == 0) != (retention.megabytes == 0):
        raise InvalidPolicyError(
            "only one of a retention's limits is 0: use -1 for a limit that shall not count, and 0 for both to keep "
            "nothing"
        )


def check_quota_and_retention(quota: BacklogQuota, retention: Retention) -> None:
    """What is not acknowledged yet would otherwise be kept for longer than what is."""
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
