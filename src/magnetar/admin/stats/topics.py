"""TopicStats, as Pulsar has it: of a topic, of a non-persistent one, and of all partitions together.

For partitions, counts and rates are summed, times are the latest, names are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from magnetar.admin.stats.consumers import average, publisher_stats
from magnetar.admin.stats.rates import RateBook, wall_ms_of
from magnetar.admin.stats.subscriptions import StatsOptions, fleeting_stats, subscription_stats
from magnetar.broker.dispatch.backlog import Backlog
from magnetar.broker.service import BrokerService
from magnetar.broker.topics.non_persistent import NonPersistentTopic
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import require_persistent
from magnetar.broker.topics.topic import Topic
from magnetar.runtime.slices import Slices

_LATEST = ("Timestamp", "TimeStamp")
_AVERAGES = ("averageMsgSize", "avgMessagesPerEntry")
_FIRST_WINS = frozenset({"backlogQuotaLimitSize", "backlogQuotaLimitTime", "oldestBacklogMessageAgeSeconds"})
_ALL = frozenset({"backlogMessagesExact"})
_EARLIEST = ("earliestMsgPublishTime",)
_ONE_PARTITIONS_OWN = frozenset(
    {"address", "connectedSince", "clientVersion", "metadata", "ownerBroker", "topicEpoch", "keyHashRangeArrays"}
)

_COUNT_S_MAX = 2.0
"""Seconds that counting the backlogs of all subscriptions of a topic may take."""

Stats = dict[str, Any]


class MergedStats:
    """Adds up partitions one by one. Producers and consumers of the same name are one."""

    def __init__(self) -> None:
        self._stats: Stats = {}

    def add(self, partition: Stats) -> None:
        """Adds a partition without changing its statistics."""
        _merge_into(self._stats, partition)

    def stats(self) -> Stats:
        merged = _shown(self._stats)
        for name in ("publishers", "subscriptions", "replication"):
            merged.setdefault(name, [] if name == "publishers" else {})
        return {name: value for name, value in merged.items() if name not in _ONE_PARTITIONS_OWN}


class _Clients(dict[str, Stats]):
    def add_all(self, clients: list[Stats]) -> None:
        for stats in clients:
            name = str(stats.get("producerName") or stats.get("consumerName"))
            own = {key: value for key, value in stats.items() if key not in _ONE_PARTITIONS_OWN}
            _merge_into(self.setdefault(name, {}), own)


def _merge_into(merged: Stats, more: Stats) -> None:
    for name, value in more.items():
        if name in ("publishers", "consumers"):
            merged.setdefault(name, _Clients()).add_all(value)
        elif isinstance(value, dict):
            _merge_into(merged.setdefault(name, {}), value)
        elif name not in merged:
            merged[name] = value
        else:
            merged[name] = _combined(name, merged[name], value)


def _shown(merged: Stats) -> Stats:
    shown: Stats = {}
    for name, value in merged.items():
        if isinstance(value, _Clients):
            shown[name] = list(value.values())
        else:
            shown[name] = _shown(value) if isinstance(value, dict) else value
    return shown


def _combined(name: str, left: Any, right: Any) -> Any:
    if isinstance(left, bool) or isinstance(right, bool):
        return left and right if name in _ALL else left or right
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


_NO_OFFLOAD: dict[str, Any] = {
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
}
_NO_TRANSACTIONS: dict[str, Any] = {"ongoingTxnCount": 0, "abortedTxnCount": 0, "committedTxnCount": 0}
_NO_COMPACTION: dict[str, int] = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}
_NOTHING_STORED: dict[str, Any] = {
    **dict.fromkeys(
        (
            "storageSize",
            "backlogSize",
            "backlogQuotaLimitSize",
            "backlogQuotaLimitTime",
            "oldestBacklogMessageAgeSeconds",
            "publishRateLimitedTimes",
            "earliestMsgPublishTimeInBacklogs",
            "nonContiguousDeletedMessagesRanges",
            "nonContiguousDeletedMessagesRangesSerializedSize",
            "delayedMessageIndexSizeInBytes",
        ),
        0,
    ),
    "compaction": _NO_COMPACTION,
}


async def topic_stats(service: BrokerService, topic: Topic, rates: RateBook, options: StatsOptions) -> dict[str, Any]:
    if isinstance(topic, NonPersistentTopic):
        return await _fleeting(service, topic, rates, options)
    topic = require_persistent(topic)
    publishers = await service.slices.map(partial(publisher_stats, rates=rates), topic.producers)
    counted = await _backlogs(topic, service.slices) if options.messages else {}
    subscriptions = {
        name: await subscription_stats(topic, each, rates, options, service.slices, counted.get(name))
        for name, each in sorted(topic.subscriptions.items())
    }
    return (
        _traffic(topic, publishers, subscriptions)
        | await _storage(topic, subscriptions, options)
        | _NO_OFFLOAD
        | _NO_TRANSACTIONS
        | {
            "publishers": publishers if options.with_publishers else [],
            "waitingPublishers": topic.producers.waiting,
            "subscriptions": subscriptions,
            "replication": {},
            "deduplicationStatus": _deduplication(topic),
        }
        | _epoch(topic)
        | _sums(subscriptions)
        | {"compaction": _compaction(service, topic)}
        | await _life(service, topic)
    )


async def _backlogs(topic: PersistentTopic, slices: Slices) -> dict[str, Backlog]:
    """Counts the backlogs in messages. Those that bookies answer too late for are left out."""
    counted: dict[str, Backlog] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_COUNT_S_MAX):
            for name, each in sorted(topic.subscriptions.items()):
                counted[name] = await each.count_backlog()
                await slices.turn()
    return counted


def _traffic(topic: Topic, publishers: list[dict[str, Any]], subscriptions: dict[str, Any]) -> dict[str, Any]:
    rate, throughput = _sum(publishers, "msgRateIn"), _sum(publishers, "msgThroughputIn")
    of_subscriptions = list(subscriptions.values())
    is_system = topic.name.is_system
    return {
        "msgRateIn": rate + 0.0,
        "msgThroughputIn": throughput + 0.0,
        "msgRateOut": _sum(of_subscriptions, "msgRateOut") + 0.0,
        "msgThroughputOut": _sum(of_subscriptions, "msgThroughputOut") + 0.0,
        "bytesInCounter": topic.publisher.bytes_in,
        "msgInCounter": topic.publisher.messages_in,
        "systemTopicBytesInCounter": topic.publisher.bytes_in if is_system else 0,
        "bytesOutCounter": _sum(of_subscriptions, "bytesOutCounter"),
        "msgOutCounter": _sum(of_subscriptions, "msgOutCounter"),
        "bytesOutInternalCounter": 0,
        "averageMsgSize": average(throughput, rate),
        "msgChunkPublished": any(producer.chunked_in for producer in topic.producers),
    }


async def _storage(topic: PersistentTopic, subscriptions: dict[str, Any], options: StatsOptions) -> dict[str, Any]:
    quotas = topic.policies.backlog_quotas
    size, age = quotas.storage, quotas.age
    times = [each["earliestMsgPublishTimeInBacklog"] for each in subscriptions.values()]
    known = [time for time in times if time > 0]
    return {
        "storageSize": topic.log.chain.size_bytes,
        "backlogSize": topic.quota.backlog_bytes(),
        "backlogQuotaLimitSize": size.limit_bytes,
        "backlogQuotaLimitTime": age.limit_s,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": min(known, default=0) if options.earliest_time else 0,
    }


def _deduplication(topic: PersistentTopic) -> str:
    dedup = topic.publisher.dedup
    if dedup is None:
        return "Disabled"
    return "Enabled" if dedup.is_ready else "Recovering"


def _epoch(topic: Topic) -> dict[str, Any]:
    return {} if topic.producers.epoch is None else {"topicEpoch": topic.producers.epoch}


def _sums(subscriptions: dict[str, Any]) -> dict[str, Any]:
    names = (
        "nonContiguousDeletedMessagesRanges",
        "nonContiguousDeletedMessagesRangesSerializedSize",
        "delayedMessageIndexSizeInBytes",
    )
    return {name: _sum(list(subscriptions.values()), name) for name in names}


def _compaction(service: BrokerService, topic: PersistentTopic) -> dict[str, int]:
    runs, entropy = topic.compaction, service.entropy
    result = runs.last_result
    return {
        "lastCompactionRemovedEventCount": 0 if result is None else result.entries_read - result.entries_written,
        "lastCompactionSucceedTimestamp": wall_ms_of(runs.succeeded_s, entropy),
        "lastCompactionFailedTimestamp": wall_ms_of(runs.failed_s, entropy),
        "lastCompactionDurationTimeInMills": round(runs.last_duration_s * 1000),
    }


async def _life(service: BrokerService, topic: Topic) -> dict[str, Any]:
    node = await service.resources.cache.get(topic.name.log_path) if topic.is_persistent else None
    created_ms = wall_ms_of(topic.created_s, service.entropy) if node is None else node.created_ms
    return {
        "ownerBroker": service.address.broker_id,
        "topicCreationTimeStamp": created_ms,
        "lastPublishTimeStamp": wall_ms_of(topic.publisher.last_published_s, service.entropy),
    }


def _sum(stats: list[dict[str, Any]], name: str) -> Any:
    return sum(each[name] for each in stats)


async def _fleeting(
    service: BrokerService, topic: NonPersistentTopic, rates: RateBook, options: StatsOptions
) -> dict[str, Any]:
    publishers = await service.slices.map(
        lambda producer: publisher_stats(producer, rates) | {"msgDropRate": 0.0}, topic.producers
    )
    subscriptions = {
        name: await fleeting_stats(each, rates, options, service.slices)
        for name, each in sorted(topic.subscriptions.items())
    }
    return (
        _traffic(topic, publishers, subscriptions)
        | _NOTHING_STORED
        | _NO_OFFLOAD
        | _NO_TRANSACTIONS
        | {"msgDropRate": 0.0}
        | {
            "publishers": publishers if options.with_publishers else [],
            "waitingPublishers": topic.producers.waiting,
            "subscriptions": subscriptions,
            "replication": {},
        }
        | _epoch(topic)
        | {
            "ownerBroker": service.address.broker_id,
            "topicCreationTimeStamp": wall_ms_of(topic.created_s, service.entropy),
            "lastPublishTimeStamp": wall_ms_of(topic.publisher.last_published_s, service.entropy),
        }
    )
