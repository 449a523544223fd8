"""`magnetar pipeline audit`: compares the sent and acknowledged messages with the stored and received ones.

    result = run(spark, AuditOptions(logs=("logs/*.jsonl",), topics=("orders",), output="audit", report="audit.html"))
    result.passed, result.exit_code, result.verdicts        # a DataFrame, one row per message

Order:     facts (inputs.py) → one row per message, and its faults (verdicts.py) → figures (figures.py) → a table on the
           terminal (table.py), HTML (page.py).
Limits:    the verdicts are computed once, written as Parquet or kept by Spark, and everything is counted from them.
Read next: docs/audit.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.errors import AuditInputError
from magnetar.runtime.system import SystemRuntime
from magnetar.spark.pipelines.audit import figures, inputs
from magnetar.spark.pipelines.audit.inputs import earliest_messages
from magnetar.spark.pipelines.audit.page import render
from magnetar.spark.pipelines.audit.values import AuditOptions, AuditResult, Findings, Identity, Order, step_us
from magnetar.spark.pipelines.audit.verdicts import Sides, by_message, in_order, recognised
from magnetar.spark.pipelines.audit.verdicts import verdicts as find_faults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditOptions", "AuditResult", "Findings", "Identity", "Order", "run"]

VERDICTS_NAME: Final = "verdicts.parquet"


def run(spark: SparkSession, options: AuditOptions, tell: Callable[[str], None] = lambda _what: None) -> AuditResult:
    """Raises AuditInputError when a log or an archive cannot be used. `tell` is called with each step."""
    tell("reading the logs")
    lines = inputs.read_logs(spark, options.logs)
    seen = inputs.look_through(lines, options)
    stored = inputs.read_stored(spark, options)
    if stored is None and not seen.received:
        raise AuditInputError(
            f"the logs {', '.join(options.logs)} have no line of a consumer, and no topic or archive is given: there "
            "is nothing to compare the sent messages with"
        )
    sides = Sides(
        stored=stored is not None,
        received=seen.received > 0,
        subscriptions=seen.subscriptions,
        earliest=earliest_messages(options) if options.topics else {},
    )
    tell("comparing message by message")
    logged = inputs.logged_facts(lines, options)
    facts = logged if stored is None else logged.unionByName(stored)
    verdicts, path = _kept(spark, judge(facts, sides, options, has_nameless=seen.nameless > 0), options)
    tell("counting")
    findings = _findings(verdicts, seen, options, sides)
    return AuditResult(findings, verdicts, path, _write_report(findings, options))


def judge(facts: DataFrame, sides: Sides, options: AuditOptions, *, has_nameless: bool) -> DataFrame:
    """Makes verdicts from facts, and nothing else: no file, no job."""
    named = recognised(facts, by_stored=sides.stored) if has_nameless else facts
    placed = in_order(named, options.order, options.received_order)
    return find_faults(by_message(placed), sides)


def _kept(spark: SparkSession, verdicts: DataFrame, options: AuditOptions) -> tuple[DataFrame, str]:
    """Computes them once: everything below reads them several times."""
    if not options.output:
        return verdicts.persist(), ""
    path = f"{options.output.rstrip('/')}/{VERDICTS_NAME}"
    verdicts.write.mode("overwrite").parquet(path)
    return spark.read.parquet(path), path


def _findings(verdicts: DataFrame, seen: inputs.Lines, options: AuditOptions, sides: Sides) -> Findings:
    counts, latency, first_us, last_us = figures.totals(verdicts)
    step = step_us(first_us, last_us)
    named = {
        "logs": ", ".join(options.logs),
        "topics": ", ".join(options.full_topics),
        "archive": options.archive,
    }
    rules = {"unexpected": options.allow_unexpected, "missed": options.allow_missed}
    found = Findings(
        title=options.title,
        inputs={name: text for name, text in named.items() if text},
        made_us=SystemRuntime().entropy.wall_ms() * 1000,
        compares_stored=sides.stored,
        compares_received=sides.received,
        allowed=tuple(name for name, allowed in rules.items() if allowed),
        counts=counts,
        first_us=first_us,
        last_us=last_us,
        step_us=step,
        latency=latency,
        steps=figures.steps(verdicts, step),
        bins=figures.bins(verdicts),
        outages=figures.outages(verdicts, options.outage_ms),
        slowest=figures.slowest(verdicts, options.rows_shown),
        streams=figures.streams(verdicts),
        notes=_notes(seen),
    )
    is_spotless = not found.faults and not counts.in_doubt and not counts.expired
    return found if is_spotless else replace(found, faulty=figures.faulty(verdicts, options.rows_shown))


def _notes(seen: inputs.Lines) -> tuple[str, ...]:
    notes = []
    if seen.unreadable:
        lines = "1 line" if seen.unreadable == 1 else f"{seen.unreadable:,} lines"
        notes.append(f"{lines} of the logs could not be read; a client that is killed may tear its last one")
    if seen.elsewhere:
        lines = "1 line of the logs is" if seen.elsewhere == 1 else f"{seen.elsewhere:,} lines of the logs are"
        notes.append(f"{lines} about other topics and {'was' if seen.elsewhere == 1 else 'were'} passed over")
    return tuple(notes)


def _write_report(findings: Findings, options: AuditOptions) -> str:
    if not options.report:
        return ""
    path = Path(options.report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(findings), encoding="utf-8")
    return str(path.resolve())
