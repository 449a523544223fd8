"""The arithmetic of an audit, its options and its verdict: no Spark."""

from __future__ import annotations

import json
import math

import pytest

from magnetar.errors import ConfigError, InvalidNameError
from magnetar.spark.pipelines.audit.values import (
    FAULTS,
    LOWEST_BIN,
    STEPS_MAX,
    VERDICTS,
    AuditOptions,
    AuditResult,
    Counts,
    bin_edges_ms,
    bin_of,
    step_us,
    whole_topic,
)
from tests.unit.spark.audit.findings import failed_findings, some_findings


@pytest.mark.parametrize("seconds", [0, 0.5, 1, 18, 60, 3_600, 86_400, 400 * 86_400])
def test_a_run_is_cut_into_as_many_steps_as_a_plot_can_show(seconds: float) -> None:
    length_us = round(seconds * 1_000_000)
    step = step_us(1_700_000_000_000_000, 1_700_000_000_000_000 + length_us)
    assert length_us / step <= STEPS_MAX
    assert step == 10_000 or length_us / step > STEPS_MAX / 6, "steps are no longer than they need to be"


def test_bins_follow_each_other_without_a_gap() -> None:
    for number in range(LOWEST_BIN, 40):
        low, high = bin_edges_ms(number)
        assert math.isclose(high, bin_edges_ms(number + 1)[0])
        assert bin_of(math.sqrt(low * high)) == number


def test_what_took_no_time_at_all_is_in_the_lowest_bin() -> None:
    assert bin_of(0.0) == bin_of(-3.0) == LOWEST_BIN


def test_a_message_is_called_by_the_worst_of_its_faults() -> None:
    assert VERDICTS[0] == "lost"
    assert VERDICTS[-1] == "good"
    assert set(VERDICTS) > {fault.name for fault in FAULTS}


def test_topics_are_compared_under_their_full_names_without_partitions() -> None:
    names = ["orders", "orders-partition-3", "persistent://public/default/orders", "public/default/orders-partition-0"]
    assert {whole_topic(name) for name in names} == {"persistent://public/default/orders"}
    assert AuditOptions(logs=("x",), topics=(*names, "a")).full_topics == (
        "persistent://public/default/a",
        "persistent://public/default/orders",
    )
    with pytest.raises(InvalidNameError):
        whole_topic("a/b")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logs": ()}, "no logs"),
        ({"logs": ("x",), "topics": ("t",), "archive": "a"}, "not from both"),
        ({"logs": ("x",), "outage_ms": 0}, "at least 1 ms"),
        ({"logs": ("x",), "rows_shown": 0}, "1 to 1000"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_spark_starts(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AuditOptions(**options)  # type: ignore[arg-type]


def test_an_audit_without_faults_passes_and_says_what_that_means() -> None:
    result = AuditResult(some_findings(), verdicts=None)
    assert result.exit_code == 0
    assert result.findings.sentence == "Everything that was acknowledged is stored, once and in order."


def test_an_audit_with_faults_fails_and_names_them() -> None:
    result = AuditResult(failed_findings(), verdicts=None)
    assert result.exit_code == 1
    assert result.findings.sentence == "2 lost, 1 duplicated, 9 missed."


def test_an_audit_of_nothing_does_not_pass() -> None:
    result = AuditResult(some_findings(counts=Counts(sent=5, in_doubt=5)), verdicts=None)
    assert result.exit_code == 1
    assert "Nothing was acknowledged" in result.findings.sentence


def test_faults_that_are_allowed_are_counted_but_do_not_fail() -> None:
    counts = Counts(sent=9, acknowledged=9, stored=9, missed=3, unexpected=1)
    assert not some_findings(counts=counts, allowed=("missed",)).passed
    assert some_findings(counts=counts, allowed=("missed", "unexpected")).passed


def test_the_summary_for_programs_is_json() -> None:
    summary = json.loads(json.dumps(AuditResult(failed_findings(), None, report_path="/x.html").as_json()))
    assert summary["passed"] is False
    assert summary["counts"]["lost"] == 2
    assert summary["latency_ms"]["ack"]["p99"] == 20.0
    assert summary["report"] == "/x.html"
    assert "verdicts" not in summary
