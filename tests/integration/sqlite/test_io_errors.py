from __future__ import annotations

import json
import subprocess
import sys

ROUNDS = 240


def test_what_the_store_answered_holds_on_a_device_with_random_io_errors() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak.sqlite_errors", "--rounds", str(ROUNDS), "--seed", "20261118"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["wrong"] == []
    assert verdict["outcomes"]["done"] > ROUNDS
    assert {"SQLITE_FULL", "SQLITE_IOERR_READ", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC"} <= set(verdict["injected"])
