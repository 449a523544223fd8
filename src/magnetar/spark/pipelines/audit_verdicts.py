"""All that is known of a message in one row: what was sent, what is stored, what was received.

Pure:      DataFrames in, DataFrames out. Every step keeps or names its columns: FACT_COLUMNS of audit_inputs.py in, the
           aggregation of `by_message` out.
Message:   is the same on all sides if topic, producer and sequence are the same. What was received without a sequence
           is recognised by its place, which the topic or the acknowledgement knows.
Shuffles:  two, whatever the sides are: by lane for the order, by message for the rest. A lane is what must be in order.
Read next: audit_faults.py (what is wrong, from that row)
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from magnetar.spark.pipelines.audit_expressions import numbers_of
from magnetar.spark.pipelines.audit_options import Order

MESSAGE: Final = ["topic", "id"]
_UNORDERED_LANES: Final = 64  # What has no order is dealt out, so that it is not one task's work.


def recognised(facts: DataFrame, *, by_stored: bool) -> DataFrame:
    """What consumers received without naming it gets producer and sequence from whoever knows its place."""
    is_nameless = (F.col("side") == "received") & F.col("sequence").isNull()
    nameless = facts.where(is_nameless).withColumnRenamed("producer", "said").drop("sequence")
    knows = F.col("side") == "stored" if by_stored else (F.col("side") == "answered") & (F.col("outcome") == "ok")
    known = (
        facts.where(knows & F.col("place").isNotNull())
        .groupBy("topic", "place")
        .agg(F.max("producer").alias("known"), F.max("sequence").alias("sequence"))
    )
    named = nameless.join(known, ["topic", "place"], "left").withColumn("producer", F.coalesce("known", "said"))
    return facts.where(~is_nameless).unionByName(named.drop("known", "said"))


def in_order(facts: DataFrame, order: Order, received_order: Order) -> DataFrame:
    """With the column `is_behind`: whether a later message came before this one, in the same lane."""
    placed = with_id(facts).withColumns({"lane": _lane(order, received_order), "position": _position()})
    before = Window.partitionBy("topic", "lane").orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
    has_order = ~F.col("lane").startswith("-")
    is_behind = has_order & (F.col("sequence") < F.max("sequence").over(before))
    return placed.withColumn("is_behind", F.coalesce(is_behind, F.lit(False)))


def by_message(placed: DataFrame) -> DataFrame:
    """One row per message. Sent again under its sequence, it is the same message."""
    side = F.col("side")
    sent, stored, received = side == "sent", side == "stored", side == "received"
    acknowledged = (side == "answered") & (F.col("outcome") == "ok")
    refused = (side == "answered") & (F.col("outcome") != "ok")
    offset = F.concat_ws(":", "partition", "index")
    return placed.groupBy(*MESSAGE).agg(
        F.max("producer").alias("producer"),
        F.max("sequence").alias("sequence"),
        F.max("key").alias("key"),
        F.max("partition").alias("partition"),
        F.min(F.when(sent, F.col("time_us"))).alias("sent_us"),
        F.max(F.when(sent, F.col("crc32"))).alias("sent_crc32"),
        F.min(F.when(acknowledged, F.col("time_us"))).alias("acked_us"),
        F.max(F.when(acknowledged, F.col("message_id"))).alias("acked_message_id"),
        F.max(F.when(acknowledged, F.col("place"))).alias("acked_place"),
        F.max(F.when(refused, F.coalesce("error", "outcome"))).alias("error"),
        F.count(F.when(stored, 1)).alias("stored"),
        F.min(F.when(stored, F.struct("position", "is_behind", "message_id", "index"))).alias("stored_first"),
        F.collect_set(F.when(stored, F.col("place"))).alias("stored_places"),
        F.collect_set(F.when(stored, offset)).alias("stored_offsets"),
        *_least_and_most(stored, "stored"),
        F.min(F.when(stored, F.col("published_us"))).alias("stored_published_us"),
        F.count(F.when(received, 1)).alias("received"),
        F.min(F.when(received, F.col("time_us"))).alias("received_us"),
        F.min(F.when(received, F.col("message_id"))).alias("received_message_id"),
        F.min(F.when(received, F.col("published_us"))).alias("received_published_us"),
        *_least_and_most(received, "received"),
        F.collect_set(F.when(received, F.col("subscription"))).alias("received_by"),
        F.collect_set(F.when(received, F.struct("subscription", "place"))).alias("received_places"),
        F.collect_list(F.when(received, F.struct("subscription", "position", _is_late().alias("is_late")))).alias(
            "deliveries"
        ),
    )


def with_id(facts: DataFrame) -> DataFrame:
    """`producer:sequence`; a message that says neither is known by its place alone."""
    named = F.col("producer").isNotNull() & F.col("sequence").isNotNull()
    known = F.concat_ws(":", "producer", F.col("sequence").cast("string"))
    return facts.withColumn("id", F.when(named, known).otherwise(F.concat(F.lit("@"), F.coalesce("place", F.lit("?")))))


def _lane(order: Order, received_order: Order) -> Column:
    """Stored: a producer's messages of a partition. Received: those that one consumer was given. Or their keys."""
    stored = _lane_of(order, "stored", "partition", "producer")
    received = _lane_of(received_order, "received", "partition", "subscription", "client", "producer")
    return F.when(F.col("side") == "stored", stored).when(F.col("side") == "received", received).otherwise(_dealt_out())


def _lane_of(order: Order, side: str, *columns: str) -> Column:
    if order is Order.NONE:
        return _dealt_out()
    names = [*columns, *(["key"] if order is Order.KEY else [])]
    return F.concat_ws("\0", F.lit(side), *(F.coalesce(F.col(name).cast("string"), F.lit("")) for name in names))


def _dealt_out() -> Column:
    return F.concat(F.lit("-"), F.pmod(F.hash("id"), F.lit(_UNORDERED_LANES)).cast("string"))


def _position() -> Column:
    """Sorts what is stored as its topic is sorted, and what was received by time."""
    ledger, entry, batch = numbers_of(F.col("place"), 3)
    is_stored = F.col("side") == "stored"
    parts = (
        F.when(is_stored, F.col("index")).otherwise(F.col("time_us")),
        F.when(is_stored, ledger).otherwise(F.col("n")),
        F.when(is_stored, entry),
        F.when(is_stored, batch),
    )
    return F.struct(*(part.alias(f"p{number}") for number, part in enumerate(parts)))


def _is_late() -> Column:
    """What comes again comes late, and may."""
    return F.col("is_behind") & (F.col("redelivery_count") == 0)


def _least_and_most(condition: Column, side: str) -> tuple[Column, Column]:
    """Checksums of all copies; a value that is null has none, and counts as −1 where it is stored."""
    crc32 = F.coalesce("crc32", F.lit(-1)) if side == "stored" else F.col("crc32")
    of_side = F.when(condition, crc32)
    return F.min(of_side).alias(f"{side}_crc32_least"), F.max(of_side).alias(f"{side}_crc32_most")
