"""Runs parts beside each other, each in a process of its own; what they print appears one part after the other.

Order:    The first part that has not ended prints as it goes; what the others print waits in files until it is their
          turn. Parts begin in an order of their own, the longest first, and at most PROCESSES of them run at a time.
Failure:  Every part runs to its end, whatever others do. One that ends without its last line counts as one failure.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from magnetar.testing.processes.child import Child, kill_tree

PROCESSES = 2  # For two cores: a part waits for its servers most of the time, or uses one core and a half.
_ROOT = Path(__file__).resolve().parents[1]
_POLL_S = 0.1
_END_TIMEOUT_S = 30
_COUNTS = re.compile(rb"(\d+) passed, (\d+) failed\n")


class _Part:
    """One part as a process. `begin` starts it; `print_new` prints what it said since the last call."""

    def __init__(self, name: str, command: Sequence[str | Path], directory: Path) -> None:
        self.passed = self.failed = 0
        self._name = name
        self._command = command
        self._output = directory / f"{name}.txt"
        self._printed_bytes = 0
        self._has_counted = False
        self._child: Child | None = None

    def begin(self) -> None:
        self._child = Child(self._command, log=self._output, cwd=_ROOT)

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    @property
    def has_ended(self) -> bool:
        return self._child is not None and not self._child.is_running

    @property
    def exit_code(self) -> int:
        assert self._child is not None, "the part was never begun"
        return self._child.popen.wait()

    def print_new(self) -> None:
        """Whole lines only. The line of counts is taken for the sum of all parts."""
        if self._child is None:
            return
        with self._output.open("rb") as file:
            file.seek(self._printed_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._printed_bytes += len(line)
                self._print_line(line)
        sys.stdout.flush()

    def _print_line(self, line: bytes) -> None:
        if counts := _COUNTS.fullmatch(line):
            self.passed, self.failed = int(counts[1]), int(counts[2])
            self._has_counted = True
        else:
            sys.stdout.write(line.decode("utf-8", "replace"))

    def finish(self) -> None:
        """Prints the rest after the end of the process."""
        self.print_new()
        if not self._has_counted:
            self.failed += 1
            print(f"  FAILED  {self._name} ended with code {self.exit_code} before its last check", flush=True)

    def end(self) -> None:
        """An interrupt from the terminal reaches the process, too, and it removes what it has made."""
        if self._child is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._child.popen.wait(_END_TIMEOUT_S)
        if self._child.is_running:
            kill_tree(self._child.pid)
        self._child.kill()


def run_beside(commands: dict[str, Sequence[str | Path]], *, first: Sequence[str] = ()) -> int:
    """Runs the command of each part and prints in this order; returns the exit code. Those in `first` begin first."""
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as directory:
        parts = {name: _Part(name, command, Path(directory)) for name, command in commands.items()}
        waiting = [parts[name] for name in sorted(parts, key=lambda name: name not in first)]
        try:
            _run(list(parts.values()), waiting)
        finally:
            for part in parts.values():
                part.end()
    return _exit_code(list(parts.values()))


def _run(parts: list[_Part], waiting: list[_Part]) -> None:
    for part in parts:
        while not part.has_ended:
            while waiting and sum(each.is_running for each in parts) < PROCESSES:
                waiting.pop(0).begin()
            part.print_new()
            time.sleep(_POLL_S)
        part.finish()


def _exit_code(parts: list[_Part]) -> int:
    passed, failed = sum(part.passed for part in parts), sum(part.failed for part in parts)
    print(f"{passed} passed, {failed} failed", flush=True)
    if not passed and not failed:
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    fine = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)  # The words asked for are in other parts.
    codes = [part.exit_code for part in parts if part.exit_code not in fine]
    return 1 if failed or codes else 0
