from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.testing.processes.child import Child, descendants, kill_tree, process_exists, wait_for

# A process that starts another like it, and so on. Each waits for the end of the one that started it, leaves a file
# that says so, and ends: what Spark's Python workers do when their JVM has ended.
CHAIN = """
import subprocess, sys
from pathlib import Path
directory, depth = Path(sys.argv[1]), int(sys.argv[2])
if depth:
    command = [sys.executable, "-c", sys.argv[3], directory, str(depth - 1), sys.argv[3]]
    started = subprocess.Popen(command, stdin=subprocess.PIPE)
(directory / f"up-{depth}").touch()
sys.stdin.read()
(directory / f"alone-{depth}").touch()
"""
LENGTH = 3


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Child]:
    """The first of a chain that stands."""
    command = [sys.executable, "-c", CHAIN, tmp_path, str(LENGTH - 1), CHAIN]
    child = Child(command, log=tmp_path / "log", stdin=subprocess.PIPE)
    child.wait_until(lambda: (tmp_path / "up-0").exists(), what="the last of the chain", timeout=30)
    yield child
    child.kill()


def test_descendants_are_children_and_theirs(first: Child) -> None:
    found = descendants(first.pid)
    assert len(found) == LENGTH - 1
    assert descendants(found[0]) == found[1:]
    assert descendants(found[-1]) == []


def test_a_process_that_has_ended_has_no_descendants(first: Child) -> None:
    first.kill()
    assert descendants(first.pid) == []


def test_a_tree_is_killed_with_nobody_left(first: Child) -> None:
    tree = [first.pid, *descendants(first.pid)]
    kill_tree(first.pid)
    first.kill()
    wait_for(lambda: not any(map(process_exists, tree)), what="the end of all")


def test_all_of_a_tree_stand_still_when_the_first_is_killed(
    first: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {first.pid, *descendants(first.pid)}
    stopped: set[int] = set()
    kill = os.kill

    def watched(pid: int, number: signal.Signals) -> None:
        if number == signal.SIGSTOP:
            stopped.add(pid)
        else:
            assert stopped == tree
        kill(pid, number)

    monkeypatch.setattr(os, "kill", watched)
    kill_tree(first.pid)
    assert list(tmp_path.glob("alone-*")) == [], "nobody lived to see another's end"


def test_killing_a_tree_that_has_ended_is_no_error(first: Child) -> None:
    first.kill()
    kill_tree(first.pid)
