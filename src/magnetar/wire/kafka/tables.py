"""The fields of the requests that produce, consume and look up topics, in the versions of Kafka 4.3.

Facts, as data: codec.py makes functions of them. Transactions' requests are not here: they are not served.
Produce is served from version 3 on, although the list that clients get begins with 0 (broker/kafka/api_versions.py).
Fetch and Produce end before the versions that name topics by their ids, which this server does not give; ListOffsets
ends before the version that asks for the greatest timestamp.
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.kafka.codec import BOOL, INT8, INT16, INT32, INT64, RECORDS, STRING, UUID16, Api, F

PRODUCE: Final = Api(
    0,
    "Produce",
    versions=(3, 12),
    flexible=9,
    request=[
        F("transactional_id", STRING, null=3, default=None),
        F("acks", INT16),
        F("timeout_ms", INT32),
        F(
            "topic_data",
            [
                F("name", STRING),
                F(
                    "partition_data",
                    [
                        F("index", INT32),
                        F("records", RECORDS, null=0),
                    ],
                ),
            ],
        ),
    ],
    response=[
        F(
            "responses",
            [
                F("name", STRING),
                F(
                    "partition_responses",
                    [
                        F("index", INT32),
                        F("error_code", INT16),
                        F("base_offset", INT64),
                        F("log_append_time_ms", INT64, default=-1),
                        F("log_start_offset", INT64, since=5, default=-1),
                        F(
                            "record_errors",
                            [
                                F("batch_index", INT32, since=8),
                                F("batch_index_error_message", STRING, since=8, null=8, default=None),
                            ],
                            since=8,
                        ),
                        F("error_message", STRING, since=8, null=8, default=None),
                        F(
                            "current_leader",
                            (
                                F("leader_id", INT32, since=10, default=-1),
                                F("leader_epoch", INT32, since=10, default=-1),
                            ),
                            since=10,
                            tag=0,
                        ),
                    ],
                ),
            ],
        ),
        F("throttle_time_ms", INT32),
        F(
            "node_endpoints",
            [
                F("node_id", INT32, since=10),
                F("host", STRING, since=10),
                F("port", INT32, since=10),
                F("rack", STRING, since=10, null=10, default=None),
            ],
            since=10,
            tag=0,
        ),
    ],
)

FETCH: Final = Api(
    1,
    "Fetch",
    versions=(4, 12),
    flexible=12,
    request=[
        F("cluster_id", STRING, since=12, null=12, tag=0, default=None),
        F("replica_id", INT32, default=-1),
        F("max_wait_ms", INT32),
        F("min_bytes", INT32),
        F("max_bytes", INT32, default=2147483647),
        F("isolation_level", INT8),
        F("session_id", INT32, since=7),
        F("session_epoch", INT32, since=7, default=-1),
        F(
            "topics",
            [
                F("topic", STRING),
                F(
                    "partitions",
                    [
                        F("partition", INT32),
                        F("current_leader_epoch", INT32, since=9, default=-1),
                        F("fetch_offset", INT64),
                        F("last_fetched_epoch", INT32, since=12, default=-1),
                        F("log_start_offset", INT64, since=5, default=-1),
                        F("partition_max_bytes", INT32),
                    ],
                ),
            ],
        ),
        F(
            "forgotten_topics_data",
            [
                F("topic", STRING, since=7),
                F("partitions", [INT32], since=7),
            ],
            since=7,
        ),
        F("rack_id", STRING, since=11),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F("error_code", INT16, since=7),
        F("session_id", INT32, since=7),
        F(
            "responses",
            [
                F("topic", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                        F("error_code", INT16),
                        F("high_watermark", INT64),
                        F("last_stable_offset", INT64, default=-1),
                        F("log_start_offset", INT64, since=5, default=-1),
                        F(
                            "diverging_epoch",
                            (
                                F("epoch", INT32, since=12, default=-1),
                                F("end_offset", INT64, since=12, default=-1),
                            ),
                            since=12,
                            tag=0,
                        ),
                        F(
                            "current_leader",
                            (
                                F("leader_id", INT32, since=12, default=-1),
                                F("leader_epoch", INT32, since=12, default=-1),
                            ),
                            since=12,
                            tag=1,
                        ),
                        F(
                            "snapshot_id",
                            (
                                F("end_offset", INT64, default=-1),
                                F("epoch", INT32, default=-1),
                            ),
                            since=12,
                            tag=2,
                        ),
                        F(
                            "aborted_transactions",
                            [
                                F("producer_id", INT64),
                                F("first_offset", INT64),
                            ],
                            null=4,
                        ),
                        F("preferred_read_replica", INT32, since=11, default=-1),
                        F("records", RECORDS, null=0),
                    ],
                ),
            ],
        ),
    ],
)

LIST_OFFSETS: Final = Api(
    2,
    "ListOffsets",
    versions=(1, 6),
    flexible=6,
    request=[
        F("replica_id", INT32),
        F("isolation_level", INT8, since=2),
        F(
            "topics",
            [
                F("name", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                        F("current_leader_epoch", INT32, since=4, default=-1),
                        F("timestamp", INT64),
                    ],
                ),
            ],
        ),
    ],
    response=[
        F("throttle_time_ms", INT32, since=2),
        F(
            "topics",
            [
                F("name", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                        F("error_code", INT16),
                        F("timestamp", INT64, default=-1),
                        F("offset", INT64, default=-1),
                        F("leader_epoch", INT32, since=4, default=-1),
                    ],
                ),
            ],
        ),
    ],
)

METADATA: Final = Api(
    3,
    "Metadata",
    versions=(0, 13),
    flexible=9,
    request=[
        F(
            "topics",
            [
                F("topic_id", UUID16, since=10),
                F("name", STRING, null=10),
            ],
            null=1,
        ),
        F("allow_auto_topic_creation", BOOL, since=4, default=True),
        F("include_cluster_authorized_operations", BOOL, since=8, until=10),
        F("include_topic_authorized_operations", BOOL, since=8),
    ],
    response=[
        F("throttle_time_ms", INT32, since=3),
        F(
            "brokers",
            [
                F("node_id", INT32),
                F("host", STRING),
                F("port", INT32),
                F("rack", STRING, since=1, null=1, default=None),
            ],
        ),
        F("cluster_id", STRING, since=2, null=2, default=None),
        F("controller_id", INT32, since=1, default=-1),
        F(
            "topics",
            [
                F("error_code", INT16),
                F("name", STRING, null=12),
                F("topic_id", UUID16, since=10),
                F("is_internal", BOOL, since=1),
                F(
                    "partitions",
                    [
                        F("error_code", INT16),
                        F("partition_index", INT32),
                        F("leader_id", INT32),
                        F("leader_epoch", INT32, since=7, default=-1),
                        F("replica_nodes", [INT32]),
                        F("isr_nodes", [INT32]),
                        F("offline_replicas", [INT32], since=5),
                    ],
                ),
                F("topic_authorized_operations", INT32, since=8, default=-2147483648),
            ],
        ),
        F("cluster_authorized_operations", INT32, since=8, until=10, default=-2147483648),
        F("error_code", INT16, since=13),
    ],
)

API_VERSIONS: Final = Api(
    18,
    "ApiVersions",
    versions=(0, 4),
    flexible=3,
    request=[
        F("client_software_name", STRING, since=3),
        F("client_software_version", STRING, since=3),
    ],
    response=[
        F("error_code", INT16),
        F(
            "api_keys",
            [
                F("api_key", INT16),
                F("min_version", INT16),
                F("max_version", INT16),
            ],
        ),
        F("throttle_time_ms", INT32, since=1),
        F(
            "supported_features",
            [
                F("name", STRING, since=3),
                F("min_version", INT16, since=3),
                F("max_version", INT16, since=3),
            ],
            since=3,
            tag=0,
        ),
        F("finalized_features_epoch", INT64, since=3, tag=1, default=-1),
        F(
            "finalized_features",
            [
                F("name", STRING, since=3),
                F("max_version_level", INT16, since=3),
                F("min_version_level", INT16, since=3),
            ],
            since=3,
            tag=2,
        ),
        F("zk_migration_ready", BOOL, since=3, tag=3),
    ],
)

INIT_PRODUCER_ID: Final = Api(
    22,
    "InitProducerId",
    versions=(0, 5),
    flexible=2,
    request=[
        F("transactional_id", STRING, null=0),
        F("transaction_timeout_ms", INT32),
        F("producer_id", INT64, since=3, default=-1),
        F("producer_epoch", INT16, since=3, default=-1),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F("error_code", INT16),
        F("producer_id", INT64, default=-1),
        F("producer_epoch", INT16),
    ],
)
