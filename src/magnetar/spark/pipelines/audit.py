"""`magnetar pipeline audit`: what was sent and acknowledged, against what is stored and received.

    result = run(spark, AuditOptions(logs=("logs/*.jsonl",), topics=("orders",), output="audit", report="audit.html"))
    result.passed, result.exit_code, result.verdicts        # a DataFrame, one row per message

Steps:     facts (audit_inputs) → one row per message (audit_verdicts) → what is wrong with it (audit_faults) → figures
           (audit_figures) → a table on the terminal (audit_table), HTML (report/).
Cost:      the verdicts are computed once, written as Parquet or kept by Spark, and everything is counted from them.
Read next: docs/audit.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.runtime.system import SystemRuntime
from magnetar.spark.pipelines import audit_faults, audit_figures, audit_inputs, audit_verdicts
from magnetar.spark.pipelines.audit_earliest import earliest_messages
from magnetar.spark.pipelines.audit_options import AuditOptions, Identity, Order
from magnetar.spark.pipelines.audit_plan import step_us
from magnetar.spark.pipelines.audit_result import AuditResult, Findings
from magnetar.spark.pipelines.report.page import render

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditOptions", "AuditResult", "Findings", "Identity", "Order", "run"]

VERDICTS_NAME: Final = "verdicts.parquet"


def run(spark: SparkSession, options: AuditOptions, tell: Callable[[str], None] = lambda _what: None) -> AuditResult:
    """AuditInputError when a log or an archive cannot be used. `tell` hears what is being done."""
    tell("reading the logs")
    lines = audit_inputs.read_logs(spark, options.logs)
    seen = audit_inputs.look_through(lines, options)
    stored = audit_inputs.read_stored(spark, options)
    if stored is None and not seen.received:
        raise audit_inputs.nothing_to_compare(options)
    sides = audit_faults.Sides(
        stored=stored is not None,
        received=seen.received > 0,
        subscriptions=seen.subscriptions,
        earliest=earliest_messages(options) if options.topics else {},
    )
    tell("comparing message by message")
    logged = audit_inputs.logged_facts(lines, options)
    facts = logged if stored is None else logged.unionByName(stored)
    verdicts, path = _kept(spark, judge(facts, sides, options, has_nameless=seen.nameless > 0), options)
    tell("counting")
    findings = _findings(verdicts, seen, options, sides)
    return AuditResult(findings, verdicts, path, _write_report(findings, options))


def judge(facts: DataFrame, sides: audit_faults.Sides, options: AuditOptions, *, has_nameless: bool) -> DataFrame:
    """From facts to verdicts, and nothing else: no file, no job."""
    named = audit_verdicts.recognised(facts, by_stored=sides.stored) if has_nameless else facts
    placed = audit_verdicts.in_order(named, options.order, options.received_order)
    return audit_faults.verdicts(audit_verdicts.by_message(placed), sides)


def _kept(spark: SparkSession, verdicts: DataFrame, options: AuditOptions) -> tuple[DataFrame, str]:
    """Computed once: everything below reads it several times."""
    if not options.output:
        return verdicts.persist(), ""
    path = f"{options.output.rstrip('/')}/{VERDICTS_NAME}"
    verdicts.write.mode("overwrite").parquet(path)
    return spark.read.parquet(path), path


def _findings(
    verdicts: DataFrame, seen: audit_inputs.Lines, options: AuditOptions, sides: audit_faults.Sides
) -> Findings:
    counts, latency, first_us, last_us = audit_figures.totals(verdicts)
    step = step_us(first_us, last_us)
    found = Findings(
        title=options.title,
        inputs=_inputs(options),
        made_us=SystemRuntime().entropy.wall_ms() * 1000,
        compares_stored=sides.stored,
        compares_received=sides.received,
        allowed=_allowed(options),
        counts=counts,
        first_us=first_us,
        last_us=last_us,
        step_us=step,
        latency=latency,
        steps=audit_figures.steps(verdicts, step),
        bins=audit_figures.bins(verdicts),
        outages=audit_figures.outages(verdicts, options.outage_ms),
        slowest=audit_figures.slowest(verdicts, options.rows_shown),
        streams=audit_figures.streams(verdicts),
        notes=_notes(seen),
    )
    is_spotless = not found.faults and not counts.in_doubt and not counts.expired
    return found if is_spotless else replace(found, faulty=audit_figures.faulty(verdicts, options.rows_shown))


def _inputs(options: AuditOptions) -> dict[str, str]:
    stored = {"topics": ", ".join(options.full_topics), "archive": options.archive}
    return {"logs": ", ".join(options.logs), **{name: text for name, text in stored.items() if text}}


def _allowed(options: AuditOptions) -> tuple[str, ...]:
    rules = {"unexpected": options.allow_unexpected, "missed": options.allow_missed}
    return tuple(name for name, allowed in rules.items() if allowed)


def _notes(seen: audit_inputs.Lines) -> tuple[str, ...]:
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
