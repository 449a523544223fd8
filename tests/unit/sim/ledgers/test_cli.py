"""The simulator's command line: what it prints, and how it ends."""

from __future__ import annotations

import json

import pytest

from magnetar.sim import cli
from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.watch import Violation


def test_a_batch_ends_with_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--seeds", "2", "--from", "30", "--jobs", "1", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)
    assert totals["seeds"] == 2
    assert totals["failed"] == []
    assert totals["counters"]["acks"] > 0


def test_one_seed_is_told_with_what_happened_in_its_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--seed", "30", "--without", "rot,loss"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed 30: E=")
    assert "bookie-0 serves" in told
    assert "digest" in told


def test_an_unknown_class_of_faults_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--without", "gremlins"]) == 2
    assert "there is no class of faults gremlins; there are kill, power" in capsys.readouterr().err


def test_a_seed_that_fails_is_told_with_its_world_and_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_seed = cli.run_seed

    def broken(seed: int, **options: object) -> Report:
        report = run_seed(seed, **options)  # type: ignore[arg-type]
        report.violations.append(Violation("L1", "ledger 3 was closed too early", 1.5))
        return report

    monkeypatch.setattr(cli, "run_seed", broken)
    assert cli.main(["--seeds", "1", "--from", "30", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert "bookie-0 serves" in told
    assert "VIOLATION L1 at 1.500000: ledger 3 was closed too early" in told
    assert "again: python -m magnetar.sim --seed 30" in told
    assert "violations: L1 in 1 seeds; seeds that failed: [30]" in told
