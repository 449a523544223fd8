"""The result of an audit: figures small enough for a screen, and the verdicts they were counted from.

Format:    everything but `AuditResult.verdicts` is plain values, so that the report and `--json` need no Spark. Times
           are microseconds since 1970, as in the logs. Latencies are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from magnetar.spark.pipelines.audit.options import FAULTS

EXIT_PASSED: Final = 0
EXIT_FOUND: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of messages, unless the name says otherwise. A message may have several faults."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    unanswered: int = 0
    stored: int = 0
    received: int = 0
    """Received at least once by any consumer."""
    redelivered: int = 0
    """Deliveries beyond the first to the same subscription: allowed."""
    lost: int = 0
    damaged: int = 0
    duplicated: int = 0
    misplaced: int = 0
    out_of_order: int = 0
    unexpected: int = 0
    missed: int = 0
    in_doubt: int = 0
    in_doubt_kept: int = 0
    """The number of those in doubt that exist."""
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; quantiles of all messages that have both times."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    longest: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of time of one series: `sent`, `acknowledged` or `received`."""

    series: str
    begin_us: int
    count: int
    p50_ms: float | None
    p99_ms: float | None
    longest_ms: float | None


@dataclass(frozen=True, slots=True)
class Bin:
    series: str
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class Outage:
    """A producer waited for acknowledgements, and none came."""

    topic: str
    producer: str
    begin_us: int
    end_us: int | None
    """None: until the log ends."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message as the tables of the report show it."""

    topic: str
    producer: str
    sequence: int | None
    key: str | None
    message_id: str | None
    sent_us: int | None
    ack_ms: float | None
    delivery_ms: float | None
    verdict: str
    note: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Everything of one producer on one topic."""

    topic: str
    producer: str
    sent: int
    acknowledged: int
    stored: int
    received: int
    faults: int
    ack_p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All figures of one audit."""

    title: str
    inputs: Mapping[str, str]
    """The inputs, by the names people know them under."""
    made_us: int
    compares_stored: bool
    compares_received: bool
    allowed: tuple[str, ...]
    """Faults that do not fail the audit."""
    counts: Counts
    first_us: int
    last_us: int
    step_us: int
    latency: Mapping[str, Latency]
    """`ack`: sent to acknowledged. `delivery`: published to received. `end_to_end`: sent to received."""
    steps: tuple[Step, ...] = ()
    bins: tuple[Bin, ...] = ()
    outages: tuple[Outage, ...] = ()
    faulty: tuple[MessageRow, ...] = ()
    slowest: tuple[MessageRow, ...] = ()
    streams: tuple[Stream, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def faults(self) -> dict[str, int]:
        """Returns the faults that fail the audit, the worst first."""
        counts = asdict(self.counts)
        found = {fault.name: counts[fault.name] for fault in FAULTS if fault.name not in self.allowed}
        return {name: count for name, count in found.items() if count}

    @property
    def passed(self) -> bool:
        """Fails an empty audit, which proves nothing."""
        return self.counts.acknowledged > 0 and not self.faults

    @property
    def sentence(self) -> str:
        if self.passed:
            there = "stored" if self.compares_stored else "received"
            order = "" if self.counts.out_of_order else " and in order"
            return f"Everything that was acknowledged is {there}, once{order}."
        if not self.counts.acknowledged:
            return "Nothing was acknowledged, so there is nothing that could be proved."
        titles = {fault.name: fault.title for fault in FAULTS}
        return ", ".join(f"{count:,} {titles[name]}" for name, count in self.faults.items()).capitalize() + "."

    def as_json(self) -> dict[str, Any]:
        """Returns the summary for programs: without the points of the plots."""
        return {
            "passed": self.passed,
            "verdict": self.sentence,
            "counts": asdict(self.counts),
            "latency_ms": {name: asdict(latency) for name, latency in self.latency.items()},
            "first_us": self.first_us,
            "last_us": self.last_us,
            "outages": [asdict(outage) for outage in self.outages],
            "faulty": [asdict(row) for row in self.faulty],
            "streams": [asdict(stream) for stream in self.streams],
            "inputs": dict(self.inputs),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The value that `run` returns."""

    findings: Findings
    verdicts: Any = field(repr=False)
    """A DataFrame, one row per message; its columns are in docs/audit.md."""
    verdicts_path: str = ""
    report_path: str = ""

    @property
    def passed(self) -> bool:
        return self.findings.passed

    @property
    def exit_code(self) -> int:
        return EXIT_PASSED if self.passed else EXIT_FOUND

    def as_json(self) -> dict[str, Any]:
        paths = {"verdicts": self.verdicts_path, "report": self.report_path}
        return {**self.findings.as_json(), **{name: path for name, path in paths.items() if path}}
