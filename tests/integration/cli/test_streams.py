"""Commands that were started without standard input, output or error, as supervisors and cron do."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from magnetar.testing.processes.child import wait_for
from tests.commands import clean_environment

TIMEOUT_S = 60
MAGNETAR = f"'{sys.executable}' -m magnetar.cli.main"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_on_an_event_loop_works_without_some_streams(tmp_path: Path, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {MAGNETAR} metadata init --metadata sqlite:{tmp_path}/m.db {closed}"],
        env=clean_environment(), capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert Path(tmp_path, "m.db").exists()


def test_a_server_runs_without_input_and_error(tmp_path: Path) -> None:
    log = tmp_path / "ready"
    ports = "--port 0 --http-port 0"
    with subprocess.Popen(
        ["sh", "-c", f"exec {MAGNETAR} standalone --dir {tmp_path}/data {ports} <&- 2>&- >{log}"],
        env=clean_environment(),
    ) as process:
        try:
            wait_for(
                lambda: log.exists() and b"\n" in log.read_bytes(), what="the server's ready line", timeout=TIMEOUT_S
            )
            url = json.loads(log.read_bytes())["admin_url"]
            with urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT_S) as answer:
                assert answer.status == 200
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
