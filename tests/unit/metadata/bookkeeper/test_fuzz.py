"""Every decoder against a short deterministic run of mutated inputs, and the harness against broken decoders."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fuzz import __main__ as program
from fuzz import engine
from fuzz.engine import FindingError, Target, run, try_one
from fuzz.targets import all_targets

TARGETS = all_targets()
INPUTS = 300


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_ends_in_a_value_or_in_the_promised_error(name: str) -> None:
    report = run(TARGETS[name], seed=1, inputs=INPUTS)
    assert report.inputs == INPUTS
    assert 0 < report.accepted < INPUTS
    assert report.past_header > INPUTS / 2


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_accepted(name: str) -> None:
    assert all(try_one(TARGETS[name], data) for data in TARGETS[name].corpus)


def broken(decode: object) -> Target:
    return Target("broken", [b"abcdefgh"], decode, (ValueError,))  # type: ignore[arg-type]


def test_an_error_that_was_not_promised_is_found_and_found_again_with_the_same_seed() -> None:
    def decode(data: bytes) -> None:
        if len(data) == 3:
            raise KeyError(data)

    found = []
    for _ in range(2):
        with pytest.raises(FindingError, match="KeyError") as caught:
            run(broken(decode), seed=5, inputs=10_000)
        found.append(caught.value.data)
    assert found[0] == found[1]


def test_an_input_that_takes_too_much_memory_is_found() -> None:
    with pytest.raises(FindingError, match="memory"):
        run(broken(lambda _data: bytearray(engine.INPUT_MEMORY_MAX * 2)), seed=1, inputs=20)


def test_an_input_that_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "INPUT_SECONDS_MAX", 0.001)

    def slow(_data: bytes) -> None:
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass

    with pytest.raises(FindingError, match="took"):
        run(broken(slow), seed=1, inputs=5)


def test_memory_that_is_never_given_back_is_found_although_much_was_freed_before() -> None:
    freed = [b"x" * 100_000 for _ in range(3_000)]
    last = b"x" * 100_000  # The heap cannot shrink below it, so the rest stays in the process.
    del freed
    held: list[bytes] = [last]
    with pytest.raises(FindingError, match="held"):
        run(broken(lambda _data: held.append(b"x" * 100_000)), seed=1, inputs=2_000)


def test_a_finding_is_kept_with_a_line_that_runs_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def decode(data: bytes) -> None:
        if data != b"abcdefgh":
            raise KeyError(data)

    monkeypatch.setattr(program, "all_targets", lambda: {"broken": broken(decode)})
    monkeypatch.setattr(program, "FINDINGS", tmp_path)
    assert program.main(["broken", "--inputs", "50", "--seed", "9"]) == 1
    output = capsys.readouterr().out
    assert "seed 9" in output
    replay = output.partition("again: python -m fuzz ")[2].split()
    assert program.main(replay) == 1
    assert "KeyError" in capsys.readouterr().out


def test_a_run_prints_its_rate_and_how_deep_it_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["layout", "--inputs", "50", "--seed", "3"]) == 0
    assert "50 inputs" in (output := capsys.readouterr().out)
    assert "inputs/s" in output
    assert "past the header" in output
