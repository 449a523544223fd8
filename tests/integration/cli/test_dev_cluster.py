"""`magnetar dev cluster` as a real process, with members that are killed and paused from other processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magnetar.testing.processes.child import process_exists, wait_for

MAGNETAR = [sys.executable, "-m", "magnetar.cli.main"]
TIMEOUT_S = 60
SHORT_SESSIONS = "metadata.session_timeout_ms=2_000"  # A bookie that was killed starts after its session has ended.


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, dict[str, Any]]]]:
    """The process that was started, and its members by their names."""
    size = ["--brokers", "1", "--bookies", "2", "--port", "0", "--http-port", "0", "--set", SHORT_SESSIONS]
    argv = [*MAGNETAR, "dev", "cluster", "--dir", str(directory), *size, "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"ended with {process.wait()}"
            yield process, by_name(json.loads(line)["members"])
        finally:
            process.kill()


def by_name(members: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in members}


def run(*arguments: str) -> str:
    done = subprocess.run([*MAGNETAR, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_members_are_killed_and_paused_from_another_process_and_the_data_outlives_the_cluster(tmp_path: Path) -> None:
    directory = tmp_path / "c"

    def dev(verb: str, *member: str) -> dict[str, dict[str, Any]]:
        return by_name(json.loads(run("dev", verb, *member, "--dir", str(directory), "--json")))

    with cluster(directory) as (process, members):
        assert list(members) == ["zookeeper-1", "bookie-1", "bookie-2", "broker-1"]
        url = members["broker-1"]["url"]
        run("produce", "letters", "a", "b", "--url", url)

        assert dev("kill", "bookie-1")["bookie-1"]["state"] == "ended"
        assert not process_exists(members["bookie-1"]["pid"])
        restarted = dev("restart", "bookie-1")["bookie-1"]
        assert restarted["state"] == "running"
        assert restarted["address"] == members["bookie-1"]["address"]

        assert dev("pause", "broker-1")["broker-1"]["state"] == "paused"
        assert is_stopped(members["broker-1"]["pid"])
        assert dev("resume", "broker-1")["broker-1"]["state"] == "running"
        run("produce", "letters", "c", "--url", url)

        pids = [each["pid"] for each in dev("status").values()]
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        for pid in pids:
            wait_for(lambda pid=pid: not process_exists(pid), what=f"the end of process {pid}")
    with cluster(directory) as (_, again):
        assert {name: each.get("address") for name, each in again.items()} == {
            name: each.get("address") for name, each in members.items()
        }
        broker = again["broker-1"]
        read = run("read", "letters", "--url", broker["url"], "--admin-url", broker["admin_url"])
        assert read.split() == ["a", "b", "c"]
