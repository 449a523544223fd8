"""Parts of `make interop` that run beside each other: what is printed, in which order, and the exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from interop.beside import run_beside

COUNTS = "1 passed, 0 failed"
WAIT = "import pathlib, time\nwhile not pathlib.Path({path!r}).exists(): time.sleep(0.01)\n"


def part(*lines: str, code: int = 0, before: str = "") -> list[str | Path]:
    """A process that prints these lines."""
    printing = "".join(f"print({line!r}, flush=True)\n" for line in lines)
    return [sys.executable, "-c", f"{before}{printing}raise SystemExit({code})"]


def test_two_parts_run_at_once_and_are_printed_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = tmp_path / "began"
    first = part("one:", "  passed  a", COUNTS, before=WAIT.format(path=str(began)))
    second = part("two:", "  passed  b", COUNTS, before=f"open({str(began)!r}, 'w').close()\n")
    assert run_beside({"one": first, "two": second}) == 0
    assert capsys.readouterr().out == "one:\n  passed  a\ntwo:\n  passed  b\n2 passed, 0 failed\n"


def test_the_longest_part_begins_first_and_is_printed_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = tmp_path / "began"
    waits = part(COUNTS, before=WAIT.format(path=str(began)))
    longest = part("long:", COUNTS, before=f"open({str(began)!r}, 'w').close()\n")
    assert run_beside({"one": waits, "two": waits, "long": longest}, first=["long"]) == 0
    assert capsys.readouterr().out == "long:\n3 passed, 0 failed\n"


def test_a_failure_in_one_part_is_kept_and_the_others_run_to_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    failing = part("  FAILED  b", "0 passed, 1 failed", code=1)
    assert run_beside({"one": failing, "two": part("  passed  c", COUNTS)}) == 1
    assert capsys.readouterr().out == "  FAILED  b\n  passed  c\n1 passed, 1 failed\n"


def test_a_part_that_ends_without_its_counts_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_beside({"one": part("  passed  a", code=3), "two": part(COUNTS)}) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == ["  FAILED  one ended with code 3 before its last check", "1 passed, 1 failed"]


def test_an_exit_code_is_kept_where_no_check_failed() -> None:
    assert run_beside({"one": part(COUNTS, code=3), "two": part(COUNTS)}) == 1


def test_parts_without_the_words_asked_for_are_no_failure_unless_all_are() -> None:
    nothing = part("0 passed, 0 failed", code=pytest.ExitCode.NO_TESTS_COLLECTED)
    assert run_beside({"one": nothing, "two": part(COUNTS)}) == 0
    assert run_beside({"one": nothing, "two": nothing}) != 0
