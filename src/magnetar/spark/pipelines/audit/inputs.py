"""Reads logs, topics and archives as facts: rows of one shape, each with one fact about one message.

Format:    a line of a log is a fact. docs/audit.md has the format; magnetar/testing/audit_log.py writes it. A message
           of a topic or an archive is a fact. A place is one form for all: `ledger:entry:batch`, or `partition:offset`
           of Kafka. A message id without a position, as a broker answers for a duplicate that it did not store, has no
           place.
Order:     the broker is asked for the first message of a topic before the topic is read: messages acknowledged before
           it have expired, and are not lost. Only messages that expire during the audit can look lost.
Failure:   ANSI mode would end the job at the first malformed number; `try_cast` makes it null.
Read next: verdicts.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  The name that every Spark programmer knows it by.

from magnetar.client.topics import partition_name
from magnetar.errors import AuditInputError
from magnetar.spark.cluster import Cluster, ClusterOptions, cluster
from magnetar.spark.loop_thread import run
from magnetar.spark.pipelines.audit.values import DEFAULT_SERVICE_URL, HEADER, AuditOptions, Identity

EVENTS: Final = ("sent", "answered", "received")
EVENT_SCHEMA: Final = """
    event STRING, client STRING, n BIGINT, topic STRING, producer STRING, sequence BIGINT, key STRING, time BIGINT,
    crc32 BIGINT, outcome STRING, error STRING, message_id STRING, subscription STRING, published BIGINT,
    redelivery_count INT, _corrupt_record STRING
"""
_FACT_SCHEMA: Final = """
    side STRING, topic STRING, partition INT, producer STRING, sequence BIGINT, key STRING, message_id STRING,
    place STRING, index BIGINT, time_us BIGINT, published_us BIGINT, crc32 BIGINT, outcome STRING, error STRING,
    client STRING, n BIGINT, subscription STRING, redelivery_count INT
"""
FACT_COLUMNS: Final[dict[str, str]] = dict(each.split() for each in _FACT_SCHEMA.split(","))
"""Names and types. `side` is sent, answered, stored or received."""
_TAKEN_AS_THEY_ARE: Final = (
    *("producer", "sequence", "key", "message_id", "crc32", "outcome", "error", "client", "n"),
)
_COLUMNS: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "message_id": "STRING",
    "index": "BIGINT",
    "publish_time": "TIMESTAMP",
    "producer": "STRING",
    "sequence_id": "BIGINT",
}
_PROPERTIES: Final = {"properties": "MAP<STRING, STRING>"}


def read_logs(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Returns every line, also unreadable ones: their event is null."""
    try:
        lines = spark.read.schema(EVENT_SCHEMA).option("mode", "PERMISSIVE").json(list(paths))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise AuditInputError(f"no log was found: {_first_line(error)}; give files, directories or globs") from error
    readable = F.col("event").isin(*EVENTS) & F.col("topic").isNotNull() & F.col("time").isNotNull()
    return lines.withColumn("event", F.when(F.col("_corrupt_record").isNull() & readable, F.col("event")))


def read_stored(spark: SparkSession, options: AuditOptions) -> DataFrame | None:
    """Returns None when the audit is of logs alone."""
    if options.topics:
        return stored_facts(_read_topics(spark, options), options.identity)
    if options.archive:
        return stored_facts(_read_archive(spark, options.archive, options.identity), options.identity)
    return None


def _read_topics(spark: SparkSession, options: AuditOptions) -> DataFrame:
    from magnetar.spark import register

    register(spark)
    by_header = options.identity is Identity.HEADER
    columns = _COLUMNS | (_PROPERTIES if by_header else {})
    settings = {"serviceUrl": options.service_url or DEFAULT_SERVICE_URL, "topics": ",".join(options.topics)}
    if options.admin_url:
        settings["adminUrl"] = options.admin_url
    if by_header:
        settings["includeHeaders"] = "true"
    wanted = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    return spark.read.format("magnetar").schema(wanted).options(**settings, **dict(options.read_options)).load()


def _read_archive(spark: SparkSession, path: str, identity: Identity) -> DataFrame:
    try:
        found = spark.read.parquet(path)
    except AnalysisException as error:
        raise AuditInputError(f"no archive can be read at {path}: {_first_line(error)}") from error
    needed = _COLUMNS | (_PROPERTIES if identity is Identity.HEADER else {})
    missing = [name for name in needed if name not in found.columns]
    if missing:
        raise AuditInputError(
            f"the archive {path} has no column {', '.join(missing)}; an audit needs {', '.join(needed)}, which "
            "`magnetar pipeline archive` writes"
        )
    return found


def stored_facts(found: DataFrame, identity: Identity) -> DataFrame:
    """Returns the columns of format("magnetar") as the audit compares them."""
    if identity is Identity.HEADER:
        mark = F.col("properties").getItem(HEADER)  # `producer:sequence`; the name may have colons of its own.
        producer = F.nullif(F.regexp_extract(mark, _MARK, 1), F.lit(""))
        sequence = F.regexp_extract(mark, _MARK, 2).try_cast("bigint")
    else:
        producer, sequence = F.col("producer"), F.col("sequence_id")
    return _facts(
        found,
        side=F.lit("stored"),
        topic=full_topic(F.col("topic"), qualified=True),
        partition=F.coalesce("partition", partition_of(F.col("topic"))),
        producer=producer,
        sequence=sequence,
        key=F.col("key"),
        message_id=F.col("message_id"),
        place=place_of(F.col("message_id")),
        index=F.col("index"),
        published_us=F.unix_micros("publish_time"),
        crc32=F.crc32("value"),
    )


