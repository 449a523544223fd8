"""The fields of the requests about a cluster and about configurations, in the versions of Kafka 4.3."""

from __future__ import annotations

from typing import Final

from magnetar.wire.kafka.codec import BOOL, INT8, INT16, INT32, INT64, STRING, Api, F

DESCRIBE_CONFIGS: Final = Api(
    32,
    "DescribeConfigs",
    versions=(1, 4),
    flexible=4,
    request=[
        F(
            "resources",
            [
                F("resource_type", INT8),
                F("resource_name", STRING),
                F("configuration_keys", [STRING], null=0),
            ],
        ),
        F("include_synonyms", BOOL),
        F("include_documentation", BOOL, since=3),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F(
            "results",
            [
                F("error_code", INT16),
                F("error_message", STRING, null=0, default=None),
                F("resource_type", INT8),
                F("resource_name", STRING),
                F(
                    "configs",
                    [
                        F("name", STRING),
                        F("value", STRING, null=0),
                        F("read_only", BOOL),
                        F("config_source", INT8, default=-1),
                        F("is_sensitive", BOOL),
                        F(
                            "synonyms",
                            [
                                F("name", STRING),
                                F("value", STRING, null=0),
                                F("source", INT8),
                            ],
                        ),
                        F("config_type", INT8, since=3),
                        F("documentation", STRING, since=3, null=3, default=None),
                    ],
                ),
            ],
        ),
    ],
)

_ALTERED: Final = [
    F("throttle_time_ms", INT32),
    F(
        "responses",
        [
            F("error_code", INT16),
            F("error_message", STRING, null=0, default=None),
            F("resource_type", INT8),
            F("resource_name", STRING),
        ],
    ),
]

ALTER_CONFIGS: Final = Api(
    33,
    "AlterConfigs",
    versions=(0, 2),
    flexible=2,
    request=[
        F(
            "resources",
            [
                F("resource_type", INT8),
                F("resource_name", STRING),
                F(
                    "configs",
                    [
                        F("name", STRING),
                        F("value", STRING, null=0),
                    ],
                ),
            ],
        ),
        F("validate_only", BOOL),
    ],
    response=_ALTERED,
)

INCREMENTAL_ALTER_CONFIGS: Final = Api(
    44,
    "IncrementalAlterConfigs",
    versions=(0, 1),
    flexible=1,
    request=[
        F(
            "resources",
            [
                F("resource_type", INT8),
                F("resource_name", STRING),
                F(
                    "configs",
                    [
                        F("name", STRING),
                        F("config_operation", INT8),
                        F("value", STRING, null=0),
                    ],
                ),
            ],
        ),
        F("validate_only", BOOL),
    ],
    response=_ALTERED,
)

DESCRIBE_LOG_DIRS: Final = Api(
    35,
    "DescribeLogDirs",
    versions=(1, 5),
    flexible=2,
    request=[
        F(
            "topics",
            [
                F("topic", STRING),
                F("partitions", [INT32]),
            ],
            null=0,
        ),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F("error_code", INT16, since=3),
        F(
            "results",
            [
                F("error_code", INT16),
                F("log_dir", STRING),
                F(
                    "topics",
                    [
                        F("name", STRING),
                        F(
                            "partitions",
                            [
                                F("partition_index", INT32),
                                F("partition_size", INT64),
                                F("offset_lag", INT64),
                                F("is_future_key", BOOL),
                            ],
                        ),
                    ],
                ),
                F("total_bytes", INT64, since=4, default=-1),
                F("usable_bytes", INT64, since=4, default=-1),
                F("is_cordoned", BOOL, since=5),
            ],
        ),
    ],
)

DESCRIBE_CLUSTER: Final = Api(
    60,
    "DescribeCluster",
    versions=(0, 2),
    flexible=0,
    request=[
        F("include_cluster_authorized_operations", BOOL),
        F("endpoint_type", INT8, since=1, default=1),
        F("include_fenced_brokers", BOOL, since=2),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F("error_code", INT16),
        F("error_message", STRING, null=0, default=None),
        F("endpoint_type", INT8, since=1, default=1),
        F("cluster_id", STRING),
        F("controller_id", INT32, default=-1),
        F(
            "brokers",
            [
                F("broker_id", INT32),
                F("host", STRING),
                F("port", INT32),
                F("rack", STRING, null=0, default=None),
                F("is_fenced", BOOL, since=2),
            ],
        ),
        F("cluster_authorized_operations", INT32, default=-(2**31)),
    ],
)
