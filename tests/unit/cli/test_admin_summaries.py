"""What people see of statistics, ledgers, policies and tenants."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.cli.admin.summaries import print_internal_stats, print_policies, print_stats, print_tenant

TOPIC = "persistent://public/default/t"
CONSUMER = {
    "consumerName": "c",
    "address": "/10.0.0.1:5",
    "msgRateOut": 2.25,
    "availablePermits": 7,
    "unackedMessages": 3,
}
STATS: dict[str, Any] = {
    "msgInCounter": 6,
    "msgRateIn": 1.26,
    "msgOutCounter": 5,
    "msgRateOut": 0.0,
    "storageSize": 164,
    "backlogSize": 82,
    "oldestBacklogMessageAgeSeconds": 1,
    "publishers": [{"producerName": "p", "address": "/10.0.0.2:6", "msgRateIn": 1.0, "msgThroughputIn": 20.0}],
    "subscriptions": {
        "b": {
            "type": "None",
            "msgBacklog": 4,
            "unackedMessages": 0,
            "msgOutCounter": 0,
            "msgRateOut": 0.0,
            "consumers": [],
        },
        "a": {
            "type": "Shared",
            "msgBacklog": 1,
            "backlogMessages": 995,
            "backlogMessagesExact": True,
            "unackedMessages": 3,
            "msgOutCounter": 5,
            "msgRateOut": 2.25,
            "consumers": [CONSUMER],
        },
    },
}


def tables(printed: str) -> list[list[str]]:
    return [[" ".join(line.split()) for line in part.splitlines()] for part in printed.split("\n\n")]


def test_statistics_are_a_summary_and_a_table_for_each_kind_of_client(capsys: pytest.CaptureFixture[str]) -> None:
    print_stats(TOPIC, STATS)
    summary, subscriptions, producers, consumers = tables(capsys.readouterr().out)
    assert summary[0] == TOPIC
    assert {"messages in 6", "messages in per second 1.3", "stored bytes 164", "producers 1"} < set(summary)
    assert "oldest unacknowledged message 1 second" in summary
    assert subscriptions[1:] == ["a Shared 995 3 5 2.2 1", "b - at least 4 0 0 0.0 0"]
    assert producers[1:] == ["p 10.0.0.2:6 1.0 20.0"]
    assert consumers[1:] == ["c a 10.0.0.1:5 2.2 7 3"]


def test_statistics_of_a_partitioned_topic_have_a_line_for_each_partition(capsys: pytest.CaptureFixture[str]) -> None:
    print_stats(TOPIC, {"partitions": {f"{TOPIC}-partition-0": STATS}})
    summary, partitions = tables(capsys.readouterr().out)
    assert "messages in -" in summary
    assert partitions[1:] == [f"{TOPIC}-partition-0 6 1.3 164 at least 999"]


def test_ledgers_and_cursors_are_tables_and_the_open_ledger_has_the_topics_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cursor = {
        "markDeletePosition": "4:1",
        "readPosition": "4:2",
        "totalNonContiguousDeletedMessagesRange": 2,
        "state": "Open",
    }
    part = {
        "numberOfEntries": 12,
        "totalSize": 900,
        "lastConfirmedEntry": "4:1",
        "state": "LedgerOpened",
        "currentLedgerEntries": 2,
        "currentLedgerSize": 100,
        "ledgers": [{"ledgerId": 3, "entries": 10, "size": 800}, {"ledgerId": 4, "entries": 0, "size": 0}],
        "cursors": {"s": cursor},
    }
    print_internal_stats(TOPIC, part)
    summary, ledgers, cursors = tables(capsys.readouterr().out)
    assert summary[0] == TOPIC
    assert "last confirmed entry 4:1" in summary
    assert ledgers[1:] == ["3 10 800", "4 2 100"]
    assert cursors[1:] == ["s 4:1 2 4:2 Open"]
    print_internal_stats(TOPIC, {"partitions": {"p0": part, "p1": part}})
    assert [each[0] for each in tables(capsys.readouterr().out) if each[0].startswith("p")] == ["p0", "p1"]


def test_policies_are_those_that_are_set_with_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "message_ttl_in_seconds": 60,
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1},
        "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": 5}},
        "topicDispatchRate": {},
        "persistence": None,
        "auth_policies": {"namespace_auth": {}},
    }
    print_policies("a/b", document)
    ((name, _, *rows),) = tables(capsys.readouterr().out)
    assert name == "a/b"
    assert rows == [
        "message_ttl_in_seconds 60 the time to live of messages, in seconds",
        'publishMaxMessageRate standalone={"publishThrottlingRateInMsg": 5} the limit on publishing to a topic',
        "retention_policies retentionTimeInMinutes=5, retentionSizeInMB=-1 how long acknowledged messages are kept",
    ]


def test_tenant_is_its_clusters_and_roles(capsys: pytest.CaptureFixture[str]) -> None:
    print_tenant("acme", {"allowedClusters": ["east", "west"], "adminRoles": []})
    ((name, _, *rows),) = tables(capsys.readouterr().out)
    assert (name, rows) == ("acme", ["allowed clusters east, west", "admin roles -"])
