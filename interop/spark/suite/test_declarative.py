"""The declarative example runs from nothing to its result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.declarative.__main__ import SECONDS_MAX, START_SECONDS_MAX, require_connect
from magnetar.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[3]
_ROUNDS = 2
_REST_S = 180  # A server, orders, and the ends of all that was started.
LIMIT_S = _ROUNDS * (SECONDS_MAX + START_SECONDS_MAX) + _REST_S


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_example_reads_a_topic_writes_a_table_and_another_topic() -> None:
    try:
        require_connect()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-m", "examples.declarative"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Leslie" in done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("topic large-orders has")]
    counts = [int(word) for word in line.split() if word.isdigit()]
    assert counts[0] == counts[1] > 50
