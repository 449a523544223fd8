"""Summaries for people of what the admin interface answers: statistics, ledgers and cursors, policies, tenants.

Purpose:   The answers are long JSON documents. A summary shows what a person asks first; `--json` prints everything.
Failure:   A broker may leave fields out, as for topics whose messages are not stored: "-" stands for these.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from magnetar.cli.output import print_table, printable
from magnetar.words import at_least, counted

Json: TypeAlias = Mapping[str, Any]

_NO_TYPE = ("", "None", None)


def print_stats(topic: str, stats: Json) -> None:
    subscriptions: Json = stats.get("subscriptions") or {}
    print(printable(topic))
    print_table(["field", "value"], _stats_fields(stats))
    _table(["partition", "messages in", "rate in", "stored bytes", "backlog"], _partition_rows(stats))
    _table(
        ["subscription", "type", "backlog", "unacknowledged", "messages out", "rate out", "consumers"],
        [_subscription_row(name, subscriptions[name]) for name in sorted(subscriptions)],
    )
    _table(
        ["producer", "address", "rate in", "bytes/s"],
        [
            [_shown(each.get("producerName")), _address(each), _rate(each, "msgRateIn"), _rate(each, "msgThroughputIn")]
            for each in stats.get("publishers") or ()
        ],
    )
    _table(
        ["consumer", "subscription", "address", "rate out", "permits", "unacknowledged"],
        [
            _consumer_row(name, consumer)
            for name in sorted(subscriptions)
            for consumer in subscriptions[name].get("consumers") or ()
        ],
    )


def _stats_fields(stats: Json) -> list[tuple[str, object]]:
    age_s = stats.get("oldestBacklogMessageAgeSeconds", -1)
    return [
        ("messages in", _shown(stats.get("msgInCounter"))),
        ("messages in per second", _rate(stats, "msgRateIn")),
        ("messages out", _shown(stats.get("msgOutCounter"))),
        ("messages out per second", _rate(stats, "msgRateOut")),
        ("stored bytes", _shown(stats.get("storageSize"))),
        ("largest backlog in bytes", _shown(stats.get("backlogSize"))),
        ("oldest unacknowledged message", "-" if age_s < 0 else counted(age_s, "second")),
        ("producers", len(stats.get("publishers") or ())),
        ("subscriptions", len(stats.get("subscriptions") or ())),
    ]


def _partition_rows(stats: Json) -> list[Sequence[object]]:
    found: Json = stats.get("partitions") or {}
    return [
        [
            name,
            _shown(each.get("msgInCounter")),
            _rate(each, "msgRateIn"),
            _shown(each.get("storageSize")),
            _backlog((each.get("subscriptions") or {}).values()),
        ]
        for name, each in found.items()
    ]


def _subscription_row(name: str, stats: Json) -> Sequence[object]:
    kind = stats.get("type")
    return [
        name,
        "-" if kind in _NO_TYPE else kind,
        _backlog([stats]),
        _shown(stats.get("unackedMessages")),
        _shown(stats.get("msgOutCounter")),
        _rate(stats, "msgRateOut"),
        len(stats.get("consumers") or ()),
    ]


def backlog_messages(stats: Json) -> tuple[int, bool]:
    """Returns the messages of a subscription's backlog, and whether that is exact: a broker of Apache's counts entries,
    and a batch of messages is one entry."""
    return stats.get("backlogMessages", stats.get("msgBacklog", 0)), stats.get("backlogMessagesExact", False)


def _backlog(subscriptions: Iterable[Json]) -> str:
    """Shows the messages of all these backlogs together."""
    counts = [backlog_messages(each) for each in subscriptions]
    return at_least(str(sum(count for count, _ in counts)), is_exact=all(is_exact for _, is_exact in counts))


def _consumer_row(subscription: str, stats: Json) -> Sequence[object]:
    return [
        _shown(stats.get("consumerName")),
        subscription,
        _address(stats),
        _rate(stats, "msgRateOut"),
        _shown(stats.get("availablePermits")),
        _shown(stats.get("unackedMessages")),
    ]


def print_internal_stats(topic: str, stats: Json) -> None:
    """The ledgers and cursors of a topic, or of each of its partitions."""
    partitions: Json | None = stats.get("partitions")
    parts = {topic: stats} if partitions is None else partitions
    for index, (name, part) in enumerate(parts.items()):
        if index:
            print()
        _print_log(name, part)


def _print_log(name: str, stats: Json) -> None:
    print(printable(name))
    print_table(
        ["field", "value"],
        [
            ("entries", _shown(stats.get("numberOfEntries"))),
            ("bytes", _shown(stats.get("totalSize"))),
            ("last confirmed entry", _shown(stats.get("lastConfirmedEntry"))),
            ("state", _shown(stats.get("state"))),
        ],
    )
    _table(["ledger", "entries", "bytes"], _ledger_rows(stats))
    cursors: Json = stats.get("cursors") or {}
    _table(
        ["subscription", "acknowledged to", "ranges acknowledged after it", "reads from", "state"],
        [
            [
                each,
                _shown(cursors[each].get("markDeletePosition")),
                _shown(cursors[each].get("totalNonContiguousDeletedMessagesRange")),
                _shown(cursors[each].get("readPosition")),
                _shown(cursors[each].get("state")),
            ]
            for each in sorted(cursors)
        ],
    )


def _ledger_rows(stats: Json) -> list[Sequence[object]]:
    """The answer has no counts for the ledger that is being written; the topic has."""
    ledgers = stats.get("ledgers") or []
    rows: list[Sequence[object]] = []
    for index, each in enumerate(ledgers, 1):
        entries, size = each.get("entries"), each.get("size")
        if index == len(ledgers) and not entries:
            entries, size = stats.get("currentLedgerEntries"), stats.get("currentLedgerSize")
        rows.append([_shown(each.get("ledgerId")), _shown(entries), _shown(size)])
    return rows


def print_policies(namespace: str, document: Json) -> None:
    """The policies that the namespace's document has; defaults of the broker apply to the others."""
    from magnetar.broker.policies.registry import EffectivePolicies, NamespacePolicies
    from magnetar.broker.policies.rows import rows_of

    rows = [*rows_of(EffectivePolicies).values(), *rows_of(NamespacePolicies).values()]
    words = {
        name: row.namespace.what or row.what
        for row in rows
        if row.namespace is not None
        for name in row.namespace.fields(row.kind.form)
    }
    found = [name for name in sorted(words) if document.get(name) not in (None, {}, [])]
    print(printable(namespace))
    print_table(["policy", "value", "meaning"], [(name, _compact(document[name]), words[name]) for name in found])


