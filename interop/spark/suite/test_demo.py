"""`make demo`, as a user runs it: a server killed under load, and the audit on Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from interop.spark.sink_faults import users_environment


@pytest.mark.timeout(300)
def test_the_demonstration_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        capture_output=True, text=True, timeout=290, check=False, env=users_environment() | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for column in ("sent", "acknowledged", "received", "lost", "duplicated", "out of order"):
        assert column in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert not _processes_that_mention(str(tmp_path))


def _processes_that_mention(text: str) -> list[str]:
    """Command lines; the servers have the directory in theirs."""
    found: list[str] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes()
        except OSError:  # It has ended meanwhile.
            continue
        if text.encode() in command:
            found.append(command.decode("utf-8", "replace"))
    return found
