"""python -m magnetar.sim.mutants: what it prints, and when it fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest

from magnetar.sim.mutants import __main__ as command
from magnetar.sim.mutants import hunt as hunting
from magnetar.sim.mutants.hunt import CONTROL, CONTROLS, Catch, Hunt
from magnetar.sim.mutants.registry import MUTANTS


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mutants", *arguments])
    return command.main()


@pytest.fixture
def hunts(monkeypatch: pytest.MonkeyPatch) -> dict[int, Catch | None]:
    """What is caught, in place of the simulator: everything, by the invariant that is meant to."""
    caught: dict[int, Catch | None] = {
        number: Catch(3, mutant.caught_by, "something is wrong") for number, mutant in MUTANTS.items()
    }

    @contextlib.contextmanager
    def nobody(count: int) -> Iterator[None]:
        yield

    async def hunt(number: int, *_: object) -> Hunt:
        return Hunt(number, caught.get(number), seeds=3)

    monkeypatch.setattr(command, "workers", nobody)
    monkeypatch.setattr(hunting, "hunt", hunt)
    return caught


def test_all_bugs_caught_and_a_clean_control_are_a_success(
    hunts: dict[int, Catch | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    printed = capsys.readouterr().out
    hunted = len(MUTANTS) + len(CONTROLS)
    assert f"{hunted} of {hunted} as they should be" in printed
    assert all(mutant.sentence[:30] in printed for mutant in MUTANTS.values())


def test_bug_that_was_not_caught_is_a_failure(
    hunts: dict[int, Catch | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hunts[9] = None
    assert run(monkeypatch) == 1
    printed = capsys.readouterr().out
    assert "NOT CAUGHT" in printed
    assert "mutants 9 --seed" in printed


def test_control_that_is_not_clean_is_a_failure(
    hunts: dict[int, Catch | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hunts[CONTROL] = Catch(12, ("L1",), "something is wrong")
    assert run(monkeypatch, "0", "4") == 1
    assert "NOT CLEAN: seed 12" in capsys.readouterr().out


def test_one_seed_can_be_replayed_with_its_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "13", "--seed", "1") == 0
    assert "B1 at " in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "said"), [(["99"], "no planted bug 99"), (["--seed", "3"], "needs the number")])
def test_wrong_arguments_are_explained(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, *arguments)
    assert said in capsys.readouterr().err
