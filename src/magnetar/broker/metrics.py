"""A broker's own metrics: connections, topics, loads. What Pulsar publishes about topics comes from the admin side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.runtime.metrics import Metrics

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker


def observe_broker(metrics: Metrics, broker: Broker) -> None:
    front_end, topics = broker.front_end, broker.service.topics
    counters, gauge, counter = front_end.counters, metrics.gauge_callback, metrics.counter_callback
    gauge("magnetar_broker_connections", "Connections of Pulsar clients.", lambda: front_end.connections)
    gauge(
        "magnetar_broker_publish_memory_bytes", "Entries that are not durable yet.", lambda: front_end.memory.used_bytes
    )
    gauge("magnetar_broker_lookups", "Lookups in progress.", lambda: front_end.lookups)
    counter("magnetar_broker_connections_total", "Connections that were opened.", lambda: counters.opened)
    counter("magnetar_broker_connections_refused_total", "Connections beyond the limit.", lambda: counters.refused)
    counter("magnetar_broker_connections_broken_total", "Clients that broke the protocol.", lambda: counters.broken)
    counter("magnetar_broker_connections_silent_total", "Clients that went silent.", lambda: counters.timed_out)
    counter("magnetar_broker_received_bytes_total", "Bytes received from clients.", lambda: counters.received_bytes)
    counter("magnetar_broker_sent_bytes_total", "Bytes sent to clients.", lambda: counters.sent_bytes)
    gauge("magnetar_broker_topics", "Topics that are loaded.", lambda: topics.statistics().loaded)
    counter("magnetar_broker_topic_loads_total", "Topics that were loaded.", lambda: topics.statistics().loads)
    counter(
        "magnetar_broker_topic_load_failures_total", "Loads that failed.", lambda: topics.statistics().load_failures
    )
    counter("magnetar_broker_topics_lost_total", "Topics that were fenced or failed.", lambda: topics.statistics().lost)
