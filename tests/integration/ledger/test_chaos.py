from __future__ import annotations

import json
import subprocess
import sys

import pytest

from workloads.chaos import Fault

SECONDS = 30


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_while_bookies_and_the_writer_are_killed_and_paused_for_half_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak.ledger_chaos", "--seconds", str(SECONDS), "--seed", "20261116"],
        capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        sys.stdout.write(f"\nledger chaos: {done.stdout}")
    verdict = json.loads(done.stdout)
    assert verdict["faults"].keys() == {fault.value for fault in Fault}
    assert verdict["ledgers"] == 1 + sum(count for fault, count in verdict["faults"].items() if "writer" in fault)
    assert verdict["ensemble_changes"] > 0
    assert verdict["read"] >= verdict["acknowledged"] > 1_000
    assert verdict["lost"] == verdict["duplicated"] == verdict["out_of_order"] == 0
    assert verdict["damaged"] == verdict["too_few_copies"] == 0
