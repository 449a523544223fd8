"""The findings as tables on a terminal: the same figures as in the report, on one screen."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from magnetar.spark.pipelines.audit.markup import NOTHING, count, duration, printable
from magnetar.spark.pipelines.audit.page import LATENCIES, TITLES
from magnetar.spark.pipelines.audit.values import EXPIRED, FAULTS, IN_DOUBT, AuditResult, Findings

FAULTY_SHOWN_MAX = 10  # The report has more of them, and the Parquet files all.


def print_result(result: AuditResult, console: Console) -> None:
    findings = result.findings
    console.print(_counts(findings))
    faults = asdict(findings.counts)
    console.print(_one_row(None, {kind.title: count(faults[kind.name]) for kind in FAULTS}))
    if findings.latency:
        console.print(_latency(findings))
    if findings.outages:
        longest = max(outage.duration_ms for outage in findings.outages)
        times = "1 outage" if len(findings.outages) == 1 else f"{len(findings.outages)} outages, the longest"
        console.print(f"{times} of {duration(longest)}", highlight=False)
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
    harmless = {kind.title: asdict(counts)[kind.name] for kind in (IN_DOUBT, EXPIRED)}
    return _one_row(findings.title, figures | {title: count(found) for title, found in harmless.items() if found})


def _latency(findings: Findings) -> Table:
    table = Table()
    for name in ("latency", "p50", "p90", "p99", "p99.9", "longest"):
        table.add_column(name, justify="left" if name == "latency" else "right")
    for name, found in findings.latency.items():
        figures = (found.p50, found.p90, found.p99, found.p999, found.longest)
        table.add_row(LATENCIES[name], *map(duration, figures))
    return table


def _faulty(findings: Findings) -> Table:
    """Fits into 80 columns: the fault gets the most room."""
    table = Table()
    for name in ("verdict", "message", "message id", "what is wrong"):
        table.add_column(name, overflow="fold")
    for row in findings.faulty[:FAULTY_SHOWN_MAX]:
        message = f"{row.producer} {NOTHING if row.sequence is None else row.sequence}"
        cells = (TITLES.get(row.verdict, row.verdict), message, row.message_id or NOTHING, row.note)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _one_row(title: str | None, figures: dict[str, str]) -> Table:
    table = Table(title=Text(printable(title)) if title else None, title_style="italic")
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(*figures.values())
    return table
