"""`make demo`, as a user runs it: a server killed under load, and the audit on Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from demo.__main__ import OUTPUT
from magnetar.testing.processes.child import processes_that_mention

_TIMEOUT_S: Final = 900
"""It takes less than a minute on an idle machine; the rest is for a busy one."""


@pytest.mark.timeout(_TIMEOUT_S + 30)
def test_the_demonstration_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report = OUTPUT / "audit-report.html"
    report.unlink(missing_ok=True)  # Else that of an earlier run would do.
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for column in ("sent", "acknowledged", "received", "lost", "duplicated", "out of order"):
        assert column in done.stdout
    assert f"\nreport: {report}\n" in done.stdout
    assert "</html>" in report.read_text()
    assert list(tmp_path.iterdir()) == []
    assert not processes_that_mention(str(tmp_path))
