"""`make demo` and `python -m demo.standalone`, as a user runs them: faults under load, audit and scrub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from demo.audit import BUILD, REPORT
from magnetar.testing.processes.child import processes_that_mention

_TIMEOUT_S: Final = 900
"""Each takes about a minute on an idle machine; the rest is for a busy one."""
REPAIR: Final = ("no ledger names bookie-", "verified, nothing is wrong")


@pytest.mark.timeout(_TIMEOUT_S + 30)
@pytest.mark.parametrize(
    ("program", "results", "shown"),
    [
        ("demo", "demo", ("bookie killed", "broker killed", "session expired", *REPAIR)),
        ("demo.standalone", "demo-standalone", ()),
    ],
    ids=["of a cluster", "of standalone"],
)
def test_the_demonstration_passes_and_leaves_nothing_behind(
    program: str, results: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    report = BUILD / results / REPORT
    report.unlink(missing_ok=True)  # Otherwise that of an earlier run would do.
    done = subprocess.run(
        [sys.executable, "-m", program],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for column in ("sent", "acknowledged", "received", "lost", "duplicated", "out of order", *shown):
        assert column in done.stdout
    assert f"\nreport: {report}\n" in done.stdout
    assert "</html>" in report.read_text()
    assert list(tmp_path.iterdir()) == []
    assert not processes_that_mention(str(tmp_path))
