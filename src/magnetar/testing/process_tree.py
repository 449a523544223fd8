"""A process with all that it started: who they are, and their end.

Why:   Spark is a Python driver, a JVM, a daemon and its workers. Each notices within milliseconds that another has
       gone, and may end, or start something, while we look at the list.
Where: Linux, which tells the children of every thread in /proc.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Its children, their children, and so on, as they are now; nothing of a process that has ended."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def kill_tree(pid: int) -> None:
    """kill -9 of the process and its descendants at one moment: they are stopped first, so that nothing is started
    meanwhile, and nobody sees another end. The caller collects its own child."""
    stopped: list[int] = []
    while moving := [each for each in (pid, *descendants(pid)) if each not in stopped]:
        for each in moving:
            _signal(each, signal.SIGSTOP)
        stopped += moving
    for each in stopped:
        _signal(each, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # It has ended.
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            found += map(int, (task / "children").read_text().split())
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
