"""What the simulator replaces, as it really is: RocksDB's files, and the kernel's descriptors. `make soak` has more."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def verdict_of(program: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", program, "--seed", "20261118", *arguments],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(180)
def test_a_bookie_whose_index_lost_a_file_serves_everything_or_refuses() -> None:
    verdict = verdict_of("soak.index_cuts", "--rounds", "3", "--damages", "6")
    assert verdict["wrong"] == []
    assert verdict["acknowledged"] > 100


@pytest.mark.timeout(180)
def test_a_process_without_descriptors_serves_whom_it_has_and_recovers() -> None:
    verdict = verdict_of("soak.descriptors", "--rounds", "2")
    assert verdict["wrong"] == []
    assert verdict["turned_away"] > 0
