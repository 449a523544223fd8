"""Directed runs: each shows its planted bug on every seed, and passes without it."""

from __future__ import annotations

import pytest

from magnetar.sim.mutants.scenes import SCENES, run_scene

PLAYED = [(number, seed) for number, scene in SCENES.items() for seed in range(1, scene.seeds + 1)]


@pytest.mark.parametrize(("number", "seed"), PLAYED)
def test_directed_run_catches_its_bug_on_every_seed(number: int, seed: int) -> None:
    report = run_scene(number, seed, planted=True)
    assert report.failure is None
    assert SCENES[number].caught_by in report.caught


@pytest.mark.parametrize(("number", "seed"), PLAYED)
def test_directed_run_is_clean_without_the_bug(number: int, seed: int) -> None:
    report = run_scene(number, seed, planted=False)
    assert report.failure is None
    assert report.violations == []