def print_tenant(tenant: str, document: Json) -> None:
    print(printable(tenant))
    names = (("allowed clusters", "allowedClusters"), ("admin roles", "adminRoles"))
    print_table(["field", "value"], [(words, _compact(document.get(field) or [])) for words, field in names])


# --- cells ------------------------------------------------------------------------------------------------------------


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Another table, after an empty line; nothing without rows."""
    if not rows:
        return
    if not sys.stdout.isatty():  # On a terminal, a table has empty lines around it.
        print()
    print_table(columns, rows)


def _shown(value: object) -> object:
    return "-" if value is None or value == "" else value


def _rate(stats: Json, field: str) -> str:
    found = stats.get(field)
    return "-" if found is None else f"{found:.1f}"


def _address(stats: Json) -> object:
    return _shown(str(stats.get("address") or "").removeprefix("/"))  # Java's way to write an address.


def _compact(value: object) -> str:
    """An object as `name=value`, a list as its elements, on one line."""
    if isinstance(value, Mapping):
        return _joined(f"{name}={_inner(each)}" for name, each in value.items() if each is not None)
    if isinstance(value, (list, tuple)):
        return _joined(_inner(each) for each in value) or "-"
    return printable(value)


def _inner(value: object) -> str:
    return json.dumps(value) if isinstance(value, (Mapping, list)) else printable(value)


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts)
