"""Metrics under Pulsar's names: of each topic and subscription, and their sums for the broker.

Source:    the same statistics as the REST interface has, so that both agree.
Labels:    cluster, namespace, topic, subscription, as Pulsar's.
Absent:    docs/admin-rest.md lists the series of Pulsar that are not here, with the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from magnetar.admin.brokers import PULSAR_VERSION
from magnetar.admin.context import AdminContext
from magnetar.admin.stats.subscriptions import StatsOptions
from magnetar.admin.stats.topics import topic_stats

Stats = Mapping[str, Any]
Read = Callable[[Stats], float]

_TOPICS_PER_TURN: Final = 20
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


class _Series:
    """Lines of the text format, each series once with all its samples."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._kinds: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}
        self.sums: dict[str, float] = {}

    def add(self, name: str, kind: str, value: float, **labels: str) -> None:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"cluster": self._cluster, **labels}.items())
        self._kinds[name] = kind
        self._lines.setdefault(name, []).append(
            f"{name}{{{shown}}} {value:g}" if value % 1 else _whole(name, shown, value)
        )
        self.sums[name] = self.sums.get(name, 0.0) + value

    def render(self) -> bytes:
        parts: list[str] = []
        for name, lines in self._lines.items():
            family = name.removesuffix("_total") if self._kinds[name] == "counter" else name
            parts.append(f"# TYPE {family if self._kinds[name] != 'counter' else name} {self._kinds[name]}")
            parts.extend(lines)
        return ("\n".join(parts) + "\n").encode()


def _whole(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {int(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


async def pulsar_metrics(context: AdminContext) -> bytes:
    service = context.broker.service
    series = _Series(service.config.broker.cluster)
    topics = service.topics.loaded()
    for number, topic in enumerate(topics):
        stats = await topic_stats(service, topic, context.rates, _OPTIONS)
        _add_topic(series, str(topic.name), str(topic.name.namespace), stats)
        if number % _TOPICS_PER_TURN == _TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
    _add_broker(series, context, topics_by_namespace=_by_namespace(str(topic.name.namespace) for topic in topics))
    return series.render()


def _by_namespace(namespaces: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for namespace in namespaces:
        counts[namespace] = counts.get(namespace, 0) + 1
    return counts


def _add_topic(series: _Series, topic: str, namespace: str, stats: Stats) -> None:
    for name, (kind, read) in TOPIC_SERIES.items():
        series.add(name, kind, read(stats), namespace=namespace, topic=topic)
    for subscription, of_subscription in stats["subscriptions"].items():
        for name, (kind, read) in SUBSCRIPTION_SERIES.items():
            series.add(name, kind, read(of_subscription), namespace=namespace, topic=topic, subscription=subscription)


def _add_broker(series: _Series, context: AdminContext, *, topics_by_namespace: Mapping[str, int]) -> None:
    front_end, loads = context.broker.front_end, context.broker.service.topics.statistics()
    for namespace, count in sorted(topics_by_namespace.items()):
        series.add("pulsar_topics_count", "gauge", count, namespace=namespace)
    sums = dict(series.sums)
    series.add("pulsar_broker_topics_count", "gauge", loads.loaded)
    for name, of in _BROKER_SUMS.items():
        series.add(name, "gauge", sums.get(of, 0.0))
    series.add("pulsar_broker_in_bytes_total", "counter", sums.get("pulsar_in_bytes_total", 0.0))
    series.add("pulsar_broker_out_bytes_total", "counter", sums.get("pulsar_out_bytes_total", 0.0))
    series.add("pulsar_broker_lookup_pending_requests", "gauge", front_end.lookups)
    series.add("pulsar_broker_topic_load_pending_requests", "gauge", loads.loading)
    series.add("pulsar_topic_load_failed_count", "gauge", loads.load_failures)
    series.add("pulsar_active_connections", "gauge", front_end.connections)
    series.add("pulsar_connection_created_total_count", "gauge", front_end.counters.opened)
    series.add("pulsar_connection_create_success_count", "gauge", front_end.counters.opened)
    series.add("pulsar_connection_create_fail_count", "gauge", front_end.counters.refused)
    series.add("pulsar_connection_closed_total_count", "gauge", front_end.counters.opened - front_end.connections)
    series.add("pulsar_ml_count", "gauge", loads.loaded)
    series.add("pulsar_health", "gauge", int(context.health().is_healthy))
    series.add("pulsar_version_info", "gauge", 1, version=PULSAR_VERSION)
