"""All topics of a broker at once: metrics under Pulsar's names, and /admin/v2/broker-stats.

The source is the same statistics as the other routes have, so that all agree. The metrics' labels are cluster,
namespace, topic and subscription, as Pulsar's; there are sums for the broker. docs/admin-rest.md lists the series of
Pulsar that are missing, with the reasons.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from magnetar.admin.http.answers import Answer, Members
from magnetar.admin.http.call import AdminContext, Call, Route
from magnetar.admin.stats.subscriptions import StatsOptions
from magnetar.admin.stats.topics import topic_stats
from magnetar.broker.cluster.load_report import PULSAR_VERSION
from magnetar.broker.front_end import PULSAR

Stats = Mapping[str, Any]
Read = Callable[[Stats], float]

_ROWS_PER_STEP: Final = 200  # Some tenths of a millisecond.
_OPTIONS: Final = StatsOptions()


def _field(name: str) -> Read:
    return lambda stats: float(stats.get(name) or 0)


def _count(name: str) -> Read:
    return lambda stats: float(len(stats[name]))


def _consumers(stats: Stats) -> float:
    return float(sum(len(each["consumers"]) for each in stats["subscriptions"].values()))


def _backlog(stats: Stats) -> float:
    return float(sum(each["msgBacklog"] for each in stats["subscriptions"].values()))


TOPIC_SERIES: Final[dict[str, tuple[str, Read]]] = {
    "pulsar_subscriptions_count": ("gauge", _count("subscriptions")),
    "pulsar_producers_count": ("gauge", _count("publishers")),
    "pulsar_consumers_count": ("gauge", _consumers),
    "pulsar_rate_in": ("gauge", _field("msgRateIn")),
    "pulsar_rate_out": ("gauge", _field("msgRateOut")),
    "pulsar_throughput_in": ("gauge", _field("msgThroughputIn")),
    "pulsar_throughput_out": ("gauge", _field("msgThroughputOut")),
    "pulsar_average_msg_size": ("gauge", _field("averageMsgSize")),
    "pulsar_msg_backlog": ("gauge", _backlog),
    "pulsar_storage_size": ("gauge", _field("storageSize")),
    "pulsar_storage_logical_size": ("gauge", _field("storageSize")),
    "pulsar_storage_backlog_size": ("gauge", _field("backlogSize")),
    "pulsar_storage_offloaded_size": ("gauge", _field("offloadedStorageSize")),
    "pulsar_storage_backlog_quota_limit": ("gauge", _field("backlogQuotaLimitSize")),
    "pulsar_storage_backlog_quota_limit_time": ("gauge", _field("backlogQuotaLimitTime")),
    "pulsar_storage_backlog_age_seconds": ("gauge", _field("oldestBacklogMessageAgeSeconds")),
    "pulsar_publish_rate_limit_times": ("gauge", _field("publishRateLimitedTimes")),
    "pulsar_delayed_message_index_size_bytes": ("gauge", _field("delayedMessageIndexSizeInBytes")),
    "pulsar_in_bytes_total": ("counter", _field("bytesInCounter")),
    "pulsar_in_messages_total": ("counter", _field("msgInCounter")),
}
SUBSCRIPTION_SERIES: Final[dict[str, tuple[str, Read]]] = {
    "pulsar_subscription_back_log": ("gauge", _field("msgBacklog")),
    "pulsar_subscription_back_log_no_delayed": ("gauge", _field("msgBacklogNoDelayed")),
    "pulsar_subscription_delayed": ("gauge", _field("msgDelayed")),
    "pulsar_subscription_in_replay": ("gauge", _field("msgInReplay")),
    "pulsar_subscription_msg_rate_redeliver": ("gauge", _field("msgRateRedeliver")),
    "pulsar_subscription_msg_ack_rate": ("gauge", _field("messageAckRate")),
    "pulsar_subscription_unacked_messages": ("gauge", _field("unackedMessages")),
    "pulsar_subscription_blocked_on_unacked_messages": ("gauge", _field("blockedSubscriptionOnUnackedMsgs")),
    "pulsar_subscription_msg_rate_out": ("gauge", _field("msgRateOut")),
    "pulsar_subscription_msg_throughput_out": ("gauge", _field("msgThroughputOut")),
    "pulsar_subscription_msg_drop_rate": ("gauge", _field("msgDropRate")),
    "pulsar_subscription_consumers_count": ("gauge", _count("consumers")),
    "pulsar_subscription_last_expire_timestamp": ("gauge", _field("lastExpireTimestamp")),
    "pulsar_subscription_last_acked_timestamp": ("gauge", _field("lastAckedTimestamp")),
    "pulsar_subscription_last_consumed_flow_timestamp": ("gauge", _field("lastConsumedFlowTimestamp")),
    "pulsar_subscription_last_consumed_timestamp": ("gauge", _field("lastConsumedTimestamp")),
    "pulsar_subscription_total_msg_expired": ("gauge", _field("totalMsgExpired")),
    "pulsar_subscription_delayed_message_index_size_bytes": ("gauge", _field("delayedMessageIndexSizeInBytes")),
    "pulsar_out_bytes_total": ("counter", _field("bytesOutCounter")),
    "pulsar_out_messages_total": ("counter", _field("msgOutCounter")),
}
_BROKER_SUMS: Final = {
    "pulsar_broker_subscriptions_count": "pulsar_subscriptions_count",
    "pulsar_broker_producers_count": "pulsar_producers_count",
    "pulsar_broker_consumers_count": "pulsar_consumers_count",
    "pulsar_broker_rate_in": "pulsar_rate_in",
    "pulsar_broker_rate_out": "pulsar_rate_out",
    "pulsar_broker_throughput_in": "pulsar_throughput_in",
    "pulsar_broker_throughput_out": "pulsar_throughput_out",
    "pulsar_broker_msg_backlog": "pulsar_msg_backlog",
    "pulsar_broker_storage_size": "pulsar_storage_size",
    "pulsar_broker_storage_logical_size": "pulsar_storage_logical_size",
}


class _Table:
    """Holds samples of several series with the same labels: a row for each topic, or for each subscription."""

    def __init__(self, series: Mapping[str, tuple[str, Read]], cluster: str) -> None:
        self._series = series
        self._cluster = cluster
        self._labels: list[str] = []
        self._columns = {name: array("d") for name in series}  # A value is eight bytes, and no object to be freed.
        self.sums = dict.fromkeys(series, 0.0)

    def add(self, stats: Stats, **labels: str) -> None:
        self._labels.append(_labels(cluster=self._cluster, **labels))
        for name, (_, read) in self._series.items():
            value = read(stats)
            self._columns[name].append(value)
            self.sums[name] += value

    async def write(self, answer: Answer) -> None:
        """Writes each series once, with all its samples, as the format demands."""
        if not self._labels:
            return
        for name, (kind, _) in self._series.items():
            await answer.text(f"# TYPE {name} {kind}\n")
            for first in range(0, len(self._labels), _ROWS_PER_STEP):
                rows = slice(first, first + _ROWS_PER_STEP)
                samples = zip(self._labels[rows], self._columns[name][rows], strict=True)
                await answer.text("".join([f"{name}{label} {_number(value)}\n" for label, value in samples]))


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _number(value: float) -> str:
    return repr(value) if value % 1 else str(int(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


async def write_pulsar_metrics(context: AdminContext, answer: Answer) -> None:
    service = context.broker.service
    cluster = service.config.broker.cluster
    of_topics, of_subscriptions = _Table(TOPIC_SERIES, cluster), _Table(SUBSCRIPTION_SERIES, cluster)
    counts: dict[str, int] = {}
    for topic in service.topics.loaded():
        stats = await topic_stats(service, topic, context.rates, _OPTIONS)
        name, namespace = str(topic.name), str(topic.name.namespace)
        counts[namespace] = counts.get(namespace, 0) + 1
        of_topics.add(stats, namespace=namespace, topic=name)
        for subscription, of_one in stats["subscriptions"].items():
            of_subscriptions.add(of_one, namespace=namespace, topic=name, subscription=subscription)
            await answer.slices.turn()
        await answer.slices.turn()
    await of_topics.write(answer)
    await of_subscriptions.write(answer)
    for name, kind, samples in _of_broker(context, counts, of_topics.sums | of_subscriptions.sums):
        lines = "".join(f"{name}{_labels(cluster=cluster, **labels)} {_number(value)}\n" for labels, value in samples)
        await answer.text(f"# TYPE {name} {kind}\n{lines}")


Samples = list[tuple[dict[str, str], float]]


def _of_broker(
    context: AdminContext, topics_by_namespace: Mapping[str, int], sums: Mapping[str, float]
) -> Iterator[tuple[str, str, Samples]]:
    clients, loads = context.broker.front_end_statistics(), context.broker.service.topics.statistics()
    if topics_by_namespace:
        by_namespace: Samples = [({"namespace": name}, count) for name, count in sorted(topics_by_namespace.items())]
        yield "pulsar_topics_count", "gauge", by_namespace
    counters = {
        "pulsar_broker_in_bytes_total": sums["pulsar_in_bytes_total"],
        "pulsar_broker_out_bytes_total": sums["pulsar_out_bytes_total"],
    }
    gauges = {
        "pulsar_broker_topics_count": loads.loaded,
        **{name: sums[of] for name, of in _BROKER_SUMS.items()},
        "pulsar_broker_lookup_pending_requests": clients.lookups,
        "pulsar_broker_topic_load_pending_requests": loads.loading,
        "pulsar_topic_load_failed_count": loads.load_failures,
        "pulsar_active_connections": clients.connections,
        "pulsar_connection_created_total_count": clients.opened,
        "pulsar_connection_create_success_count": clients.opened,
        "pulsar_connection_create_fail_count": clients.refused,
        "pulsar_connection_closed_total_count": clients.opened - clients.connections,
        "pulsar_ml_count": loads.loaded,
        "pulsar_health": int(context.health().is_healthy),
    }
    for name, value in counters.items():
        yield name, "counter", [({}, value)]
    for name, value in gauges.items():
        yield name, "gauge", [({}, value)]
    yield "pulsar_version_info", "gauge", [({"version": PULSAR_VERSION}, 1)]


Tree: TypeAlias = dict[str, Any]
"""Topics by the names of their namespace, bundle and domain."""


async def get_topics(call: Call) -> Members:
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
    """Returns what the broker has reported to its cluster. A broker that is the only one counts what it has now."""
    address = call.service.address
    reported = call.service.membership.reports().get(address.broker_id)
    if reported is not None:
        return reported.to_json()
    bundles: dict[str, dict[str, int]] = {}
    for topic in call.service.topics.loaded():
        namespace = topic.name.namespace
        bundle = (await call.service.resources.namespaces.bundles(namespace)).of(topic.name)
        counts = bundles.setdefault(f"{namespace}/{bundle}", dict.fromkeys(_COUNTED, 0))
        found = 1, topic.consumer_count, len(topic.producers)
        for name, count in zip(_COUNTED, found, strict=True):
            counts[name] += count
        await call.service.slices.turn()
    topics, consumers, producers = (sum(counts[name] for counts in bundles.values()) for name in _COUNTED)
    return {
        "webServiceUrl": address.http_url,
        "pulsarServiceUrl": address.urls.get(PULSAR, ""),
        "lastStats": bundles,
        "numBundles": len(bundles),
        "numTopics": topics,
        "numConsumers": consumers,
        "numProducers": producers,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
    }


async def list_reports(call: Call) -> list[dict[str, Any]]:
    """Returns what each broker of the cluster reported last."""
    membership = call.service.membership
    leader = await membership.leading()
    reports = {broker: report.to_json() for broker, report in membership.reports().items()}
    if not reports:
        reports[call.service.address.broker_id] = await get_load(call)
    return [
        {"brokerId": broker, "isLeader": leader is not None and leader.broker_id == broker, "report": reports[broker]}
        for broker in sorted(reports)
    ]


_COUNTED = ("topics", "consumerCount", "producerCount")
_ALL = "/admin/v2/broker-stats"
ROUTES = [
    Route("GET", f"{_ALL}/topics", "Get the statistics of all loaded topics", get_topics),
    Route("GET", f"{_ALL}/destinations", "Get the statistics of all loaded topics, by their old name", get_topics),
    Route("GET", f"{_ALL}/metrics", "Get the broker's metrics as JSON", get_metrics),
    Route("GET", f"{_ALL}/load-report", "Get the load of the broker", get_load),
    Route("GET", "/admin/v2/magnetar/brokers", "Get the loads of all brokers, and which one leads", list_reports),
]
