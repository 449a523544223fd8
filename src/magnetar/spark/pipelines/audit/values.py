"""The options and the result of an audit, as plain values, with their arithmetic: none of it needs Spark.

Invariant: options are checked here, before Spark starts; a mistake is an ArgumentError that names the option.
           Severities, steps of time and bins of latency are pure: without Spark, each rule has a test that takes no
           time.
Format:    topics are compared under their full names. Names without a domain are completed as in Pulsar's clients, but
           only when topics of a cluster are read: the topics of a Kafka log have no other name.
           Times are microseconds since 1970, as in the logs; latencies are milliseconds, shown on a logarithmic scale:
           bin b holds [10^(b/8), 10^((b+1)/8)); anything below a hundredth of a millisecond is in the lowest one.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from magnetar.client.topics import full_name
from magnetar.errors import ArgumentError

DEFAULT_SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
HEADER: Final = "magnetar-audit"  # The property or header that carries `producer:sequence`.
ROWS_SHOWN_MAX: Final = 1_000  # Rows of a table in the report: the Parquet files have all.
_PARTITION: Final = re.compile(r"-partition-\d+$")


class Order(enum.Enum):
    """The group of messages in which a higher sequence must not come before a lower one."""

    PRODUCER = "producer"
    KEY = "key"
    """One producer and one key: a Key_Shared subscription keeps this order."""
    NONE = "none"


class Identity(enum.Enum):
    """How a stored message is identified with the one that was sent."""

    SEQUENCE = "sequence"
    """By the producer's name and the sequence id that Pulsar stores with every message."""
    HEADER = "header"
    """By the property that `magnetar.testing.audit_log` gives to messages of clients that have no sequence ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Per run. Paths are what Spark understands: files, directories, globs, any file system that it has."""

    logs: tuple[str, ...]
    """JSON lines of producers and consumers, mixed as they like; docs/audit.md has the format."""
    topics: tuple[str, ...] = ()
    """Read through format("magnetar") as what is stored."""
    archive: str = ""
    """Parquet with the same columns instead, as `magnetar pipeline archive` writes it."""
    service_url: str = DEFAULT_SERVICE_URL
    admin_url: str = ""
    read_options: tuple[tuple[str, str], ...] = ()
    """More options of format("magnetar"), such as startingOffsets."""
    identity: Identity = Identity.SEQUENCE
    order: Order = Order.PRODUCER
    """The order of stored messages."""
    received_order: Order = Order.PRODUCER
    """The order within one consumer's received messages; NONE for a Shared subscription."""
    allow_missed: bool = False
    """Messages that a subscription did not receive are counted, but the audit passes."""
    allow_unexpected: bool = False
    """Messages that no log knows are counted, but the audit passes: a topic with other producers."""
    outage_ms: int = 500
    """A producer that waits this long for the next acknowledgement has an outage."""
    rows_shown: int = 50
    """Rows in the report's tables of messages."""
    output: str = ""
    """A directory for verdicts.parquet, one row per message."""
    report: str = ""
    """A file for the HTML report."""
    title: str = "Delivery audit"

    def __post_init__(self) -> None:
        if not self.logs:
            raise ArgumentError("audit: no logs are given; name at least one file of JSON lines")
        if self.topics and self.archive:
            raise ArgumentError("audit: stored messages come from topics or from an archive, not from both")
        if self.outage_ms < 1:
            raise ArgumentError(f"audit: an outage lasts at least 1 ms, not {self.outage_ms}")
        if not 1 <= self.rows_shown <= ROWS_SHOWN_MAX:
            raise ArgumentError(f"audit: the tables show 1 to {ROWS_SHOWN_MAX} messages, not {self.rows_shown}")

    @property
    def full_topics(self) -> tuple[str, ...]:
        """The full names, sorted, each once, partitions counted as their topic."""
        return tuple(sorted({whole_topic(topic) for topic in self.topics}))


def whole_topic(topic: str) -> str:
    """Returns the full name, without the partition, for comparisons. Raises InvalidNameError."""
    return full_name(_PARTITION.sub("", topic))


BINS_PER_DECADE: Final = 8
LOWEST_MS: Final = 0.01
LOWEST_BIN: Final = -2 * BINS_PER_DECADE
STEPS_MAX: Final = 120  # Points of a plot: more cannot be distinguished on a screen.
QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
QUANTILE_ACCURACY: Final = 10_000  # Of percentile_approx: an error in rank of 1 / 10,000.
_NICE_US: Final = tuple(
    factor * unit
    for unit, factors in ((10_000, (1, 2, 5, 10, 20, 50)), (1_000_000, (1, 2, 5, 10, 15, 30)))
    for factor in factors
) + tuple(minutes * 60_000_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 720, 1_440))


@dataclass(frozen=True, slots=True)
class Kind:
    """One possible fault of a message."""

    name: str
    """The column of the verdicts, a boolean."""
    title: str
    meaning: str


# The worst first: a message with several faults is called by the first of them.
FAULTS: Final = (
    Kind("lost", "lost", "acknowledged, and it is not there"),
    Kind("damaged", "damaged", "other bytes than were sent"),
    Kind("duplicated", "duplicated", "there more than once, under different message ids"),
    Kind("misplaced", "misplaced", "not where its acknowledgement said it is"),
    Kind("out_of_order", "out of order", "after a later message of the same producer"),
    Kind("unexpected", "unexpected", "no log says that it was sent"),
    Kind("missed", "missed", "there, but a subscription did not receive it"),
)
# Not a fault, but reported.
IN_DOUBT: Final = Kind("in_doubt", "in doubt", "sent, but never acknowledged: it may be there or not")
EXPIRED: Final = Kind("expired", "expired", "acknowledged, and deleted by retention before the topic was read")
GOOD: Final = "good"
VERDICTS: Final = (*(fault.name for fault in FAULTS), EXPIRED.name, IN_DOUBT.name, GOOD)
"""The values of the column `verdict`, the worst first."""


def step_us(first_us: int, last_us: int) -> int:
    """Returns a round step of time that cuts the run into at most STEPS_MAX pieces."""
    shortest = max(last_us - first_us, 0) / (STEPS_MAX - 1)
    for step in _NICE_US:
        if step >= shortest:
            return step
    day = _NICE_US[-1]
    return math.ceil(shortest / day) * day


def bin_of(milliseconds: float) -> int:
    """Does the same as the expression in figures.py; a test compares them."""
    return math.floor(math.log10(max(milliseconds, LOWEST_MS)) * BINS_PER_DECADE)


def bin_edges_ms(number: int) -> tuple[float, float]:
    return 10 ** (number / BINS_PER_DECADE), 10 ** ((number + 1) / BINS_PER_DECADE)


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
        return 0 if self.passed else 1

    def as_json(self) -> dict[str, Any]:
        paths = {"verdicts": self.verdicts_path, "report": self.report_path}
        return {**self.findings.as_json(), **{name: path for name, path in paths.items() if path}}