def logged_facts(lines: DataFrame, options: AuditOptions) -> DataFrame:
    return _facts(
        lines.where(F.col("event").isNotNull() & _is_audited(options)),
        side=F.col("event"),
        topic=_topic_of(options),
        partition=F.coalesce(partition_of(F.col("topic")), partition_in(F.col("message_id"))),
        place=place_of(F.col("message_id")),
        time_us=F.col("time"),
        subscription=F.coalesce("subscription", F.lit("")),
        published_us=F.col("published"),
        redelivery_count=F.coalesce("redelivery_count", F.lit(0)),
        **{name: F.col(name) for name in _TAKEN_AS_THEY_ARE},
    )


def _facts(rows: DataFrame, **columns: Column) -> DataFrame:
    """Returns the one shape of all sides; a fact that a side does not know is null."""
    nothing = F.lit(None)
    return rows.select(*(columns.get(name, nothing).cast(kind).alias(name) for name, kind in FACT_COLUMNS.items()))


@dataclass(frozen=True, slots=True)
class Lines:
    unreadable: int
    elsewhere: int
    """Lines about topics that are not audited."""
    received: int
    nameless: int
    """Received messages of which the consumer did not know the sequence."""
    subscriptions: Mapping[str, Sequence[str]]
    """By topic."""


def look_through(lines: DataFrame, options: AuditOptions) -> Lines:
    is_ours = F.col("event").isNotNull() & _is_audited(options)
    is_received = is_ours & (F.col("event") == "received")
    who = F.struct(_topic_of(options).alias("topic"), F.coalesce("subscription", F.lit("")).alias("subscription"))
    row = lines.agg(
        F.count(F.lit(1)).alias("all"),
        F.count("event").alias("readable"),
        F.count(F.when(is_ours, 1)).alias("ours"),
        F.count(F.when(is_received, 1)).alias("received"),
        F.count(F.when(is_received & F.col("sequence").isNull(), 1)).alias("nameless"),
        F.collect_set(F.when(is_received, who)).alias("who"),
    ).first()
    assert row is not None, "an aggregation without groups has one row"
    names: dict[str, list[str]] = {}
    for topic, subscription in sorted(tuple(pair) for pair in row["who"]):
        names.setdefault(topic, []).append(subscription)
    unreadable, elsewhere = row["all"] - row["readable"], row["readable"] - row["ours"]
    return Lines(unreadable, elsewhere, row["received"], row["nameless"], names)


def _topic_of(options: AuditOptions) -> Column:
    return full_topic(F.col("topic"), qualified=bool(options.topics))


def _is_audited(options: AuditOptions) -> Column:
    return _topic_of(options).isin(*options.full_topics) if options.topics else F.lit(True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


_TIMEOUT_S: Final = 60.0
_UNPARTITIONED: Final = -1  # As in message ids.


def earliest_messages(options: AuditOptions) -> dict[tuple[str, int], tuple[int, int]]:
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


_MARK: Final = r"^(.*):(\d+)$"
_PARTITION: Final = r"-partition-(\d+)$"


def full_topic(topic: Column, *, qualified: bool) -> Column:
    """Does `whole_topic` of values.py as an expression."""
    name = F.regexp_replace(topic, _PARTITION, "")
    if not qualified:
        return F.when(name.contains("://"), name).otherwise(topic)  # A topic of Kafka may have any name.
    return (
        F.when(name.contains("://"), name)
        .when(name.contains("/"), F.concat(F.lit("persistent://"), name))
        .otherwise(F.concat(F.lit("persistent://public/default/"), name))
    )


def partition_of(topic: Column) -> Column:
    number = F.regexp_extract(topic, _PARTITION, 1).try_cast("int")
    return F.when(topic.contains("://"), number)


def partition_in(message_id: Column) -> Column:
    """Takes `ledger:entry:partition:batch`, or Kafka's `partition:offset`."""
    parts = F.split(message_id, ":")
    number = F.when(F.size(parts) == 4, _part(parts, 2)).when(F.size(parts) == 2, _part(parts, 0))
    return number.try_cast("int")


def place_of(message_id: Column) -> Column:
    """Returns `ledger:entry:partition:batch` without its partition, which the ledger implies. A message outside of a
    batch counts as the first of one: clients disagree about a batch of one message."""
    parts = F.split(message_id, ":")
    batch = F.when(_part(parts, 3).try_cast("int") > 0, _part(parts, 3)).otherwise(F.lit("0"))
    entry = F.concat_ws(":", _part(parts, 0), _part(parts, 1), batch)
    return (
        F.when(message_id.startswith("-1:"), F.lit(None)).when(F.size(parts).between(3, 4), entry).otherwise(message_id)
    )


def numbers_of(place: Column, count: int) -> list[Column]:
    """Returns the numbers between its colons; null for missing ones."""
    parts = F.split(place, ":")
    return [_part(parts, number).try_cast("bigint") for number in range(count)]


def _part(parts: Column, number: int) -> Column:
    """Returns null when there are fewer parts."""
    return F.get(parts, F.lit(number))
