"""/admin/v2/broker-stats: all topics at once, for tools that look at a whole broker."""

from __future__ import annotations

from typing import Any

from magnetar.admin.call import Call
from magnetar.admin.route import Route
from magnetar.admin.stats.subscriptions import StatsOptions
from magnetar.admin.stats.topics import topic_stats

_OPTIONS = StatsOptions()


async def get_topics(call: Call) -> dict[str, Any]:
    """By namespace, bundle and domain."""
    found: dict[str, Any] = {}
    for topic in sorted(call.service.topics.loaded(), key=lambda each: str(each.name)):
        name = topic.name
        bundle = (await call.service.resources.namespaces.bundles(name.namespace)).of(name)
        of_domain = (
            found.setdefault(str(name.namespace), {}).setdefault(str(bundle), {}).setdefault(str(name.domain), {})
        )
        of_domain[str(name)] = await topic_stats(call.service, topic, call.context.rates, _OPTIONS)
    return found


async def get_metrics(call: Call) -> list[dict[str, Any]]:
    broker, config = call.context.broker, call.service.config.broker
    topics, counters = call.service.topics.statistics(), broker.front_end.counters
    dimensions = {"broker": config.cluster and call.service.address.broker_id, "cluster": config.cluster}
    return [
        {
            "metrics": {"brk_topic_load_failed_count": topics.load_failures, "brk_ml_count": topics.loaded},
            "dimensions": dimensions | {"metric": "pulsar_topic_load_times"},
        },
        {
            "metrics": {
                "brk_active_connections": broker.front_end.connections,
                "brk_connection_created_total_count": counters.opened,
                "brk_connection_create_fail_count": counters.refused,
                "brk_connection_create_success_count": counters.opened - counters.refused,
                "brk_connection_closed_total_count": counters.opened - broker.front_end.connections,
            },
            "dimensions": dimensions | {"metric": "broker_connection"},
        },
    ]


async def get_load(call: Call) -> dict[str, Any]:
    address, topics = call.service.address, call.service.topics.loaded()
    return {
        "webServiceUrl": address.http_url,
        "pulsarServiceUrl": address.pulsar_url,
        "numTopics": len(topics),
        "numConsumers": sum(topic.consumer_count for topic in topics),
        "numProducers": sum(len(topic.producers) for topic in topics),
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
    }


_ALL = "/admin/v2/broker-stats"
ROUTES = [
    Route("GET", f"{_ALL}/topics", "Get the statistics of all loaded topics", get_topics),
    Route("GET", f"{_ALL}/destinations", "Get the statistics of all loaded topics, by their old name", get_topics),
    Route("GET", f"{_ALL}/metrics", "Get the broker's metrics as JSON", get_metrics),
    Route("GET", f"{_ALL}/load-report", "Get how much the broker has to do", get_load),
]
