"""A Spark driver as a process with everything that belongs to it: its JVM, executors, Python daemons and workers.

All of them inherit one variable of the environment, by which they are found and killed, wherever they hang in the tree.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from interop.spark.kill_hook import PYTHONPATH, ROOT
from interop.spark.lines import Lines
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child, wait_for

START_TIMEOUT_S = 180.0  # 10 s on a quiet machine.
_KILL_TIMEOUT_S = 30.0
_DAEMON = b"pyspark.daemon"
_MARK = "KILL_TEST_DRIVER"


class JobFailedError(Exception):
    """What Spark said."""


class Driver:
    """`interop.spark.jobs`. Made ready; ended by `kill`."""

    def __init__(self, directory: Path, master: str, environment: Mapping[str, str] | None = None) -> None:
        self._mark = uuid.uuid4().hex
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        chosen = {"PYTHONPATH": PYTHONPATH, **(environment or {}), _MARK: self._mark}
        self.child = Child(
            [sys.executable, "-m", "interop.spark.jobs", master, str(directory)],
            log=directory / "driver.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
            env={**os.environ, **chosen},
        )  # fmt: skip
        assert self.child.popen.stdout is not None
        self._lines = Lines(self.child.popen.stdout)
        try:
            if self._read(START_TIMEOUT_S) != "ready":
                raise ProcessFailedError(f"the Spark driver did not get ready:\n{self.child.log_tail()}")
        except BaseException:
            self.kill()
            raise

    def begin(self, job: Mapping[str, Any]) -> None:
        self._write(json.dumps(job) + "\n")

    def ask_to_end(self) -> None:
        """Jobs that would go on for ever; they finish what there is first."""
        self._write("\n")

    @property
    def has_answered(self) -> bool:
        """Whether the job is over, well or badly; its answer waits to be read."""
        return self._lines.is_next_here()

    def answer(self, timeout: float) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._read(timeout))
        return found

    def run(self, job: Mapping[str, Any], timeout: float) -> None:
        """To its end."""
        self.begin(job)
        self.expect_success(timeout)

    def expect_success(self, timeout: float) -> None:
        """Of the job that ends next. JobFailedError with what went wrong."""
        answer = self.answer(timeout)
        if answer["errors"]:
            raise JobFailedError(answer["errors"][0])

    def expect_failure(self, *, is_fatal: bool) -> None:
        """Of a job that has answered and should not have. JobFailedError if it ended well, or must not fail again."""
        answer = self.answer(1)
        if is_fatal or not answer["errors"]:
            raise JobFailedError(f"it ended before the point where it was to stop: {answer}")

    def _write(self, line: str) -> None:
        stdin = self.child.popen.stdin
        assert stdin is not None
        stdin.write(line.encode())
        stdin.flush()

    def _read(self, timeout: float) -> str:
        line = self._lines.next(timeout)
        if line is None:
            why = "said nothing for" if self.child.is_running else "ended within"
            raise ProcessFailedError(f"the Spark driver {why} {timeout:g} s:\n{self.child.log_tail()}")
        return line

    # --- its processes ------------------------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of all that belongs to it and lives."""
        return [pid for pid in _all_pids() if _environment_has(pid, f"{_MARK}={self._mark}")]

    def python_workers(self) -> list[int]:
        """What runs a task, plans a read, commits, or follows a topic; not the daemons that forked the most of them."""
        return [
            pid for pid in self.pids if _is_python(pid) and (_is_python(_parent(pid)) or not _is_python(pid, _DAEMON))
        ]

    def kill(self) -> None:
        """kill -9 of everything, the Python driver first."""
        self.child.popen.kill()
        wait_for(self._kill_rest, what="the end of all processes of a Spark driver", timeout=_KILL_TIMEOUT_S)
        self.child.kill()

    def _kill_rest(self) -> bool:
        """Whether nothing is left: what is killed may have just started something."""
        left = [pid for pid in self.pids if not _is_ended(pid)]
        for pid in left:
            kill(pid)
        return not left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def executor_of(worker: int) -> int:
    """The JVM that a Python worker works for: the first in its line that is no Python."""
    pid = worker
    while _is_python(pid):
        pid = _parent(pid)
    return pid


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment_has(pid: int, line: str) -> bool:
    with suppress(OSError):
        return line.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _is_python(pid: int, module: bytes = b"pyspark.") -> bool:
    """One of Spark's: a daemon, what it forked, which has its command line, or a runner without a daemon."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return any(word.startswith(module) for word in words)
    return False


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(_stat(pid)[1])
    return 0


def _is_ended(pid: int) -> bool:
    with suppress(OSError, IndexError):
        return _stat(pid)[0] in ("Z", "X")
    return True


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
