"""/admin/v2/broker-stats: all topics at once, for tools that watch a whole broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

from magnetar.admin.http.answers import Members
from magnetar.admin.http.call import Call
from magnetar.admin.http.route import Route
from magnetar.admin.stats.subscriptions import StatsOptions
from magnetar.admin.stats.topics import topic_stats
from magnetar.broker.front_end import PULSAR

Tree: TypeAlias = dict[str, Any]
"""Topics by the names of their namespace, bundle and domain."""

_OPTIONS = StatsOptions()


async def get_topics(call: Call) -> Members:
    """Returns topics by namespace, bundle and domain."""
    found: Tree = {}
    for topic in call.service.topics.loaded():
        name = topic.name
        bundle = (await call.service.resources.namespaces.bundles(name.namespace)).of(name)
        branch = found
        for part in (str(name.namespace), str(bundle), str(name.domain)):
            branch = branch.setdefault(part, {})
        branch[str(name)] = topic
        await call.service.slices.turn()
    return Members(_described(call, found))


async def _described(call: Call, tree: Tree) -> AsyncIterator[tuple[str, Any]]:
    for name, below in sorted(tree.items()):
        if isinstance(below, dict):
            yield name, Members(_described(call, below))
        else:
            yield name, await topic_stats(call.service, below, call.context.rates, _OPTIONS)


async def get_metrics(call: Call) -> list[dict[str, Any]]:
    broker, config = call.context.broker, call.service.config.broker
    topics, clients = call.service.topics.statistics(), broker.front_end_statistics()
    dimensions = {"broker": config.cluster and call.service.address.broker_id, "cluster": config.cluster}
    return [
        {
            "metrics": {"brk_topic_load_failed_count": topics.load_failures, "brk_ml_count": topics.loaded},
            "dimensions": dimensions | {"metric": "pulsar_topic_load_times"},
        },
        {
            "metrics": {
                "brk_active_connections": clients.connections,
                "brk_connection_created_total_count": clients.opened,
                "brk_connection_create_fail_count": clients.refused,
                "brk_connection_create_success_count": clients.opened - clients.refused,
                "brk_connection_closed_total_count": clients.opened - clients.connections,
            },
            "dimensions": dimensions | {"metric": "broker_connection"},
        },
    ]


async def get_load(call: Call) -> dict[str, Any]:
    address, topics = call.service.address, call.service.topics.loaded()
    consumers = producers = 0
    for topic in topics:
        consumers += topic.consumer_count
        producers += len(topic.producers)
        await call.service.slices.turn()
    return {
        "webServiceUrl": address.http_url,
        "pulsarServiceUrl": address.urls.get(PULSAR, ""),
        "numTopics": len(topics),
        "numConsumers": consumers,
        "numProducers": producers,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
    }


_ALL = "/admin/v2/broker-stats"
ROUTES = [
    Route("GET", f"{_ALL}/topics", "Get the statistics of all loaded topics", get_topics),
    Route("GET", f"{_ALL}/destinations", "Get the statistics of all loaded topics, by their old name", get_topics),
    Route("GET", f"{_ALL}/metrics", "Get the broker's metrics as JSON", get_metrics),
    Route("GET", f"{_ALL}/load-report", "Get the load of the broker", get_load),
]
