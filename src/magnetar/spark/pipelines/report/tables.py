"""The tables of the report, each with a caption; numbers are aligned to the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.spark.pipelines.audit.options import EXPIRED, FAULTS, IN_DOUBT
from magnetar.spark.pipelines.audit.result import Findings, MessageRow
from magnetar.spark.pipelines.report.markup import NOTHING, Markup, clock, count, duration, element, joined, text

TITLES = {kind.name: kind.title for kind in (*FAULTS, EXPIRED, IN_DOUBT)}
LATENCIES = {
    "ack": "sent → acknowledged",
    "delivery": "published → received",
    "end_to_end": "sent → received",
}


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    is_number: bool = False
    is_code: bool = False


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Markup]]) -> Markup:
    """Puts the table in a box that scrolls by itself, so that a long key does not widen the page."""
    head = element(
        "tr", None, *(element("th", {"scope": "col", "class": _kind(column)}, text(column.title)) for column in columns)
    )
    body = joined(
        element(
            "tr",
            None,
            *(element("td", {"class": _kind(column)}, cell) for column, cell in zip(columns, row, strict=True)),
        )
        for row in rows
    )
    whole = element(
        "table",
        None,
        element("caption", None, text(caption)),
        element("thead", None, head),
        element("tbody", None, body),
    )
    return element("div", {"class": "table", "tabindex": 0, "role": "region", "aria-label": caption}, whole)


def latencies(findings: Findings) -> Markup:
    columns = [
        Column("way"),
        *(Column(title, is_number=True) for title in ("messages", "mean", "p50", "p90", "p99", "p99.9", "longest")),
    ]
    rows = []
    for name, words in LATENCIES.items():
        if (found := findings.latency.get(name)) is None:
            continue
        figures = (found.mean, found.p50, found.p90, found.p99, found.p999, found.longest)
        rows.append([text(words), text(count(found.count)), *(text(duration(figure)) for figure in figures)])
    return table("Latency in figures", columns, rows)


def messages(caption: str, rows: Sequence[MessageRow]) -> Markup:
    columns = [
        Column("verdict"),
        Column("producer", is_code=True),
        Column("sequence", is_number=True),
        Column("key", is_code=True),
        Column("message id", is_code=True),
        Column("sent (UTC)", is_number=True),
        Column("acknowledged after", is_number=True),
        Column("received after", is_number=True),
        Column("what is wrong"),
    ]
    return table(caption, columns, ([*_message_cells(row)] for row in rows))


def _message_cells(row: MessageRow) -> Iterable[Markup]:
    yield badge(row.verdict)
    yield text(row.producer or NOTHING)
    yield text(NOTHING if row.sequence is None else row.sequence)
    yield text(row.key if row.key is not None else NOTHING)
    yield text(row.message_id or NOTHING)
    yield text(clock(row.sent_us))
    yield text(duration(row.ack_ms))
    yield text(duration(row.delivery_ms))
    yield text(row.note or NOTHING)


def badge(verdict: str) -> Markup:
    kind = "bad" if verdict in {fault.name for fault in FAULTS} else "doubt" if verdict in TITLES else "good"
    return element("span", {"class": f"badge {kind}"}, text(TITLES.get(verdict, verdict)))


def outages(findings: Findings) -> Markup:
    columns = [
        Column("begin (UTC)", is_number=True),
        Column("end (UTC)", is_number=True),
        Column("without acknowledgement", is_number=True),
        Column("producer", is_code=True),
        Column("topic", is_code=True),
    ]
    rows = (
        [
            text(clock(outage.begin_us)),
            text("still open" if outage.end_us is None else clock(outage.end_us)),
            text(duration(outage.duration_ms)),
            text(outage.producer),
            text(outage.topic),
        ]
        for outage in findings.outages
    )
    return table("Outages", columns, rows)


def streams(findings: Findings) -> Markup:
    names = ("sent", "acknowledged", "stored", "received", "faults")
    columns = [
        Column("topic", is_code=True),
        Column("producer", is_code=True),
        *(Column(name, is_number=True) for name in names),
        Column("p99 of acknowledgement", is_number=True),
    ]
    rows = (
        [
            text(stream.topic),
            text(stream.producer or NOTHING),
            *(text(count(getattr(stream, name))) for name in names),
            text(duration(stream.ack_p99_ms)),
        ]
        for stream in findings.streams
    )
    return table("By topic and producer", columns, rows)


def steps(findings: Findings) -> Markup:
    """Shows the figures of the plots over time."""
    columns = [
        Column("series"),
        Column("from (UTC)", is_number=True),
        *(Column(title, is_number=True) for title in ("messages", "p50", "p99", "longest")),
    ]
    rows = (
        [
            text(step.series),
            text(clock(step.begin_us)),
            text(count(step.count)),
            *(text(duration(figure)) for figure in (step.p50_ms, step.p99_ms, step.longest_ms)),
        ]
        for step in findings.steps
    )
    return table(f"In steps of {duration(findings.step_us / 1000)}", columns, rows)


def _kind(column: Column) -> str | None:
    return "number" if column.is_number else "code" if column.is_code else None
