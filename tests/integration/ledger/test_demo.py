from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.testing.processes.child import processes_that_mention


@pytest.mark.timeout(300)
def test_the_demonstration_of_ledgers_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.ledger"],
        capture_output=True, text=True, timeout=290, check=False, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for column in ("acknowledged", "read", "lost", "duplicated", "out of order"):
        assert column in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert not processes_that_mention(str(tmp_path))
