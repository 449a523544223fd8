"""KafkaFrontEnd: listens for clients of Kafka, and keeps what their connections share.

Order:     To end: no new connections; the broker unloads its topics, which wakes every fetch that waits and fails every
           batch that is not durable; then the connections are closed.
Read next: connection.py, session.py; docs/kafka.md
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.broker.front_end import Endpoint, FrontEndStatistics
from magnetar.broker.kafka import (
    api_versions,
    cluster,
    configs,
    deletion,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
    topic_admin,
)
from magnetar.broker.kafka.brokers import KAFKA, Brokers
from magnetar.broker.kafka.connection import RECEIVE_BYTES, Connection
from magnetar.broker.kafka.groups import admin as group_admin
from magnetar.broker.kafka.groups import handlers as groups
from magnetar.broker.kafka.groups.coordinators import Coordinators
from magnetar.broker.kafka.producer_ids import ProducerIds
from magnetar.broker.kafka.session import Handle, Session
from magnetar.broker.kafka.shared import Partitions, Shared
from magnetar.broker.publishing.publish_memory import PublishMemory
from magnetar.broker.service import BrokerService
from magnetar.config.kafka import KafkaConfig
from magnetar.names import NamespaceName
from magnetar.runtime.framed_connection import ConnectionCounters, listen
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.topic.entry_format.conversions import Conversions
from magnetar.wire.kafka import admin_tables, cluster_tables, group_tables, tables
from magnetar.wire.kafka.codec import Api
from magnetar.wire.kafka.frames import frame_end

_BACKLOG: Final = 4_096
_CREATED_AT_ONCE: Final = 16


async def _never(*_: object) -> dict[str, object]:
    raise AssertionError("Produce is handled at once")


HANDLERS: Final[dict[int, tuple[Api, Handle]]] = {
    api.key: (api, handle)
    for api, handle in (
        (tables.PRODUCE, _never),
        (tables.FETCH, fetch.handle),
        (tables.LIST_OFFSETS, list_offsets.handle),
        (tables.METADATA, metadata.handle),
        (tables.API_VERSIONS, api_versions.handle),
        (tables.INIT_PRODUCER_ID, init_producer_id.handle),
        (group_tables.FIND_COORDINATOR, groups.handle_find_coordinator),
        (group_tables.JOIN_GROUP, groups.handle_join),
        (group_tables.SYNC_GROUP, groups.handle_sync),
        (group_tables.HEARTBEAT, groups.handle_heartbeat),
        (group_tables.LEAVE_GROUP, groups.handle_leave),
        (group_tables.OFFSET_COMMIT, groups.handle_commit),
        (group_tables.OFFSET_FETCH, groups.handle_fetch),
        (admin_tables.DESCRIBE_GROUPS, group_admin.handle_describe),
        (admin_tables.LIST_GROUPS, group_admin.handle_list),
        (admin_tables.DELETE_GROUPS, group_admin.handle_delete),
        (admin_tables.OFFSET_DELETE, group_admin.handle_delete_offsets),
        (admin_tables.CREATE_TOPICS, topic_admin.handle_create),
        (admin_tables.CREATE_PARTITIONS, topic_admin.handle_create_partitions),
        (admin_tables.DELETE_TOPICS, deletion.handle_topics),
        (admin_tables.DELETE_RECORDS, deletion.handle_records),
        (cluster_tables.DESCRIBE_CONFIGS, configs.handle_describe),
        (cluster_tables.ALTER_CONFIGS, configs.handle_alter),
        (cluster_tables.INCREMENTAL_ALTER_CONFIGS, configs.handle_alter_incrementally),
        (cluster_tables.DESCRIBE_LOG_DIRS, cluster.handle_log_dirs),
        (cluster_tables.DESCRIBE_CLUSTER, cluster.handle_describe),
    )
}


class KafkaFrontEnd:
    """Is made, bound by `bind`, and started by `start` when the broker can serve; ended by `stop_listening` and
    `aclose`."""

    protocol = KAFKA

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config
        self.counters = ConnectionCounters()
        self.memory = PublishMemory(config.publish_memory_bytes_max)
        self.conversions = Conversions(config.conversions_bytes_max, config.decompressed_bytes_max)
        self.receiving = ReceiveMemory(
            RECEIVE_BYTES,
            bytes_max=config.receive_bytes_max,
            frame_timeout_s=config.frame_timeout_ms / 1000,
            frame_end=lambda buffer, start, end: frame_end(buffer, start, end, config.request_bytes_max),
        )
        self._sessions: dict[Session, None] = {}
        self._server: asyncio.Server | None = None
        self._shared: Shared | None = None
        self.port = config.port

    async def bind(self) -> Endpoint:
        host, port = self.config.listens_on, self.config.port
        self._server = await listen(
            self.accept, host, port, backlog=_BACKLOG, server="broker", setting="kafka.listen_host"
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        return Endpoint(f"kafka://{self.config.reached_at}:{self.config.advertised_port or self.port}")

    async def start(self, service: BrokerService) -> None:
        assert self._server is not None, "bind first"
        namespace = NamespaceName.parse(self.config.namespace)
        brokers = Brokers(service.resources.documents)
        await brokers.register(service.address.broker_id, service.address.url_for(KAFKA))
        partitions = Partitions(service, namespace, self.conversions)
        self._shared = Shared(
            service,
            self.config,
            namespace,
            self.memory,
            partitions,
            brokers,
            ProducerIds(service.resources.documents),
            Coordinators(service, self.config, partitions),
            asyncio.Semaphore(_CREATED_AT_ONCE),
            HANDLERS,
            produce.handle,
        )
        await self._server.start_serving()

    def statistics(self) -> FrontEndStatistics:
        counters = self.counters
        return FrontEndStatistics(
            connections=self.connections, opened=counters.opened, refused=counters.turned_away, lookups=0
        )

    def observe(self, metrics: Metrics) -> None:
        counters, gauge, counter = self.counters, metrics.gauge_callback, metrics.counter_callback
        gauge("magnetar_kafka_connections", "Connections of Kafka clients.", lambda: self.connections)
        gauge(
            "magnetar_kafka_publish_memory_bytes", "Batches that are not durable yet.", lambda: self.memory.used_bytes
        )
        gauge(
            "magnetar_kafka_receive_bytes",
            "Memory of what was received and is not handled yet.",
            lambda: self.receiving.kept_bytes,
        )
        gauge(
            "magnetar_kafka_conversions_bytes",
            "Memory of entries that were converted for readers of the other protocol.",
            lambda: self.conversions.bytes_held,
        )
        counter("magnetar_kafka_conversions_total", "Entries that were converted.", lambda: self.conversions.made)
        counter("magnetar_kafka_connections_total", "Connections that were opened.", lambda: counters.opened)
        counter(
            "magnetar_kafka_connections_refused_total", "Connections beyond the limit.", lambda: counters.turned_away
        )
        counter("magnetar_kafka_connections_broken_total", "Clients that broke the protocol.", lambda: counters.broken)
        counter("magnetar_kafka_connections_silent_total", "Clients that went silent.", lambda: counters.timed_out)
        counter("magnetar_kafka_received_bytes_total", "Bytes received from clients.", lambda: counters.received_bytes)
        counter("magnetar_kafka_sent_bytes_total", "Bytes sent to clients.", lambda: counters.sent_bytes)

    @property
    def connections(self) -> int:
        return len(self._sessions)

    def accept(self) -> Connection:
        """Makes our end of a new connection."""
        assert self._shared is not None, "start first"
        config = self.config
        connection = Connection(
            self.receiving,
            self.counters,
            unsent_bytes_max=config.unsent_bytes_max,
            idle_s=config.connection_idle_ms / 1000,
        )
        session = Session(self._shared, connection, self._on_ended)
        connection.attach(session)
        if len(self._sessions) >= config.connections_max:
            self.counters.turned_away += 1
            asyncio.get_running_loop().call_soon(connection.close)
        self._sessions[session] = None
        return connection

    def _on_ended(self, session: Session) -> None:
        self._sessions.pop(session, None)
        self.memory.forget(session)
        session.release()

    # --- ending -------------------------------------------------------------------------------------------------------

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def aclose(self) -> None:
        self.stop_listening()
        for session in list(self._sessions):
            session.connection.close()
        await asyncio.sleep(0)  # What was sent last leaves in this turn.
        for session in list(self._sessions):
            session.connection.abort()
        await asyncio.sleep(0)  # Connections learn of their end in the next turn.
        if self._shared is not None:
            self._shared.coordinators.close()
            self._shared.partitions.close()
        self.receiving.close()
