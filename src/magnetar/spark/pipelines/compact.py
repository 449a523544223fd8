"""Compact: the last message of each key, as a Parquet snapshot or as the content of another topic.

    result = run(spark, CompactOptions(cluster=ClusterOptions.of(), topic="prices", to_path="/snapshots/prices"))

Order:     the last one is by index within a partition. If a key is in several partitions, as after partitions were
           added, it is the later one by publish time.
Invariant: a key whose last message is empty is deleted, as in Pulsar's own compaction. Messages without a key are left
           out, unless an option keeps them.
Limits:    a topic in place is compacted by the broker, without Spark: `magnetar topics compact`, or `pipeline compact
           --in-place`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from magnetar.client.topics import full_name
from magnetar.errors import ArgumentError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines.endpoints import read_topic, require_topic, write_topic
from magnetar.spark.pipelines.jobs import SILENT, Reporter, tasks_shown, translated
from magnetar.spark.writing.writers import is_job_done


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Writes to one of both: a topic or a path."""

    cluster: ClusterOptions
    topic: str
    to_topic: str = ""
    to_path: str = ""
    job_id: str = ""
    """For a topic: idempotency key. Running a job again with the same id writes nothing twice."""
    keep_unkeyed: bool = False
    overwrite: bool = False
    """For a path: existing files are replaced."""

    def __post_init__(self) -> None:
        if bool(self.to_topic) == bool(self.to_path):
            raise ArgumentError("compact: give a topic or a path to write to")
        if self.to_topic and full_name(self.to_topic) == full_name(self.topic):
            raise ArgumentError(f"compact: {self.topic} cannot be written into itself; use --in-place")


@dataclass(frozen=True, slots=True)
class CompactResult:
    topic: str
    to: str
    messages: int
    was_done: bool = False
    """An earlier run of the same job id has written it: this one wrote nothing."""

    def document(self) -> dict[str, Any]:
        return {"topic": self.topic, "to": self.to, "messages": self.messages, "alreadyDone": self.was_done}


def run(spark: SparkSession, options: CompactOptions, reporter: Reporter = SILENT) -> CompactResult:
    topic = full_name(options.topic)
    require_topic(options.cluster, topic)
    to = full_name(options.to_topic) if options.to_topic else options.to_path
    if options.to_topic and options.job_id and is_job_done(options.cluster, options.job_id, to):
        return CompactResult(topic, to, 0, was_done=True)
    with translated(f"{topic} could not be compacted"), tasks_shown(spark, reporter, "compacting"):
        last = last_of_each_key(read_topic(spark, options.cluster, topic), keep_unkeyed=options.keep_unkeyed)
        if options.to_path:
            mode = "overwrite" if options.overwrite else "errorifexists"
            last.write.mode(mode).option("compression", "zstd").parquet(options.to_path)
            return CompactResult(topic, to, spark.read.parquet(options.to_path).count())
        kept = last.persist()  # The same rows are counted and written.
        try:
            count = kept.count()
            parts = kept.orderBy("partition", "index").select("value", "key", "event_time", "properties")
            write_topic(parts, options.cluster, options.to_topic, options.job_id)
        finally:
            kept.unpersist()
    return CompactResult(topic, to, count)


def last_of_each_key(messages: DataFrame, *, keep_unkeyed: bool = False) -> DataFrame:
    """Returns rows with the same columns."""
    keyed = messages.where(f.col("key").isNotNull()).withColumn("message", f.struct(*messages.columns))
    of_partition = keyed.groupBy("key", "partition").agg(f.max_by("message", "index").alias("message"))
    when = f.struct("message.publish_time", "message.partition")
    last = of_partition.groupBy("key").agg(f.max_by("message", when).alias("message")).select("message.*")
    kept = last.where(f.length("value") > 0)  # Null or empty: deleted.
    return kept.unionByName(messages.where(f.col("key").isNull())) if keep_unkeyed else kept
