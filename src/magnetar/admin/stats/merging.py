"""Statistics of partitions, added up: counts and rates are summed, times are the latest, names are kept."""

from __future__ import annotations

from typing import Any

_LATEST = ("Timestamp", "TimeStamp")
_AVERAGES = ("averageMsgSize", "avgMessagesPerEntry")
_FIRST_WINS = frozenset({"backlogQuotaLimitSize", "backlogQuotaLimitTime", "oldestBacklogMessageAgeSeconds"})
_EARLIEST = ("earliestMsgPublishTime",)
_ONE_PARTITIONS_OWN = frozenset(
    {"address", "connectedSince", "clientVersion", "metadata", "ownerBroker", "topicEpoch", "keyHashRangeArrays"}
)

Stats = dict[str, Any]


def merge_stats(partitions: list[Stats]) -> Stats:
    """Producers and consumers of the same name are one."""
    merged: Stats = {}
    for stats in partitions:
        merged = _merge(merged, stats)
    for name in ("publishers", "subscriptions", "replication"):
        merged.setdefault(name, [] if name == "publishers" else {})
    return {name: value for name, value in merged.items() if name not in _ONE_PARTITIONS_OWN}


def _merge(left: Stats, right: Stats) -> Stats:
    merged = dict(left)
    for name, value in right.items():
        merged[name] = value if name not in left else _combined(name, left[name], value)
    return merged


def _combined(name: str, left: Any, right: Any) -> Any:
    if name in ("publishers", "consumers"):
        return _by_name(left, right)
    if isinstance(left, dict):
        return _merge(left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left or right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return _number(name, left, right)
    return left


def _number(name: str, left: float, right: float) -> float:
    if name in _FIRST_WINS or name == "producerId":
        return left
    if name in _AVERAGES or name.endswith(_LATEST):
        return max(left, right)
    if name.startswith(_EARLIEST):
        known = [each for each in (left, right) if each > 0]
        return min(known, default=0)
    return left + right


def _by_name(left: list[Stats], right: list[Stats]) -> list[Stats]:
    found: dict[str, Stats] = {}
    for stats in (*left, *right):
        name = str(stats.get("producerName") or stats.get("consumerName"))
        shown = {key: value for key, value in stats.items() if key not in _ONE_PARTITIONS_OWN}
        found[name] = _merge(found[name], shown) if name in found else shown
    return list(found.values())
