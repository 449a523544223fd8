"""Findings of an imaginary audit, for the tests of what is made from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magnetar.spark.pipelines.audit.values import (
    Bin,
    Counts,
    Findings,
    Latency,
    MessageRow,
    Outage,
    Step,
    Stream,
    bin_of,
)

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
TOPIC = "persistent://public/default/orders"


def some_findings(**changes: Any) -> Findings:
    """Ten seconds with an outage in the middle; all is well."""
    seconds = [second for second in range(10) if second not in (4, 5)]
    found = Findings(
        title="Orders",
        inputs={"logs": "logs/*.jsonl", "topics": TOPIC},
        made_us=BEGIN_US + 60 * SECOND_US,
        compares_stored=True,
        compares_received=True,
        allowed=(),
        counts=Counts(sent=8_000, acknowledged=8_000, stored=8_000, received=8_000, redelivered=3),
        first_us=BEGIN_US,
        last_us=BEGIN_US + 10 * SECOND_US,
        step_us=SECOND_US,
        latency={
            "ack": Latency(8_000, 5.0, 4.0, 8.0, 20.0, 2_000.0, 2_100.0),
            "delivery": Latency(8_000, 6.0, 5.0, 9.0, 30.0, 2_050.0, 2_200.0),
        },
        steps=tuple(
            Step(series, BEGIN_US + second * SECOND_US, 1_000, *latency)
            for series, latency in (
                ("acknowledged", (4.0, 20.0, 90.0)),
                ("received", (5.0, 30.0, 95.0)),
                ("sent", (None, None, None)),
            )
            for second in seconds
        ),
        bins=tuple(
            Bin(series, bin_of(milliseconds), count)
            for series in ("acknowledged", "received")
            for milliseconds, count in ((4.0, 7_000), (20.0, 990), (2_000.0, 10))
        ),
        outages=(Outage(TOPIC, "p", BEGIN_US + 4 * SECOND_US, BEGIN_US + 6 * SECOND_US, 2_000.0),),
        slowest=(row("good", ack_ms=2_100.0),),
        streams=(Stream(TOPIC, "p", 8_000, 8_000, 8_000, 8_000, 0, 20.0),),
    )
    return replace(found, **changes)


def failed_findings() -> Findings:
    return some_findings(
        counts=Counts(sent=100, acknowledged=90, stored=89, received=80, lost=2, duplicated=1, in_doubt=10, missed=9),
        faulty=(row("lost", note="acknowledged as 3:4:-1:0, but not stored"), row("duplicated", note="stored 2 times")),
    )


def row(verdict: str, note: str = "", ack_ms: float | None = 4.0) -> MessageRow:
    return MessageRow(TOPIC, "p", 17, None, "3:4:-1:0", BEGIN_US, ack_ms, 5.0, verdict, note)
