"""The fields of the requests of consumer groups, and those of the records in which a coordinator keeps their state.

The records are Kafka's own, with a version before their fields, so that Kafka's tools can show them. OffsetCommit and
OffsetFetch end before the versions that name topics by their ids, which this server does not give.
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.kafka.codec import BOOL, BYTES, INT8, INT16, INT32, INT64, STRING, Api, F

FIND_COORDINATOR: Final = Api(
    10,
    "FindCoordinator",
    versions=(0, 6),
    flexible=3,
    request=[
        F("key", STRING, until=3),
        F("key_type", INT8, since=1),
        F("coordinator_keys", [STRING], since=4),
    ],
    response=[
        F("throttle_time_ms", INT32, since=1),
        F("error_code", INT16, until=3),
        F("error_message", STRING, since=1, until=3, null=1),
        F("node_id", INT32, until=3),
        F("host", STRING, until=3),
        F("port", INT32, until=3),
        F(
            "coordinators",
            [
                F("key", STRING, since=4),
                F("node_id", INT32, since=4),
                F("host", STRING, since=4),
                F("port", INT32, since=4),
                F("error_code", INT16, since=4),
                F("error_message", STRING, since=4, null=4),
            ],
            since=4,
        ),
    ],
)

OFFSET_COMMIT: Final = Api(
    8,
    "OffsetCommit",
    versions=(2, 9),
    flexible=8,
    request=[
        F("group_id", STRING),
        F("generation_id_or_member_epoch", INT32, default=-1),
        F("member_id", STRING),
        F("group_instance_id", STRING, since=7, null=7, default=None),
        F("retention_time_ms", INT64, until=4, default=-1),
        F(
            "topics",
            [
                F("name", STRING),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32),
                        F("committed_offset", INT64),
                        F("committed_leader_epoch", INT32, since=6, default=-1),
                        F("committed_metadata", STRING, null=0),
                    ],
                ),
            ],
        ),
    ],
    response=[
        F("throttle_time_ms", INT32, since=3),
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

OFFSET_FETCH: Final = Api(
    9,
    "OffsetFetch",
    versions=(1, 9),
    flexible=6,
    request=[
        F("group_id", STRING, until=7),
        F(
            "topics",
            [
                F("name", STRING, until=7),
                F("partition_indexes", [INT32], until=7),
            ],
            until=7,
            null=2,
        ),
        F(
            "groups",
            [
                F("group_id", STRING, since=8),
                F("member_id", STRING, since=9, null=9, default=None),
                F("member_epoch", INT32, since=9, default=-1),
                F(
                    "topics",
                    [
                        F("name", STRING, since=8),
                        F("partition_indexes", [INT32], since=8),
                    ],
                    since=8,
                    null=8,
                ),
            ],
            since=8,
        ),
        F("require_stable", BOOL, since=7),
    ],
    response=[
        F("throttle_time_ms", INT32, since=3),
        F(
            "topics",
            [
                F("name", STRING, until=7),
                F(
                    "partitions",
                    [
                        F("partition_index", INT32, until=7),
                        F("committed_offset", INT64, until=7),
                        F("committed_leader_epoch", INT32, since=5, until=7, default=-1),
                        F("metadata", STRING, until=7, null=0),
                        F("error_code", INT16, until=7),
                    ],
                    until=7,
                ),
            ],
            until=7,
        ),
        F("error_code", INT16, since=2, until=7),
        F(
            "groups",
            [
                F("group_id", STRING, since=8),
                F(
                    "topics",
                    [
                        F("name", STRING, since=8),
                        F(
                            "partitions",
                            [
                                F("partition_index", INT32, since=8),
                                F("committed_offset", INT64, since=8),
                                F("committed_leader_epoch", INT32, since=8, default=-1),
                                F("metadata", STRING, since=8, null=8),
                                F("error_code", INT16, since=8),
                            ],
                            since=8,
                        ),
                    ],
                    since=8,
                ),
                F("error_code", INT16, since=8),
            ],
            since=8,
        ),
    ],
)

JOIN_GROUP: Final = Api(
    11,
    "JoinGroup",
    versions=(0, 9),
    flexible=6,
    request=[
        F("group_id", STRING),
        F("session_timeout_ms", INT32),
        F("rebalance_timeout_ms", INT32, since=1, default=-1),
        F("member_id", STRING),
        F("group_instance_id", STRING, since=5, null=5, default=None),
        F("protocol_type", STRING),
        F(
            "protocols",
            [
                F("name", STRING),
                F("metadata", BYTES),
            ],
        ),
        F("reason", STRING, since=8, null=8, default=None),
    ],
    response=[
        F("throttle_time_ms", INT32, since=2),
        F("error_code", INT16),
        F("generation_id", INT32, default=-1),
        F("protocol_type", STRING, since=7, null=7, default=None),
        F("protocol_name", STRING, null=7),
        F("leader", STRING),
        F("skip_assignment", BOOL, since=9),
        F("member_id", STRING),
        F(
            "members",
            [
                F("member_id", STRING),
                F("group_instance_id", STRING, since=5, null=5, default=None),
                F("metadata", BYTES),
            ],
        ),
    ],
)

HEARTBEAT: Final = Api(
    12,
    "Heartbeat",
    versions=(0, 4),
    flexible=4,
    request=[
        F("group_id", STRING),
        F("generation_id", INT32),
        F("member_id", STRING),
        F("group_instance_id", STRING, since=3, null=3, default=None),
    ],
    response=[
        F("throttle_time_ms", INT32, since=1),
        F("error_code", INT16),
    ],
)

LEAVE_GROUP: Final = Api(
    13,
    "LeaveGroup",
    versions=(0, 5),
    flexible=4,
    request=[
        F("group_id", STRING),
        F("member_id", STRING, until=2),
        F(
            "members",
            [
                F("member_id", STRING, since=3),
                F("group_instance_id", STRING, since=3, null=3, default=None),
                F("reason", STRING, since=5, null=5, default=None),
            ],
            since=3,
        ),
    ],
    response=[
        F("throttle_time_ms", INT32, since=1),
        F("error_code", INT16),
        F(
            "members",
            [
                F("member_id", STRING, since=3),
                F("group_instance_id", STRING, since=3, null=3),
                F("error_code", INT16, since=3),
            ],
            since=3,
        ),
    ],
)

SYNC_GROUP: Final = Api(
    14,
    "SyncGroup",
    versions=(0, 5),
    flexible=4,
    request=[
        F("group_id", STRING),
        F("generation_id", INT32),
        F("member_id", STRING),
        F("group_instance_id", STRING, since=3, null=3, default=None),
        F("protocol_type", STRING, since=5, null=5, default=None),
        F("protocol_name", STRING, since=5, null=5, default=None),
        F(
            "assignments",
            [
                F("member_id", STRING),
                F("assignment", BYTES),
            ],
        ),
    ],
    response=[
        F("throttle_time_ms", INT32, since=1),
        F("error_code", INT16),
        F("protocol_type", STRING, since=5, null=5, default=None),
        F("protocol_name", STRING, since=5, null=5, default=None),
        F("assignment", BYTES),
    ],
)


# --- records: the key is the request, the value the answer -----------------------------------------------------------

OFFSET_RECORD: Final = Api(
    1,
    "OffsetCommit record",
    versions=(0, 0),
    flexible=None,
    request=[
        F("version", INT16),
        F("group", STRING),
        F("topic", STRING),
        F("partition", INT32),
    ],
    response=[
        F("version", INT16),
        F("offset", INT64),
        F("leader_epoch", INT32, default=-1),
        F("metadata", STRING),
        F("commit_timestamp", INT64),
    ],
)

GROUP_RECORD: Final = Api(
    2,
    "GroupMetadata record",
    versions=(0, 0),
    flexible=None,
    request=[
        F("version", INT16),
        F("group", STRING),
    ],
    response=[
        F("version", INT16),
        F("protocol_type", STRING),
        F("generation", INT32),
        F("protocol", STRING, null=0),
        F("leader", STRING, null=0),
        F("current_state_timestamp", INT64),
        F(
            "members",
            [
                F("member_id", STRING),
                F("group_instance_id", STRING, null=0),
                F("client_id", STRING),
                F("client_host", STRING),
                F("rebalance_timeout", INT32),
                F("session_timeout", INT32),
                F("subscription", BYTES),
                F("assignment", BYTES),
            ],
        ),
    ],
)

CONSUMER: Final = "consumer"
"""The type of the protocol of groups whose members subscribe to topics."""

MEMBER_DATA: Final = Api(
    0,
    "consumer's member record",
    versions=(0, 0),
    flexible=None,
    request=[  # What a member sends when it joins.
        F("version", INT16),
        F("topics", [STRING]),
        F("user_data", BYTES, null=0),
    ],
    response=[  # What it is assigned.
        F("version", INT16),
        F(
            "topics",
            [
                F("topic", STRING),
                F("partitions", [INT32]),
            ],
        ),
        F("user_data", BYTES, null=0),
    ],
)
"""What consumers of Kafka tell each other through their coordinator, which need not know it. Later versions have more
fields at the end."""
