"""What the commands of `magnetar dev` ask of the process that runs a cluster, with members that are no processes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.cli.dev_cluster import Control, ask, listening, obey
from magnetar.errors import ArgumentError, MagnetarError, ProcessFailedError
from magnetar.testing.processes.cluster import ProcessCluster


class FakeMember:
    """Remembers what was done to it."""

    def __init__(self) -> None:
        self.pid = 1
        self.is_running = True
        self.done: list[str] = []

    def start(self) -> None:
        self.is_running = True
        self.done.append("start")

    def stop(self) -> None:
        self.is_running = False
        self.done.append("stop")

    def kill(self) -> None:
        self.is_running = False
        self.done.append("kill")

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")


@pytest.fixture
def member() -> FakeMember:
    return FakeMember()


@pytest.fixture
def control(member: FakeMember) -> Control:
    return Control(cast("ProcessCluster", SimpleNamespace(members={"broker-1": member, "bookie-1": FakeMember()})))


@pytest.fixture
def directory(control: Control, tmp_path: Path) -> Iterator[Path]:
    """The directory of a cluster that obeys."""
    is_over = threading.Event()
    with listening(tmp_path) as listener:
        thread = threading.Thread(target=obey, args=(listener, control, is_over.is_set))
        thread.start()
        try:
            yield tmp_path
        finally:
            is_over.set()
            thread.join(10)


def states(members: list[dict[str, Any]]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in members}


def test_a_member_is_paused_resumed_killed_and_started_again(directory: Path, member: FakeMember) -> None:
    assert states(ask(directory, "status")) == {"broker-1": "running", "bookie-1": "running"}
    assert states(ask(directory, "pause", "broker-1"))["broker-1"] == "paused"
    assert states(ask(directory, "resume", "broker-1"))["broker-1"] == "running"
    assert states(ask(directory, "kill", "broker-1"))["broker-1"] == "ended"
    assert states(ask(directory, "restart", "broker-1"))["broker-1"] == "running"
    assert states(ask(directory, "restart", "broker-1"))["broker-1"] == "running"
    assert member.done == ["pause", "resume", "kill", "start", "stop", "start"]


def test_a_member_that_has_ended_is_not_paused_and_the_error_says_how_to_start_it(directory: Path) -> None:
    ask(directory, "kill", "broker-1")
    with pytest.raises(MagnetarError, match="broker-1 has ended: start it with `magnetar dev restart broker-1`"):
        ask(directory, "pause", "broker-1")


def test_a_name_that_no_member_has_is_refused_with_those_there_are(directory: Path) -> None:
    with pytest.raises(ArgumentError, match="no member 'broker-9'; it has: broker-1, bookie-1"):
        ask(directory, "kill", "broker-9")


def test_a_member_that_ends_by_itself_is_reported_once(control: Control, member: FakeMember) -> None:
    assert control.newly_ended() == []
    member.is_running = False
    assert control.newly_ended() == ["broker-1"]
    assert control.newly_ended() == []
    control.do("restart", "broker-1")
    control.do("kill", "broker-1")
    assert control.newly_ended() == []


def test_a_request_that_is_not_understood_is_answered_and_the_next_one_is_served(directory: Path) -> None:
    for line in (b"nonsense\n", b'{"do": "dance", "member": "broker-1"}\n', b"[]\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(directory / "control.sock"))
            connection.sendall(line)
            assert "not understood" in json.loads(connection.recv(4096))["error"]
    assert len(ask(directory, "status")) == 2


def test_without_a_cluster_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailedError, match="start one with `magnetar dev cluster`"):
        ask(tmp_path, "status")


def test_one_directory_has_one_cluster_at_a_time(directory: Path) -> None:
    with pytest.raises(MagnetarError, match=r"a cluster is running in .* already"), listening(directory):
        pass


def test_the_socket_of_a_cluster_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "control.sock"))
    with listening(tmp_path):
        assert (tmp_path / "control.sock").exists()
    assert not (tmp_path / "control.sock").exists()
