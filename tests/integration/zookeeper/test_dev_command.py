"""`magnetar dev zookeeper` as a real process: it must end its servers whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from magnetar.testing.processes.child import process_exists, wait_for
from magnetar.testing.processes.zookeeper import ZooKeeperServer

COMMAND = [sys.executable, "-m", "magnetar.cli.main", "dev", "zookeeper"]
OWNER = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"


@contextmanager
def running(*options: str, owner: bool = False) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The process that we started, and what the command printed when it was ready."""
    argv = [*([sys.executable, "-c", OWNER] if owner else []), *COMMAND, *options]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"ended with {process.wait()}"
            yield process, json.loads(line)
        finally:
            process.kill()


def nothing_is_left(ready: dict[str, Any]) -> None:
    for pid in ready["pids"]:
        wait_for(lambda pid=pid: not process_exists(pid), what=f"the end of server process {pid}")


def make_node(ready: dict[str, Any]) -> None:
    client = KazooClient(",".join(ready["servers"]))
    client.start(timeout=20)
    client.create("/made", b"1")
    client.stop()
    client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_its_server(number: signal.Signals) -> None:
    with running() as (process, ready):
        assert ready["ready"] is True
        assert ready["url"] == f"zk://{ready['servers'][0]}"
        make_node(ready)
        process.send_signal(number)
        assert process.wait(20) == 0
        nothing_is_left(ready)


def test_kill_9_of_the_command_leaves_no_server_behind(tmp_path: Path) -> None:
    with running("--dir", str(tmp_path)) as (process, ready):
        process.kill()
        process.wait(20)
        nothing_is_left(ready)


def test_the_end_of_the_owner_ends_the_command(tmp_path: Path) -> None:
    with running("--dir", str(tmp_path), owner=True) as (owner, ready):
        command = parent_of(ready["pids"][0])
        assert command != owner.pid
        owner.kill()
        owner.wait(20)
        nothing_is_left(ready)
        wait_for(lambda: not process_exists(command), what="the end of the command")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_closing_stdin_ends_the_command_when_asked_to() -> None:
    with running("--until-stdin-closes") as (process, ready):
        assert process.stdin is not None
        process.stdin.write("anything may be written here\n")
        process.stdin.flush()
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(20) == 0
        nothing_is_left(ready)


def test_three_servers_form_an_ensemble() -> None:
    with running("--servers", "3") as (process, ready):
        assert len(ready["servers"]) == len(ready["pids"]) == 3
        make_node(ready)
        process.terminate()
        assert process.wait(20) == 0
        nothing_is_left(ready)


def test_a_directory_keeps_the_data_for_the_next_time(tmp_path: Path) -> None:
    with running("--dir", str(tmp_path / "kept")) as (process, ready):
        make_node(ready)
        process.terminate()
        process.wait(20)
    with running("--dir", str(tmp_path / "kept")) as (process, ready):
        client = KazooClient(ready["servers"][0])
        client.start(timeout=20)
        assert client.get("/made")[0] == b"1"
        client.stop()
        client.close()
        process.terminate()
        process.wait(20)


def test_the_command_fails_with_the_reason_when_its_server_ends() -> None:
    with subprocess.Popen(
        COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        os.kill(ready["pids"][0], signal.SIGKILL)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "was ended by SIGKILL" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [(["--servers", "2"], 2, "--servers is 1 or 3"), (["--port", "PORT"], 1, "is in use")],
)
def test_wrong_options_are_refused_in_one_line(
    zookeeper: ZooKeeperServer, options: list[str], code: int, message: str
) -> None:
    options = [option.replace("PORT", str(zookeeper.port)) for option in options]
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
