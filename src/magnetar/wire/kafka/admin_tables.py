"""The fields of the requests that administrate topics and groups, in the versions of Kafka 4.3."""

from __future__ import annotations

from typing import Final

from magnetar.wire.kafka.codec import BOOL, BYTES, INT8, INT16, INT32, INT64, STRING, UUID16, Api, F

CREATE_TOPICS: Final = Api(
    19,
    "CreateTopics",
    versions=(2, 7),
    flexible=5,
    request=[
        F(
            "topics",
            [
                F("name", STRING),
                F("num_partitions", INT32),
                F("replication_factor", INT16),
                F(
                    "assignments",
                    [
                        F("partition_index", INT32),
                        F("broker_ids", [INT32]),
                    ],
                ),
                F(
                    "configs",
                    [
                        F("name", STRING),
                        F("value", STRING, null=0),
                    ],
                ),
            ],
        ),
        F("timeout_ms", INT32, default=60000),
        F("validate_only", BOOL),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F(
            "topics",
            [
                F("name", STRING),
                F("topic_id", UUID16, since=7),
                F("error_code", INT16),
                F("error_message", STRING, null=0),
                F("topic_config_error_code", INT16, since=5, tag=0),
                F("num_partitions", INT32, since=5, default=-1),
                F("replication_factor", INT16, since=5, default=-1),
                F(
                    "configs",
                    [
                        F("name", STRING, since=5),
                        F("value", STRING, since=5, null=5),
                        F("read_only", BOOL, since=5),
                        F("config_source", INT8, since=5, default=-1),
                        F("is_sensitive", BOOL, since=5),
                    ],
                    since=5,
                    null=5,
                ),
            ],
        ),
    ],
)

CREATE_PARTITIONS: Final = Api(
    37,
    "CreatePartitions",
    versions=(0, 3),
    flexible=2,
    request=[
        F(
            "topics",
            [
                F("name", STRING),
                F("count", INT32),
                F(
                    "assignments",
                    [
                        F("broker_ids", [INT32]),
                    ],
                    null=0,
                ),
            ],
        ),
        F("timeout_ms", INT32),
        F("validate_only", BOOL),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F(
            "results",
            [
                F("name", STRING),
                F("error_code", INT16),
                F("error_message", STRING, null=0, default=None),
            ],
        ),
    ],
)

DESCRIBE_GROUPS: Final = Api(
    15,
    "DescribeGroups",
    versions=(0, 6),
    flexible=5,
    request=[
        F("groups", [STRING]),
        F("include_authorized_operations", BOOL, since=3),
    ],
    response=[
        F("throttle_time_ms", INT32, since=1),
        F(
            "groups",
            [
                F("error_code", INT16),
                F("error_message", STRING, since=6, null=6, default=None),
                F("group_id", STRING),
                F("group_state", STRING),
                F("protocol_type", STRING),
                F("protocol_data", STRING),
                F(
                    "members",
                    [
                        F("member_id", STRING),
                        F("group_instance_id", STRING, since=4, null=4, default=None),
                        F("client_id", STRING),
                        F("client_host", STRING),
                        F("member_metadata", BYTES),
                        F("member_assignment", BYTES),
                    ],
                ),
                F("authorized_operations", INT32, since=3, default=-2147483648),
            ],
        ),
    ],
)

LIST_GROUPS: Final = Api(
    16,
    "ListGroups",
    versions=(0, 5),
    flexible=3,
    request=[
        F("states_filter", [STRING], since=4),
        F("types_filter", [STRING], since=5),
    ],
    response=[
        F("throttle_time_ms", INT32, since=1),
        F("error_code", INT16),
        F(
            "groups",
            [
                F("group_id", STRING),
                F("protocol_type", STRING),
                F("group_state", STRING, since=4),
                F("group_type", STRING, since=5),
            ],
        ),
    ],
)

DELETE_GROUPS: Final = Api(
    42,
    "DeleteGroups",
    versions=(0, 2),
    flexible=2,
    request=[
        F("groups_names", [STRING]),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F(
            "results",
            [
                F("group_id", STRING),
                F("error_code", INT16),
            ],
        ),
    ],
)

OFFSET_DELETE: Final = Api(
    47,
    "OffsetDelete",
    versions=(0, 0),
    flexible=None,
    request=[
        F("group_id", STRING),
        F(
            "topics",
            [
                F("name", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                    ],
                ),
            ],
        ),
    ],
    response=[
        F("error_code", INT16),
        F("throttle_time_ms", INT32),
        F(
            "topics",
            [
                F("name", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                        F("error_code", INT16),
                    ],
                ),
            ],
        ),
    ],
)

DELETE_TOPICS: Final = Api(
    20,
    "DeleteTopics",
    versions=(1, 5),
    flexible=4,
    request=[
        F("topic_names", [STRING]),
        F("timeout_ms", INT32),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F(
            "responses",
            [
                F("name", STRING),
                F("error_code", INT16),
                F("error_message", STRING, since=5, null=5, default=None),
            ],
        ),
    ],
)

DELETE_RECORDS: Final = Api(
    21,
    "DeleteRecords",
    versions=(0, 2),
    flexible=2,
    request=[
        F(
            "topics",
            [
                F("name", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                        F("offset", INT64),
                    ],
                ),
            ],
        ),
        F("timeout_ms", INT32),
    ],
    response=[
        F("throttle_time_ms", INT32),
        F(
            "topics",
            [
                F("name", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                        F("low_watermark", INT64, default=-1),
                        F("error_code", INT16),
                    ],
                ),
            ],
        ),
    ],
)
