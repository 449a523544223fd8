"""The figures of an audit, counted from its verdicts: each function is one job on Spark and returns plain values.

Format:    times leave Spark as microseconds, never as datetimes: those would depend on the time zone of the session.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from magnetar.spark.pipelines.audit.values import (
    BINS_PER_DECADE,
    FAULTS,
    LOWEST_MS,
    QUANTILE_ACCURACY,
    QUANTILES,
    VERDICTS,
    Bin,
    Counts,
    Latency,
    MessageRow,
    Outage,
    Step,
    Stream,
)

LATENCIES: Final = ("ack", "delivery", "end_to_end")
STREAMS_MAX: Final = 200  # Rows of a table that people read.
OUTAGES_MAX: Final = 100  # The longest of them.
_SERIES: Final = {
    "sent": ("sent_at", None),
    "acknowledged": ("acknowledged_at", "ack_ms"),
    "received": ("received_at", "delivery_ms"),
}


def totals(verdicts: DataFrame) -> tuple[Counts, dict[str, Latency], int, int]:
    """Returns counts, latencies, and the first and last time of the run."""
    times = [F.unix_micros(name) for name in ("sent_at", "acknowledged_at", "received_at")]
    row = verdicts.agg(
        *(_count(condition).alias(name) for name, condition in _conditions().items()),
        F.sum("redelivered").alias("redelivered"),
        F.min(F.least(*times)).alias("first_us"),
        F.max(F.greatest(*times)).alias("last_us"),
        *(figure for name in LATENCIES for figure in _latency_figures(name)),
    ).first()
    assert row is not None, "an aggregation without groups has one row"
    counts = Counts(**{name: int(row[name] or 0) for name in (*_conditions(), "redelivered")})
    latency = {name: _latency(row, name) for name in LATENCIES if row[f"{name}_count"]}
    return counts, latency, int(row["first_us"] or 0), int(row["last_us"] or 0)


def steps(verdicts: DataFrame, step_us: int) -> tuple[Step, ...]:
    begin = F.col("time_us") - F.col("time_us") % step_us
    rows = (
        _moments(verdicts)
        .groupBy("series", begin.alias("begin_us"))
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.percentile_approx("ms", [0.5, 0.99], QUANTILE_ACCURACY).alias("quantiles"),
            F.max("ms").alias("longest"),
        )
        .orderBy("series", "begin_us")
        .collect()
    )
    return tuple(
        Step(row["series"], row["begin_us"], row["count"], p50, p99, row["longest"])
        for row in rows
        for p50, p99 in [row["quantiles"] or (None, None)]
    )


def bins(verdicts: DataFrame) -> tuple[Bin, ...]:
    rows = (
        _moments(verdicts)
        .where(F.col("ms").isNotNull())
        .groupBy("series", bin_expression(F.col("ms")).alias("number"))
        .count()
        .orderBy("series", "number")
        .collect()
    )
    return tuple(Bin(row["series"], row["number"], row["count"]) for row in rows)


def bin_expression(milliseconds: Column) -> Column:
    """Does `bin_of` of values.py as an expression."""
    return F.floor(F.log10(F.greatest(milliseconds, F.lit(LOWEST_MS))) * BINS_PER_DECADE).cast("int")


def outages(verdicts: DataFrame, at_least_ms: int) -> tuple[Outage, ...]:
    """Returns the longest ones, by time. Idle time does not count: an outage begins when a message waits for an
    answer."""
    sent, acked = F.unix_micros("sent_at"), F.unix_micros("acknowledged_at")
    times = verdicts.where(sent.isNotNull() | acked.isNotNull()).select(
        "topic", "producer", "outcome", sent.alias("sent_us"), acked.alias("acked_us")
    )
    before = F.lag("acked_us").over(Window.partitionBy("topic", "producer").orderBy("acked_us", "sent_us"))
    ended = (
        times.where(F.col("acked_us").isNotNull())
        .withColumn("begin_us", F.greatest(before, F.coalesce("sent_us", "acked_us")))
        .select("topic", "producer", "begin_us", F.col("acked_us").alias("end_us"), F.col("acked_us").alias("until_us"))
    )
    unanswered = F.when(F.col("outcome") == "unanswered", F.col("sent_us"))
    open_ended = (
        times.groupBy("topic", "producer")
        .agg(
            F.greatest(F.max("acked_us"), F.min(unanswered)).alias("begin_us"),
            F.count(unanswered).alias("waiting"),
            F.greatest(F.max("sent_us"), F.max("acked_us")).alias("until_us"),
        )
        .where(F.col("waiting") > 0)
        .select("topic", "producer", "begin_us", F.lit(None).cast("bigint").alias("end_us"), "until_us")
    )
    lasted = (F.col("until_us") - F.col("begin_us")) / 1000
    rows = (
        ended.unionByName(open_ended)
        .withColumn("lasted", lasted)
        .where(F.col("lasted") >= at_least_ms)
        .orderBy(F.desc("lasted"))
        .limit(OUTAGES_MAX)
        .collect()
    )
    found = [Outage(row["topic"], row["producer"], row["begin_us"], row["end_us"], row["lasted"]) for row in rows]
    return tuple(sorted(found, key=lambda outage: (outage.begin_us, outage.topic, outage.producer)))


def faulty(verdicts: DataFrame, limit: int) -> tuple[MessageRow, ...]:
    """Returns the worst ones, and those in doubt."""
    severity = F.array_position(F.array(*(F.lit(name) for name in VERDICTS)), F.col("verdict"))
    wrong = verdicts.where(F.col("verdict") != VERDICTS[-1])
    return _rows(wrong.orderBy(severity, F.asc_nulls_last("sent_at"), "topic", "producer", "sequence"), limit)


def slowest(verdicts: DataFrame, limit: int) -> tuple[MessageRow, ...]:
    timed = verdicts.where(F.col("ack_ms").isNotNull())
    return _rows(timed.orderBy(F.desc("ack_ms"), "topic", "producer", "sequence"), limit)


def streams(verdicts: DataFrame) -> tuple[Stream, ...]:
    """Returns streams by topic and producer; those with faults first."""
    is_faulty = F.col("verdict").isin(*(fault.name for fault in FAULTS))
    conditions = _conditions()
    rows = (
        verdicts.groupBy("topic", "producer")
        .agg(
            *(_count(conditions[name]).alias(name) for name in ("sent", "acknowledged", "stored", "received")),
            _count(is_faulty).alias("faults"),
            F.percentile_approx("ack_ms", 0.99, QUANTILE_ACCURACY).alias("p99"),
        )
        .orderBy(F.desc("faults"), "topic", "producer")
        .limit(STREAMS_MAX)
        .collect()
    )
    return tuple(
        Stream(
            *(row["topic"], row["producer"] or ""),
            *(row[name] for name in ("sent", "acknowledged", "stored", "received", "faults", "p99")),
        )
        for row in rows
    )


def _conditions() -> dict[str, Column]:
    outcome = F.col("outcome")
    faults = (*(fault.name for fault in FAULTS), "expired", "in_doubt")
    return {
        "sent": outcome.isNotNull(),
        "acknowledged": outcome == "acknowledged",
        "failed": outcome == "failed",
        "unanswered": outcome == "unanswered",
        "stored": F.col("stored") > 0,
        "received": F.col("received") > 0,
        **{name: F.col(name) for name in faults},
        "in_doubt_kept": F.col("in_doubt") & ((F.col("stored") > 0) | (F.col("received") > 0)),
    }


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def _latency_figures(name: str) -> list[Column]:
    milliseconds = F.col(f"{name}_ms")
    return [
        F.count(milliseconds).alias(f"{name}_count"),
        F.avg(milliseconds).alias(f"{name}_mean"),
        F.percentile_approx(milliseconds, list(QUANTILES), QUANTILE_ACCURACY).alias(f"{name}_quantiles"),
        F.max(milliseconds).alias(f"{name}_longest"),
    ]


def _latency(row: Any, name: str) -> Latency:
    figures = [row[f"{name}_mean"], *row[f"{name}_quantiles"], row[f"{name}_longest"]]
    assert all(math.isfinite(figure) for figure in figures), "the count says that there are values"
    return Latency(row[f"{name}_count"], *figures)


def _moments(verdicts: DataFrame) -> DataFrame:
    """Returns one row per time that a message has: series, time_us, ms."""
    nothing = F.lit(None).cast("double")
    moments = [
        F.struct(
            F.lit(series).alias("series"),
            F.unix_micros(time).alias("time_us"),
            (F.col(latency) if latency else nothing).alias("ms"),
        )
        for series, (time, latency) in _SERIES.items()
    ]
    return verdicts.select(F.inline(F.array(*moments))).where(F.col("time_us").isNotNull())


def _rows(chosen: DataFrame, limit: int) -> tuple[MessageRow, ...]:
    columns = [column.name for column in fields(MessageRow)]
    rows = chosen.limit(limit).withColumn("sent_us", F.unix_micros("sent_at")).select(*columns).collect()
    return tuple(
        MessageRow(**{**row.asDict(), "producer": row["producer"] or "", "note": row["note"] or ""}) for row in rows
    )
