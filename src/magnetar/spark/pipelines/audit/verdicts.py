"""Joins all facts of a message in one row (sent, stored, received), and finds its faults.

Invariant: DataFrames in, DataFrames out. Every step keeps or names its columns: FACT_COLUMNS of inputs.py in, the
           aggregation of `by_message` out. A message is the same on all sides if topic, producer and sequence are the
           same. If it was received without a sequence, it is identified by its place, which the topic or the
           acknowledgement knows. Lost is acknowledged, but not stored, or where no stored messages were read, not
           received. In doubt is sent and not acknowledged: the broker may have it or not, and neither is a fault.
Limits:    two shuffles, whatever the sides are: by lane for the order, by message for the rest. A lane is a group of
           messages that must be in order.
Read next: docs/audit.md, which lists the columns of `verdicts`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from magnetar.spark.pipelines.audit.inputs import numbers_of
from magnetar.spark.pipelines.audit.values import EXPIRED, FAULTS, GOOD, IN_DOUBT, Order

MESSAGE: Final = ["topic", "id"]
_UNORDERED_LANES: Final = 64  # Messages without an order are distributed, so that they are not one task's work.


def recognised(facts: DataFrame, *, by_stored: bool) -> DataFrame:
    """Gives received messages without a name producer and sequence, from the side that knows their place."""
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
    """Adds the column `is_behind`: whether a later message came before this one, in the same lane."""
    placed = with_id(facts).withColumns({"lane": _lane(order, received_order), "position": _position()})
    before = Window.partitionBy("topic", "lane").orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
    has_order = ~F.col("lane").startswith("-")
    is_behind = has_order & (F.col("sequence") < F.max("sequence").over(before))
    return placed.withColumn("is_behind", F.coalesce(is_behind, F.lit(False)))


def by_message(placed: DataFrame) -> DataFrame:
    """Returns one row per message. If it is sent again under its sequence, it is the same message."""
    side = F.col("side")
    sent, stored, received = side == "sent", side == "stored", side == "received"
    acknowledged = (side == "answered") & (F.col("outcome") == "ok")
    refused = (side == "answered") & (F.col("outcome") != "ok")
    is_late = F.col("is_behind") & (F.col("redelivery_count") == 0)  # Repeated messages may come late.
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
        F.collect_list(F.when(received, F.struct("subscription", "position", is_late.alias("is_late")))).alias(
            "deliveries"
        ),
    )


def with_id(facts: DataFrame) -> DataFrame:
    """Adds `producer:sequence`; a message with neither is known by its place alone."""
    named = F.col("producer").isNotNull() & F.col("sequence").isNotNull()
    known = F.concat_ws(":", "producer", F.col("sequence").cast("string"))
    return facts.withColumn("id", F.when(named, known).otherwise(F.concat(F.lit("@"), F.coalesce("place", F.lit("?")))))


def _lane(order: Order, received_order: Order) -> Column:
    """Returns the lane. Stored: a producer's messages of a partition. Received: those of one consumer. Or their
    keys."""
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
    """Sorts stored messages as in their topic, and received ones by time."""
    ledger, entry, batch = numbers_of(F.col("place"), 3)
    is_stored = F.col("side") == "stored"
    parts = (
        F.when(is_stored, F.col("index")).otherwise(F.col("time_us")),
        F.when(is_stored, ledger).otherwise(F.col("n")),
        F.when(is_stored, entry),
        F.when(is_stored, batch),
    )
    return F.struct(*(part.alias(f"p{number}") for number, part in enumerate(parts)))


def _least_and_most(condition: Column, side: str) -> tuple[Column, Column]:
    """Returns checksums of all copies; a null value has none, and counts as −1 where it is stored."""
    crc32 = F.coalesce("crc32", F.lit(-1)) if side == "stored" else F.col("crc32")
    of_side = F.when(condition, crc32)
    return F.min(of_side).alias(f"{side}_crc32_least"), F.max(of_side).alias(f"{side}_crc32_most")


@dataclass(frozen=True, slots=True)
class Sides:
    stored: bool
    received: bool
    subscriptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By topic: the subscriptions that received any message of it, and so should have received all."""
    earliest: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By topic and partition (−1 without partitions): ledger and entry of the first message that still exists."""


def verdicts(messages: DataFrame, sides: Sides) -> DataFrame:
    judged = messages.withColumns(_facts(sides)).withColumns(_faults(sides))
    judged = judged.withColumns({"verdict": _worst(), "note": _note(sides)})
    return judged.select(
        "topic",
        "partition",
        "producer",
        "sequence",
        "key",
        F.coalesce("stored_first.message_id", "acked_message_id", "received_message_id").alias("message_id"),
        F.col("stored_first.index").alias("index"),
        "outcome",
        F.timestamp_micros("sent_us").alias("sent_at"),
        F.timestamp_micros("acked_us").alias("acknowledged_at"),
        F.timestamp_micros("published_us").alias("published_at"),
        F.timestamp_micros("received_us").alias("received_at"),
        F.col("stored").cast("int").alias("stored"),
        F.col("received").cast("int").alias("received"),
        (F.col("received") - F.size("received_places")).cast("int").alias("redelivered"),
        "missed_by",
        _milliseconds("sent_us", "acked_us").alias("ack_ms"),
        _milliseconds("published_us", "received_us").alias("delivery_ms"),
        _milliseconds("sent_us", "received_us").alias("end_to_end_ms"),
        *(fault.name for fault in FAULTS),
        EXPIRED.name,
        IN_DOUBT.name,
        "verdict",
        "note",
    )


def _facts(sides: Sides) -> dict[str, Column]:
    was_sent = F.coalesce("sent_us", "acked_us").isNotNull()
    return {
        "outcome": F.when(F.col("acked_us").isNotNull(), "acknowledged")
        .when(F.col("error").isNotNull(), "failed")
        .when(was_sent, "unanswered"),
        "published_us": F.coalesce("stored_published_us", "received_published_us"),
        "missed_by": F.array_except(_subscriptions(sides.subscriptions), F.col("received_by")),
        "received_behind": _has_late_delivery(),
        "is_expired": _is_expired(sides.earliest),
    }


def _faults(sides: Sides) -> dict[str, Column]:
    acknowledged = F.col("outcome") == "acknowledged"
    is_stored, is_received = F.col("stored") > 0, F.col("received") > 0
    is_gone = _is(acknowledged & ~(is_stored if sides.stored else is_received))
    expired = is_gone & F.col("is_expired")
    is_twice = (F.col("stored") > 1) | (F.size("received_places") > F.size("received_by"))
    places = F.array_union("stored_places", "stored_offsets")
    must_be_received = is_stored if sides.stored else acknowledged & is_received
    faults = {
        "lost": is_gone & ~F.col("is_expired"),
        "damaged": _differs("stored") | _differs("received"),
        "duplicated": is_twice,
        "misplaced": _is(is_stored & ~F.array_contains(places, F.col("acked_place"))),
        "out_of_order": _is(F.col("stored_first.is_behind")) | F.col("received_behind"),
        "unexpected": F.col("outcome").isNull(),
        "missed": _is(must_be_received & (F.size("missed_by") > 0)),
        "expired": expired,
        "in_doubt": _is(F.col("outcome").isin("failed", "unanswered")),
    }
    assert list(faults) == [*(fault.name for fault in FAULTS), EXPIRED.name, IN_DOUBT.name]
    return faults


def _worst() -> Column:
    names = [*(fault.name for fault in FAULTS), EXPIRED.name, IN_DOUBT.name]
    return F.coalesce(*(F.when(F.col(name), name) for name in names), F.lit(GOOD))


def _note(sides: Sides) -> Column:
    """Returns an explanation for people; null when all is well."""
    there = "stored" if sides.stored else "received"
    acknowledged_as = F.concat(F.lit("acknowledged as "), F.coalesce("acked_message_id", F.lit("?")))
    stored_as = F.concat(F.lit(", stored as "), F.coalesce("stored_first.message_id", F.lit("?")))
    said = [
        F.when(F.col("lost"), F.concat(acknowledged_as, F.lit(f", but not {there}"))),
        F.when(F.col("damaged"), F.lit("the value has another checksum than the sent one")),
        F.when(F.col("duplicated") & (F.col("stored") > 1), F.format_string("stored %d times", "stored")),
        F.when(F.col("duplicated") & (F.col("stored") <= 1), F.lit("received under different message ids")),
        F.when(F.col("misplaced"), F.concat(acknowledged_as, stored_as)),
        F.when(_is(F.col("stored_first.is_behind")), F.lit("stored after a later message")),
        F.when(F.col("received_behind"), F.lit("received after a later message")),
        F.when(F.col("unexpected"), F.lit("no log says that it was sent")),
        F.when(F.col("missed"), F.concat(F.lit("not received by "), F.array_join("missed_by", ", "))),
        F.when(F.col("expired"), F.lit("deleted by retention before the topic was read")),
        F.when(F.col("outcome") == "failed", F.concat(F.lit("answered "), F.col("error"))),
        F.when(F.col("outcome") == "unanswered", F.lit("never answered")),
        F.when(F.col("in_doubt"), F.when(F.col(there) > 0, f"it is {there}").otherwise(f"it is not {there}")),
    ]
    words = F.concat_ws("; ", *said)
    return F.when(words != "", words)


def _subscriptions(by_topic: Mapping[str, Sequence[str]]) -> Column:
    """Returns those of the row's topic, as literals: there are few, and a join would cost a job."""
    nobody = F.array().cast("array<string>")
    chosen = nobody
    for topic, names in sorted(by_topic.items()):
        chosen = F.when(F.col("topic") == topic, F.array(*(F.lit(name) for name in names))).otherwise(chosen)
    return chosen


