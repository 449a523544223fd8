"""The suite of the Pulsar front end on a cluster whose bundles move: tests/integration/pulsar/features.

It is the suite that `make test` runs on one broker, and that can be run on Apache Pulsar. It takes two minutes here, so
it is no part of `make test`.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_SUITE = "tests/integration/pulsar/features"
_TIMEOUT_S = 900
_SHOWN_CHARACTERS = 5_000


@pytest.mark.timeout(_TIMEOUT_S + 60)
def test_the_suite_of_the_pulsar_front_end_passes_while_a_random_bundle_is_unloaded_every_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-m", "pytest", _SUITE, "--moving-cluster", str(secrets.randbits(31)), "-q", "-n", "0"]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
    done = subprocess.run(command, cwd=_ROOT, env=ours, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    report = [line for line in done.stdout.splitlines() if line.startswith("seed ") or "quiet owner" in line]
    with capsys.disabled():
        for line in report:
            print(f"  {line}", flush=True)
    assert done.returncode == 0, done.stdout[-_SHOWN_CHARACTERS:] + done.stderr[-_SHOWN_CHARACTERS:]
    assert len(report) == 2, report
