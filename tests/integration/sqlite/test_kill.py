from __future__ import annotations

import json
import subprocess
import sys

KILLS = 200


def test_nothing_acknowledged_is_lost_when_the_process_is_killed_two_hundred_times() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak.sqlite_kills", "--kills", str(KILLS), "--seed", "20261116"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["kills"] == KILLS
    assert verdict["acknowledged"] > KILLS
    assert [verdict[kind] for kind in ("lost", "torn", "ephemeral_left", "unasked")] == [0, 0, 0, 0]
