from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.policies.values import (
    BacklogQuota,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    QuotaPolicy,
    Retention,
    SubscribeRate,
    check_auto_topic_creation,
    check_persistence,
    check_quota_and_retention,
    check_retention,
)
from magnetar.errors import InvalidPolicyError
from tests.unit.broker import golden

FIELDS: list[tuple[str, Any]] = [
    ("retentionPolicies", Retention),
    ("persistence", Persistence),
    ("inactiveTopicPolicies", InactiveTopics),
    ("dispatchRate", DispatchRate),
    ("publishRate", PublishRate),
    ("subscribeRate", SubscribeRate),
]


@pytest.mark.parametrize(("name", "kind"), FIELDS)
def test_values_are_written_as_apache_writes_them(name: str, kind: Any) -> None:
    written = golden.document("topic policies full")[name]
    assert kind.from_json(written).to_json() == written


def test_quota_is_written_as_apache_writes_it_and_read_in_its_older_form() -> None:
    written = golden.document("policies full")["backlog_quota_map"]["destination_storage"]
    assert BacklogQuota.from_json(written).to_json() == written
    assert BacklogQuota.from_json({"limit": 5, "policy": "producer_exception"}).limit_bytes == 5
    assert BacklogQuota.from_json({"limit": 5, "limitSize": 0}).limit_bytes == 0


@pytest.mark.parametrize("retention", [(0, 0), (-1, -1), (10, 20), (10, -1), (-1, 5)])
def test_sensible_retentions_are_accepted(retention: tuple[int, int]) -> None:
    check_retention(Retention(*retention))


@pytest.mark.parametrize("retention", [(0, 5), (5, 0), (-2, 5), (5, -2), (-1, 0)])
def test_retentions_that_mean_nothing_are_refused(retention: tuple[int, int]) -> None:
    with pytest.raises(InvalidPolicyError, match="retention"):
        check_retention(Retention(*retention))


@pytest.mark.parametrize(
    ("limit_bytes", "limit_s", "retention", "is_right"),
    [
        (10 * 2**20 - 1, -1, (-1, 10), True),
        (10 * 2**20, -1, (-1, 10), False),
        (-1, 599, (10, -1), True),
        (-1, 600, (10, -1), False),
        (10**12, 10**6, (-1, -1), True),
        (10**12, 10**6, (0, 0), True),
    ],
)
def test_backlog_quota_is_below_the_retention(
    limit_bytes: int, limit_s: int, retention: tuple[int, int], is_right: bool
) -> None:
    quota = BacklogQuota(limit_bytes, limit_s, QuotaPolicy.HOLD_PRODUCERS)
    if is_right:
        check_quota_and_retention(quota, Retention(*retention))
    else:
        with pytest.raises(InvalidPolicyError, match="below the retention"):
            check_quota_and_retention(quota, Retention(*retention))


@pytest.mark.parametrize("sizes", [(3, 2, 2), (1, 1, 1), (5, 5, 5)])
def test_quorums_that_fit_are_accepted(sizes: tuple[int, int, int]) -> None:
    check_persistence(Persistence(*sizes, 0.0))


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (0, 0, 0), (6, 2, 2), (3, -1, -1)])
def test_quorums_that_do_not_fit_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidPolicyError):
        check_persistence(Persistence(*sizes, 0.0))


@pytest.mark.parametrize(
    ("override", "is_right"),
    [
        ({"allowAutoTopicCreation": False, "topicType": "nonsense"}, True),
        ({"allowAutoTopicCreation": True, "topicType": "non-partitioned"}, True),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}, True),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned"}, False),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0}, False),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 11}, False),
        ({"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3}, False),
        ({"allowAutoTopicCreation": True, "topicType": "nonsense"}, False),
    ],
)
def test_automatic_topics_are_of_a_kind_that_exists(override: dict[str, Any], is_right: bool) -> None:
    if is_right:
        check_auto_topic_creation(override, partitions_max=10)
    else:
        with pytest.raises(InvalidPolicyError):
            check_auto_topic_creation(override, partitions_max=10)
