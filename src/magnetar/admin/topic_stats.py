"""Statistics of topics: for users, and of their logs and cursors."""

from __future__ import annotations

from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.errors import NOT_FOUND, RestError
from magnetar.admin.route import TOPIC, Query, Route, of_both_domains
from magnetar.admin.stats.internal import fleeting_internal_stats, internal_info, internal_stats
from magnetar.admin.stats.merging import merge_stats
from magnetar.admin.stats.subscriptions import StatsOptions
from magnetar.admin.stats.topics import topic_stats
from magnetar.broker.names import TopicName
from magnetar.broker.persistent_topic import PersistentTopic


def _options(call: Call) -> StatsOptions:
    return StatsOptions(
        backlog_size=call.flag("subscriptionBacklogSize", default=True),
        earliest_time=call.flag("getEarliestTimeInBacklog"),
        with_publishers=not call.flag("excludePublishers"),
        with_consumers=not call.flag("excludeConsumers"),
    )


async def get_stats(call: Call) -> dict[str, Any]:
    return await _stats(call, call.topic)


async def _stats(call: Call, name: TopicName) -> dict[str, Any]:
    return await topic_stats(call.service, await call.loaded(name), call.context.rates, _options(call))


async def get_partitioned_stats(call: Call) -> dict[str, Any]:
    partitions = await _existing_partitions(call)
    by_name = {str(name): await _stats(call, name) for name in partitions}
    merged = merge_stats(list(by_name.values()))
    per_partition = call.flag("perPartition", default=True)
    return merged | {"metadata": await _metadata(call), "partitions": by_name if per_partition else {}}


async def _existing_partitions(call: Call) -> list[TopicName]:
    if not await call.partitions():
        raise RestError(NOT_FOUND, f"Partitioned Topic {call.topic} not found")
    return [name for name in await call.topics() if await call.service.exists(name)]


async def _metadata(call: Call) -> dict[str, Any]:
    return {"partitions": await call.partitions(), "deleted": False}


async def get_internal_stats(call: Call) -> dict[str, Any]:
    return await _internal(call, call.topic)


async def _internal(call: Call, name: TopicName) -> dict[str, Any]:
    topic = await call.loaded(name)
    if not isinstance(topic, PersistentTopic):
        return fleeting_internal_stats(topic)
    return await internal_stats(call.service, topic, with_metadata=call.flag("metadata"))


async def get_partitioned_internal_stats(call: Call) -> dict[str, Any]:
    partitions = {str(name): await _internal(call, name) for name in await _existing_partitions(call)}
    return {"metadata": await _metadata(call), "partitions": partitions}


async def get_internal_info(call: Call) -> dict[str, Any]:
    return await internal_info(call.service, await call.persistent())


_STATS = (
    Query("getPreciseBacklog", "taken for granted: backlogs are always exact"),
    Query("subscriptionBacklogSize", "the size of each backlog, in bytes"),
    Query("getEarliestTimeInBacklog", "when the oldest message of each backlog was published"),
    Query("excludePublishers", "without producers"),
    Query("excludeConsumers", "without consumers"),
)
_ONE = f"/admin/v2/persistent/{TOPIC}"
ROUTES = [
    *of_both_domains("GET", f"{TOPIC}/stats", "Get the statistics of a topic", get_stats, query=_STATS),
    *of_both_domains(
        "GET",
        f"{TOPIC}/partitioned-stats",
        "Get the statistics of a partitioned topic",
        get_partitioned_stats,
        query=(*_STATS, Query("perPartition", "those of each partition, too")),
    ),
    *of_both_domains(
        "GET",
        f"{TOPIC}/internalStats",
        "Get the state of a topic's log and cursors",
        get_internal_stats,
        query=(Query("metadata", "with the metadata of ledgers"),),
    ),
    Route(
        "GET",
        f"{_ONE}/partitioned-internalStats",
        "Get the state of the logs of all partitions",
        get_partitioned_internal_stats,
    ),
    Route("GET", f"{_ONE}/internal-info", "Get what the metadata store has of a topic", get_internal_info),
]
