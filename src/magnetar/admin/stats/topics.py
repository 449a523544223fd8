"""TopicStats, as Pulsar has it: of a topic, of a non-persistent one, and of all partitions together."""

from __future__ import annotations

from typing import Any

from magnetar.admin.stats.consumers import average, publisher_stats
from magnetar.admin.stats.rates import RateBook
from magnetar.admin.stats.subscriptions import StatsOptions, fleeting_stats, subscription_stats
from magnetar.admin.stats.times import wall_ms_of
from magnetar.broker.non_persistent_topic import NonPersistentTopic
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.service import BrokerService
from magnetar.broker.topic import Topic
from magnetar.broker.topic_upkeep import backlog_bytes

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
        return _fleeting(service, topic, rates, options)
    assert isinstance(topic, PersistentTopic)
    publishers = [publisher_stats(producer, rates) for producer in topic.producers]
    subscriptions = {
        name: await subscription_stats(topic, each, rates, options)
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


def _traffic(topic: Topic, publishers: list[dict[str, Any]], subscriptions: dict[str, Any]) -> dict[str, Any]:
    rate, throughput = _sum(publishers, "msgRateIn"), _sum(publishers, "msgThroughputIn")
    of_subscriptions = list(subscriptions.values())
    is_system = topic.name.is_system
    return {
        "msgRateIn": rate + 0.0,
        "msgThroughputIn": throughput + 0.0,
        "msgRateOut": _sum(of_subscriptions, "msgRateOut") + 0.0,
        "msgThroughputOut": _sum(of_subscriptions, "msgThroughputOut") + 0.0,
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "systemTopicBytesInCounter": topic.bytes_in if is_system else 0,
        "bytesOutCounter": _sum(of_subscriptions, "bytesOutCounter"),
        "msgOutCounter": _sum(of_subscriptions, "msgOutCounter"),
        "bytesOutInternalCounter": 0,
        "averageMsgSize": average(throughput, rate),
        "msgChunkPublished": any(producer.chunked_in for producer in topic.producers),
    }


async def _storage(topic: PersistentTopic, subscriptions: dict[str, Any], options: StatsOptions) -> dict[str, Any]:
    size, age = topic.policies.storage_quota, topic.policies.age_quota
    times = [each["earliestMsgPublishTimeInBacklog"] for each in subscriptions.values()]
    known = [time for time in times if time > 0]
    return {
        "storageSize": topic.log.chain.size_bytes,
        "backlogSize": backlog_bytes(topic),
        "backlogQuotaLimitSize": size.limit_bytes,
        "backlogQuotaLimitTime": age.limit_s,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": min(known, default=0) if options.earliest_time else 0,
    }


def _deduplication(topic: PersistentTopic) -> str:
    if topic.dedup is None:
        return "Disabled"
    return "Enabled" if topic.dedup.is_ready else "Recovering"


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
        "lastPublishTimeStamp": wall_ms_of(topic.last_published_s, service.entropy),
    }


def _sum(stats: list[dict[str, Any]], name: str) -> Any:
    return sum(each[name] for each in stats)


def _fleeting(
    service: BrokerService, topic: NonPersistentTopic, rates: RateBook, options: StatsOptions
) -> dict[str, Any]:
    publishers = [publisher_stats(producer, rates) | {"msgDropRate": 0.0} for producer in topic.producers]
    subscriptions = {name: fleeting_stats(each, rates, options) for name, each in sorted(topic.subscriptions.items())}
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
            "lastPublishTimeStamp": wall_ms_of(topic.last_published_s, service.entropy),
        }
    )
