"""Child processes that never outlive their owner, waiting for conditions, and the end of a process with its children.

Invariant: A child started here is killed by the kernel when the process that started it ends, however that ends, kill
           -9 included. The child asks for it (PR_SET_PDEATHSIG) in a tiny program that then becomes the real one.
Threads:   The kernel counts the *thread* that started the child as its owner, so a child is started from the main
           thread only; anything else is refused, since the child would die with the thread.
Limits:    Every wait has a deadline, and its error ends with the last lines of the child's log.
Order:     A process is ended with all that it started. Spark is a Python driver, a JVM, a daemon and its workers: each
           notices within milliseconds that another has ended, and may end, or start something, while the list is read.
           The list comes from /proc, so this works on Linux only.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from magnetar.errors import ProcessFailedError

_POLL_S = 0.02
_STOP_S = 30.0
"""Threads stop within milliseconds, except one that waits for a disk."""
_LOG_TAIL_LINES = 30
_LOG_TAIL_BYTES = 16_384
_PORT_MIN, _PORT_END = 15_000, 32_000
_PORT_TRIES_MAX = 1000
_PORTS = random.SystemRandom()

# Arguments: the owner's pid, then the program. An owner that ended before the request took effect is seen by the
# changed parent. Only Linux has the request; elsewhere a child outlives an owner that is killed with -9.
_BECOME = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One child process with its log file. Made running; ended by `stop` or `kill`."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "start child processes from the main thread: a child ends with the thread that started it"
            )
        self.log = log
        self.name = Path(argv[0]).name
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *map(str, argv)]
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output if stdout is None else stdout,
                stderr=output,
                cwd=cwd,
                env=dict(env) if env is not None else None,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
        self.popen.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP, and waits until it has stopped: its connections stay open, and it answers nothing from now on.

        The signal alone is not enough: until the kernel has stopped the last thread, the process may still answer.
        """
        self.signal(signal.SIGSTOP)
        if self.is_running:
            self.wait_until(self._is_stopped, what="stopping by SIGSTOP", timeout=_STOP_S)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        with suppress(ChildProcessError):  # It has ended, and was collected.
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def stop(self, timeout: float = 10.0) -> int:
        """Asks it to end, and makes it end after the timeout; returns its exit code."""
        self.ask_to_end()
        return self.wait_ended(timeout)

    def ask_to_end(self) -> None:
        """SIGTERM, and no waiting. Nothing happens if it has ended."""
        if self.is_running:
            self.signal(signal.SIGTERM)
            self.resume()  # A paused process does not hear the first one.

    def wait_ended(self, timeout: float) -> int:
        """Makes it end after the timeout; returns its exit code."""
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
        return self._finish()

    def kill(self) -> int:
        """kill -9."""
        if self.is_running:
            self.popen.kill()
        return self._finish()

    def _finish(self) -> int:
        code = self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return code

    def log_tail(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(the log is empty)"

    def wait_until(self, condition: Callable[[], bool], *, what: str, timeout: float) -> None:
        """Waits for the condition; ProcessFailedError when the child ends first or the time is over."""
        deadline = time.monotonic() + timeout
        while not condition():
            self.raise_if_ended(what)
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"{self.name}: {what} did not happen within {timeout:g} s. {self._log_end()}")
            time.sleep(_POLL_S)

    def raise_if_ended(self, what: str) -> None:
        """ProcessFailedError, saying before what, unless it runs."""
        code = self.popen.poll()
        if code is not None:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise ProcessFailedError(f"{self.name} {how} before {what}. {self._log_end()}")

    def _log_end(self) -> str:
        return f"Its log, {self.log}, ends with:\n{self.log_tail()}"


def process_exists(pid: int) -> bool:
    """False also for a process that has ended and only waits to be collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    return not Path("/proc/self").exists()  # There but not described: ended a moment ago, or a system without /proc.


def processes_that_mention(text: str) -> list[str]:
    """Command lines of what runs now; a server has its directory in its own."""
    found: list[str] = []
    for directory in sorted(Path("/proc").glob("[0-9]*")):
        try:
            command = (directory / "cmdline").read_bytes()
        except OSError:  # It has ended meanwhile.
            continue
        if text.encode() in command:
            found.append(command.decode("utf-8", "replace"))
    return found


def wait_for(condition: Callable[[], bool], *, what: str, timeout: float = 10.0, every: float = _POLL_S) -> None:
    """Waits on this thread until the condition holds; TimeoutError says what did not happen."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout:g} s")
        time.sleep(every)


def is_port_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((host, port))
            return True
    return False


def free_port(host: str) -> int:
    """Returns a port without a listener, which this function gives to no other process as long as this one lives.

    It is below the range that the kernel gives to outgoing connections: a server that is started again on its port does
    not find it taken by a client meanwhile. Another program's server may still be faster: a caller may try again.
    """
    for _ in range(_PORT_TRIES_MAX):
        port = _PORTS.randrange(_PORT_MIN, _PORT_END)
        if _reserve(port) and is_port_free(host, port):
            return port
    raise ProcessFailedError(f"no free port found on {host} in {_PORT_TRIES_MAX} tries")


def _reserve(port: int) -> bool:
    """Binds a name in the kernel's abstract space, once and without a file; only Linux has it."""
    if sys.platform != "linux":
        return True
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0magnetar-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # It ends with this process.
    return True


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
    """Kills the process and its descendants, with kill -9, at one moment. The caller collects its own child.

    They are stopped first, so that they start nothing meanwhile, and see no other one end.
    """
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
