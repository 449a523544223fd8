"""Statistics of topics for users, and the internal state of their logs and cursors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from magnetar.admin.http.answers import Members
from magnetar.admin.http.call import TOPIC, Call, Query, Route, of_both_domains
from magnetar.admin.http.errors import NOT_FOUND, RestError
from magnetar.admin.stats.internal import fleeting_internal_stats, internal_info, internal_stats
from magnetar.admin.stats.subscriptions import StatsOptions
from magnetar.admin.stats.topics import MergedStats, topic_stats
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.topic import Topic


def _options(call: Call) -> StatsOptions:
    return StatsOptions(
        backlog_size=call.flag("subscriptionBacklogSize", default=True),
        earliest_time=call.flag("getEarliestTimeInBacklog"),
        messages=True,
        with_publishers=not call.flag("excludePublishers"),
        with_consumers=not call.flag("excludeConsumers"),
    )


async def get_stats(call: Call) -> dict[str, Any]:
    return await topic_stats(call.service, await call.loaded(), call.context.rates, _options(call))


async def get_partitioned_stats(call: Call) -> Members:
    return Members(_partitioned_stats(call, await _existing_partitions(call), await _metadata(call)))


async def _partitioned_stats(
    call: Call, partitions: list[Topic], metadata: dict[str, Any]
) -> AsyncIterator[tuple[str, Any]]:
    """Sends the partitions first: each is forgotten when it is sent, and only the sum stays."""
    merged = MergedStats()
    if call.flag("perPartition", default=True):
        yield "partitions", Members(_merging(call, partitions, merged))
    else:
        async for _ in _merging(call, partitions, merged):
            pass
        yield "partitions", {}
    for item in (merged.stats() | {"metadata": metadata}).items():
        yield item


async def _merging(call: Call, partitions: list[Topic], merged: MergedStats) -> AsyncIterator[tuple[str, Any]]:
    for topic in partitions:
        stats = await topic_stats(call.service, topic, call.context.rates, _options(call))
        merged.add(stats)
        yield str(topic.name), stats
        await call.service.slices.turn()


async def _existing_partitions(call: Call) -> list[Topic]:
    """Loads all partitions, so that a missing or moved one is found before the answer begins."""
    if not await call.partitions():
        raise RestError(NOT_FOUND, f"Partitioned Topic {call.topic} not found")
    found = []
    for name in await call.topics():
        if await call.service.exists(name):
            found.append(await call.loaded(name))
        await call.service.slices.turn()
    return found


async def _metadata(call: Call) -> dict[str, Any]:
    return {"partitions": await call.partitions(), "deleted": False}


async def get_internal_stats(call: Call) -> dict[str, Any]:
    return await _internal(call, await call.loaded())


async def _internal(call: Call, topic: Topic) -> dict[str, Any]:
    if not isinstance(topic, PersistentTopic):
        return fleeting_internal_stats(topic)
    return await internal_stats(call.service, topic, with_metadata=call.flag("metadata"))


async def get_partitioned_internal_stats(call: Call) -> dict[str, Any]:
    partitions = Members(_internals(call, await _existing_partitions(call)))
    return {"metadata": await _metadata(call), "partitions": partitions}


async def _internals(call: Call, partitions: list[Topic]) -> AsyncIterator[tuple[str, Any]]:
    for topic in partitions:
        yield str(topic.name), await _internal(call, topic)


async def get_internal_info(call: Call) -> dict[str, Any]:
    return await internal_info(call.service, await call.persistent())


_STATS = (
    Query("getPreciseBacklog", "has no effect: backlogs are always exact"),
    Query("subscriptionBacklogSize", "the size of each backlog, in bytes"),
    Query("getEarliestTimeInBacklog", "when the oldest message of each backlog was published"),
    Query("excludePublishers", "without producers"),
    Query("excludeConsumers", "without consumers"),
)
_ONE = f"/admin/v2/persistent/{TOPIC}"
_METADATA = (Query("metadata", "with the metadata of ledgers"),)
ROUTES = [
    *of_both_domains("GET", f"{TOPIC}/stats", "Get the statistics of a topic", get_stats, query=_STATS),
    *of_both_domains(
        "GET",
        f"{TOPIC}/partitioned-stats",
        "Get the statistics of a partitioned topic",
        get_partitioned_stats,
        query=(*_STATS, Query("perPartition", "include the statistics of each partition")),
    ),
    *of_both_domains(
        "GET",
        f"{TOPIC}/internalStats",
        "Get the state of a topic's log and cursors",
        get_internal_stats,
        query=_METADATA,
    ),
    Route(
        "GET",
        f"{_ONE}/partitioned-internalStats",
        "Get the state of the logs of all partitions",
        get_partitioned_internal_stats,
    ),
    Route("GET", f"{_ONE}/internal-info", "Get a topic's nodes in the metadata store", get_internal_info),
]