def _has_late_delivery() -> Column:
    """Looks at first deliveries only: later ones are repeats for the subscription."""

    def is_first(delivery: Column) -> Column:
        def is_earlier(other: Column) -> Column:
            return (other["subscription"] == delivery["subscription"]) & (other["position"] < delivery["position"])

        return delivery["is_late"] & ~F.exists("deliveries", is_earlier)

    return _is(F.exists("deliveries", is_first))


def _is_expired(earliest: Mapping[tuple[str, int], tuple[int, int]]) -> Column:
    """Reports whether it was acknowledged before the topic's first message: trimmed, not lost."""
    ledger, entry, partition = numbers_of(F.col("acked_message_id"), 3)
    expired = F.lit(False)
    for (topic, number), (first_ledger, first_entry) in sorted(earliest.items()):
        is_before = (ledger < first_ledger) | ((ledger == first_ledger) & (entry < first_entry))
        expired = expired | ((F.col("topic") == topic) & (partition == number) & is_before)
    return _is(expired)


def _differs(side: str) -> Column:
    """Compares any copy with the checksum that the producer logged."""
    sent, least, most = F.col("sent_crc32"), F.col(f"{side}_crc32_least"), F.col(f"{side}_crc32_most")
    return _is((least != sent) | (most != sent))


def _milliseconds(begin: str, end: str) -> Column:
    return (F.col(end) - F.col(begin)) / 1000


def _is(condition: Column) -> Column:
    """Takes unknown for false: it is no fault."""
    return F.coalesce(condition, F.lit(False))
