"""The findings as tables on a terminal: the same figures as in the report, on one screen."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from magnetar.spark.pipelines.audit_plan import EXPIRED, FAULTS, IN_DOUBT
from magnetar.spark.pipelines.audit_result import AuditResult, Findings
from magnetar.spark.pipelines.report.numbers import NOTHING, clock, count, duration
from magnetar.spark.pipelines.report.tables import LATENCIES, TITLES

FAULTY_SHOWN_MAX = 10  # The report has more of them, and the Parquet files all.


def print_result(result: AuditResult, console: Console) -> None:
    findings = result.findings
    console.print(_counts(findings))
    console.print(_verdicts(findings))
    if findings.latency:
        console.print(_latency(findings))
    if findings.outages:
        longest = max(outage.duration_ms for outage in findings.outages)
        console.print(f"{len(findings.outages)} outages, the longest of {duration(longest)}", highlight=False)
    if findings.faulty:
        console.print(_faulty(findings))
    for note in findings.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    word = "[green]passed[/]" if findings.passed else "[red]FAILED[/]"
    console.print(f"{word}: {escape(findings.sentence)}", highlight=False)
    for what, path in (("verdicts", result.verdicts_path), ("report", result.report_path)):
        if path:
            console.print(f"{what}: {path}", highlight=False, markup=False, soft_wrap=True)


def _counts(findings: Findings) -> Table:
    counts = findings.counts
    figures = {
        "sent": count(counts.sent),
        "acknowledged": count(counts.acknowledged),
        "stored": count(counts.stored) if findings.compares_stored else NOTHING,
        "received": count(counts.received) if findings.compares_received else NOTHING,
        "redelivered": count(counts.redelivered) if findings.compares_received else NOTHING,
    }
    return _one_row(findings.title, figures)


def _verdicts(findings: Findings) -> Table:
    counts = asdict(findings.counts)
    kinds = (*FAULTS, EXPIRED, IN_DOUBT)
    return _one_row(
        None, {kind.title: count(counts[kind.name]) for kind in kinds if kind in FAULTS or counts[kind.name]}
    )


def _latency(findings: Findings) -> Table:
    table = Table()
    for name in ("latency", "p50", "p90", "p99", "p99.9", "longest"):
        table.add_column(name, justify="left" if name == "latency" else "right")
    for name, found in findings.latency.items():
        figures = (found.p50, found.p90, found.p99, found.p999, found.longest)
        table.add_row(LATENCIES[name], *map(duration, figures))
    return table


def _faulty(findings: Findings) -> Table:
    table = Table()
    for name in ("verdict", "producer", "sequence", "message id", "sent (UTC)", "what is wrong"):
        table.add_column(name, overflow="fold")
    for row in findings.faulty[:FAULTY_SHOWN_MAX]:
        sequence = NOTHING if row.sequence is None else str(row.sequence)
        cells = (TITLES.get(row.verdict, row.verdict), row.producer, sequence, row.message_id or NOTHING)
        table.add_row(*(Text(cell) for cell in (*cells, clock(row.sent_us), row.note)))
    return table


def _one_row(title: str | None, figures: dict[str, str]) -> Table:
    table = Table(title=title)
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(*figures.values())
    return table
