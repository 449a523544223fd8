"""kazoo and a real server under faults at random; `make soak ONLY=parts` has ten times as many."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FAULTS = 15


@pytest.mark.timeout(180)
def test_what_zookeeper_acknowledged_holds_over_pauses_lost_answers_and_broken_connections() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak.zookeeper_faults", "--faults", str(FAULTS), "--seed", "20261118"],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["wrong"] == []
    assert sum(verdict["faults"].values()) == FAULTS
    assert {"cut", "drop", "lost answer", "lost request", "pause", "long pause"} <= set(verdict["faults"])
