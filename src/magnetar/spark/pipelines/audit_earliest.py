"""The first message that a topic still has: what was acknowledged before it has expired, and is not lost.

Asked:     of the broker, before the topic is read, so that what expires meanwhile is the only thing that can look lost.
"""

from __future__ import annotations

from typing import Final

from magnetar.client.topics import partition_name
from magnetar.spark.cluster import Cluster, ClusterOptions, cluster
from magnetar.spark.loop_thread import run
from magnetar.spark.pipelines.audit_options import AuditOptions

_TIMEOUT_S: Final = 60.0
_UNPARTITIONED: Final = -1  # As message ids have it.


def earliest_messages(options: AuditOptions) -> dict[tuple[str, int], tuple[int, int]]:
    """By topic and partition: ledger and entry."""
    found = cluster(ClusterOptions.of(options.service_url or None, options.admin_url or None))
    return {
        (topic, partition): position
        for topic in options.full_topics
        for partition, position in run(_earliest(found, topic), timeout=_TIMEOUT_S).items()
    }


async def _earliest(found: Cluster, topic: str) -> dict[int, tuple[int, int]]:
    count = await found.partitions(topic)
    names = {number: partition_name(topic, number) for number in range(count)} or {_UNPARTITIONED: topic}
    positions = {partition: (await found.segments(name)).earliest for partition, name in names.items()}
    return {partition: (earliest.ledger_id, earliest.entry_id) for partition, earliest in positions.items()}
