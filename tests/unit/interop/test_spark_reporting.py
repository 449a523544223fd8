"""Names of tests as the sentences that a report has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.spark.reporting import sentence


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("interop/spark/suite/test_sql.py::test_a_view_is_read", "a view is read"),
        ("a.py::test_both_roads[bookie-3]", "both roads [bookie-3]"),
    ],
)
def test_the_name_of_a_test_is_a_sentence(nodeid: str, expected: str) -> None:
    assert sentence(nodeid) == expected


SUITE = """
import pytest

@pytest.mark.skipif(True, reason="no browser here")
def test_what_needs_a_browser(): ...

def test_what_finds_out_by_itself(): pytest.skip("cannot")

def test_what_holds(): ...

def test_what_does_not_hold(): assert False
"""


def test_only_a_mark_may_leave_a_test_out(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    tally = tmp_path / "tally.json"
    options = ["-p", "interop.spark.reporting", "-p", "no:terminal", "-p", "no:cacheprovider", f"--check-tally={tally}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", os.devnull, str(tmp_path / "test_suite.py")],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert json.loads(tally.read_text()) == {"passed": 1, "failed": 2}
    assert "left out  what needs a browser: skipped: Skipped: no browser here" in done.stdout
