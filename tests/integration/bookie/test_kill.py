from __future__ import annotations

import json
import subprocess
import sys

import pytest

KILLS = 30


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_when_a_bookie_is_killed_thirty_times_under_load() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak.bookie_kills", "--kills", str(KILLS), "--seed", "20261116"],
        capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["kills"] == verdict["kills_with_unanswered_adds"] == KILLS
    assert verdict["acknowledged"] > KILLS
    assert verdict["wrong_or_lost"] == 0
