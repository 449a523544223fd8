from __future__ import annotations

import json
import subprocess
import sys

import pytest

KILLS = 10


@pytest.mark.timeout(240)
def test_every_acknowledged_message_is_there_once_and_in_order_after_ten_kills_of_standalone_under_load() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak.pulsar_kills", "--kills", str(KILLS), "--seed", "20261116"],
        capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["kills"] == verdict["kills_with_unanswered_messages"] == KILLS
    assert verdict["received"] >= verdict["acknowledged"] > KILLS
    assert verdict["lost"] == verdict["duplicated"] == verdict["out_of_order"] == verdict["damaged"] == 0
    assert verdict["missed_by_subscription"] == verdict["again_in_vain"] == 0
