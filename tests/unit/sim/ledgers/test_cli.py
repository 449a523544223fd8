"""The simulator's command line: what it prints, and how it ends."""

from __future__ import annotations

import json

import pytest

from magnetar.sim import __main__ as command
from magnetar.sim import scenarios
from magnetar.sim.ledgers.watch import Violation
from magnetar.sim.run import Report


def test_a_batch_ends_with_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--kind", "ledgers", "--seeds", "2", "--from", "30", "--jobs", "1", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["ledgers"]
    assert totals["seeds"] == 2
    assert totals["failed"] == []
    assert totals["counters"]["acks"] > 0


def test_one_seed_is_told_with_what_happened_in_its_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "30", "--without", "rot,loss"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed 30: E=")
    assert "bookie-0 serves" in told
    assert "digest" in told


def test_an_unknown_class_of_faults_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--without", "gremlins"]) == 2
    assert "there is no class of faults gremlins; there are kill, power" in capsys.readouterr().err


def test_a_seed_that_fails_is_told_with_its_world_and_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = scenarios.run

    def broken(kind: str, seed: int, **options: object) -> Report:
        report = run(kind, seed, **options)
        report.violations.append(Violation("L1", "ledger 3 was closed too early", 1.5))
        return report

    monkeypatch.setattr(command, "run", broken)
    assert command.main(["--kind", "ledgers", "--seeds", "1", "--from", "30", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert "bookie-0 serves" in told
    assert "VIOLATION L1 at 1.500000: ledger 3 was closed too early" in told
    assert "again: python -m magnetar.sim --kind ledgers --seed 30" in told
    assert "violations: L1 in 1 seeds; seeds that failed: [30]" in told


def test_all_kinds_of_worlds_are_run_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, int]] = []

    def seen(kind: str, seed: int, **_options: object) -> Report:
        ran.append((kind, seed))
        return Report(seed, "")

    monkeypatch.setattr(command, "run", seen)
    assert command.main(["--seeds", "2", "--from", "5", "--jobs", "1"]) == 0
    assert ran == [(kind, seed) for seed in (5, 6) for kind in ("ledgers", "topics", "bundles", "staging")]
    told = capsys.readouterr().out
    assert "2 seeds of ledgers" in told
    assert "2 seeds of topics" in told
    ran.clear()
    assert command.main(["--kind", "topics", "--seed", "5"]) == 0
    assert ran == [("topics", 5)]
    assert "brokers=" in capsys.readouterr().out


def test_a_class_of_faults_of_topics_is_none_of_ledgers(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--kind", "ledgers", "--without", "broker"]) == 2
    assert "there is no class of faults broker" in capsys.readouterr().err
