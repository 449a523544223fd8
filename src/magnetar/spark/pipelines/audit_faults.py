"""What is wrong with a message, from the row that has all its sides.

Lost:      acknowledged, but not there: not stored, or where nothing stored was read, not received.
In doubt:  sent and not acknowledged. The broker may have it or not; both are right, and neither is a fault.
Exit:      `verdicts` is the table that users get; docs/audit.md lists its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from magnetar.spark.pipelines.audit_expressions import numbers_of
from magnetar.spark.pipelines.audit_plan import EXPIRED, FAULTS, GOOD, IN_DOUBT


@dataclass(frozen=True, slots=True)
class Sides:
    """What the audit has, and what it may expect."""

    stored: bool
    received: bool
    subscriptions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By topic: who received any message of it, and so should have received all."""
    earliest: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By topic and partition (−1 without partitions): ledger and entry of the first message that is still there."""


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
    named = F.when(F.col(names[0]), names[0])
    for name in names[1:]:
        named = named.when(F.col(name), name)
    return named.otherwise(GOOD)


def _note(sides: Sides) -> Column:
    """In words, for people; null when all is well."""
    there = "stored" if sides.stored else "received"
    acknowledged_as = F.concat(F.lit("acknowledged as "), F.coalesce("acked_message_id", F.lit("?")))
    stored_as = F.concat(F.lit(", stored as "), F.coalesce("stored_first.message_id", F.lit("?")))
    said = [
        F.when(F.col("lost"), F.concat(acknowledged_as, F.lit(f", but not {there}"))),
        F.when(F.col("damaged"), F.lit("the checksum of the value is another one than was sent")),
        F.when(F.col("duplicated") & (F.col("stored") > 1), F.format_string("stored %d times", "stored")),
        F.when(F.col("duplicated") & (F.col("stored") <= 1), F.lit("received under different message ids")),
        F.when(F.col("misplaced"), F.concat(acknowledged_as, stored_as)),
        F.when(_is(F.col("stored_first.is_behind")), F.lit("stored behind a later message")),
        F.when(F.col("received_behind"), F.lit("received behind a later message")),
        F.when(F.col("unexpected"), F.lit("no log says that it was sent")),
        F.when(F.col("missed"), F.concat(F.lit("not received by "), F.array_join("missed_by", ", "))),
        F.when(F.col("expired"), F.lit("deleted by retention before the topic was read")),
        F.when(F.col("outcome") == "failed", F.concat(F.lit("answered "), F.col("error"))),
        F.when(F.col("outcome") == "unanswered", F.lit("never answered")),
        F.when(F.col("in_doubt"), F.when(F.col(there) > 0, f"it is {there}").otherwise(f"it is not {there}")),
    ]
    words = F.concat_ws("; ", *said)
    return F.when(words != "", words)


# --- parts ------------------------------------------------------------------------------------------------------------


def _subscriptions(by_topic: Mapping[str, Sequence[str]]) -> Column:
    """Those of the row's topic, as literals: there are few, and a join would cost a job."""
    nobody = F.array().cast("array<string>")
    chosen = nobody
    for topic, names in sorted(by_topic.items()):
        chosen = F.when(F.col("topic") == topic, F.array(*(F.lit(name) for name in names))).otherwise(chosen)
    return chosen


def _has_late_delivery() -> Column:
    """Late when it was delivered for the first time: what the subscription had before came again."""

    def is_first(delivery: Column) -> Column:
        def is_earlier(other: Column) -> Column:
            return (other["subscription"] == delivery["subscription"]) & (other["position"] < delivery["position"])

        return delivery["is_late"] & ~F.exists("deliveries", is_earlier)

    return _is(F.exists("deliveries", is_first))


def _is_expired(earliest: Mapping[tuple[str, int], tuple[int, int]]) -> Column:
    """Acknowledged before the first message there is: trimmed, not lost."""
    ledger, entry, partition = numbers_of(F.col("acked_message_id"), 3)
    expired = F.lit(False)
    for (topic, number), (first_ledger, first_entry) in sorted(earliest.items()):
        is_before = (ledger < first_ledger) | ((ledger == first_ledger) & (entry < first_entry))
        expired = expired | ((F.col("topic") == topic) & (partition == number) & is_before)
    return _is(expired)


def _differs(side: str) -> Column:
    """From the checksum that the producer logged, on any copy."""
    sent, least, most = F.col("sent_crc32"), F.col(f"{side}_crc32_least"), F.col(f"{side}_crc32_most")
    return _is((least != sent) | (most != sent))


def _milliseconds(begin: str, end: str) -> Column:
    return (F.col(end) - F.col(begin)) / 1000


def _is(condition: Column) -> Column:
    """Unknown is no fault."""
    return F.coalesce(condition, F.lit(False))
