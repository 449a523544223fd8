"""What `make interop` prints and how it ends: one line for each check, a last line with the counts, an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.reporting import sentence

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("spark/suite/test_sql.py::test_a_view_is_read", "a view is read"),
        ("a.py::test_both_roads[bookie-3]", "both roads [bookie-3]"),
        ("a.py::test_programs[seed::1]", "programs [seed::1]"),
    ],
)
def test_the_name_of_a_test_is_a_sentence(nodeid: str, expected: str) -> None:
    assert sentence(nodeid) == expected


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    options = ["-p", "interop.reporting", "-p", "no:terminal", "-p", "no:cacheprovider", "-c", os.devnull]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


SUITE = """
import pytest

@pytest.mark.skipif(True, reason="no browser here")
def test_what_needs_a_browser(): ...

def test_what_finds_out_by_itself(): pytest.skip("cannot")

def test_what_holds(): ...

def test_what_does_not_hold(): assert 1 == 2, "one is not two"
"""


def test_the_last_line_counts_and_a_failure_is_in_the_exit_code_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = report(tmp_path)
    assert done.stdout.splitlines()[-1] == "1 passed, 2 failed"
    assert done.returncode == 1
    assert "  passed  what holds (" in done.stdout
    assert "  FAILED  what does not hold\n" in done.stdout
    assert "one is not two" in done.stdout


def test_only_a_mark_may_leave_a_test_out(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    assert "left out  what needs a browser: skipped: Skipped: no browser here" in report(tmp_path).stdout


def test_success_is_zero_and_words_choose_checks(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = report(tmp_path, "--check=what holds")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed")


def test_running_nothing_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = report(tmp_path, "--check=no such words")
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "0 passed, 0 failed"


def test_a_part_without_a_check_fails_though_others_have_some(tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    for folder in (full, empty):
        folder.mkdir()
    (full / "test_suite.py").write_text("def test_what_holds(): ...\n")
    done = report(full, empty)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "1 passed, 1 failed")
    assert "FAILED  empty has no check at all" in done.stdout


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text("import no_such_module\n")
    done = report(tmp_path)
    assert done.returncode != 0
    assert not done.stdout.splitlines()[-1].endswith(" 0 failed")
    assert "no_such_module" in done.stdout


def test_what_the_servers_cannot_do_fails_every_check_that_needs_them(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def server(): raise OSError('Maven is not there')\n"
        "def test_one(server): ...\n"
        "def test_two(server): ...\n"
    )
    done = report(tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "0 passed, 2 failed")
    assert "Maven is not there" in done.stdout
