"""Reads and writes topics for the pipelines: through format("magnetar"), with the options of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.client.topics import full_name, partition_name
from magnetar.spark import loop_thread
from magnetar.spark.cluster import Cluster, ClusterOptions, cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SECONDS_MAX: Final = 60.0


def source_options(options: ClusterOptions, topic: str) -> dict[str, str]:
    return {"serviceUrl": options.service_url, "adminUrl": options.admin_url, "topic": topic}


def read_topic(spark: SparkSession, options: ClusterOptions, topic: str, **more: str) -> DataFrame:
    """Reads the present messages, headers included."""
    chosen = source_options(options, full_name(topic)) | {"includeHeaders": "true"} | more
    return spark.read.format("magnetar").options(**chosen).load()


def require_topic(options: ClusterOptions, topic: str) -> None:
    """Raises TopicNotFoundError before anything is begun, or BrokerUnavailableError if no broker answers."""
    loop_thread.run(_look(cluster(options), topic), _SECONDS_MAX)


async def _look(found: Cluster, topic: str) -> None:
    partitions = await found.partitions(topic)
    await found.segments(partition_name(topic, 0) if partitions else topic)


def write_topic(messages: DataFrame, options: ClusterOptions, topic: str, job_id: str) -> None:
    """Writes all rows or none, once for this id."""
    chosen = source_options(options, full_name(topic)) | ({"jobId": job_id} if job_id else {})
    messages.write.format("magnetar").options(**chosen).mode("append").save()
