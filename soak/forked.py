"""Work in forked processes that can be killed: cheap, because everything is imported before.

Forking needs a process without threads: the caller opens nothing itself, and everything that has threads (RocksDB,
SQLite's lane, kazoo) lives in children.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Self

Report = Callable[[Any], None]
"""Sends a line of JSON to the parent."""
Work = Callable[[Report], None]


class Forked:
    """A child that runs `work`. Ended by its own end, by `kill`, or with the block."""

    def __init__(self, work: Work) -> None:
        self._reading, writing = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reading)
            _run(work, writing)
        os.close(writing)
        self._received = b""
        self._is_over = False

    def lines(self, seconds: float) -> Iterator[Any]:
        """What the child reports, until it ends. TimeoutError if it neither reports nor ends for that long."""
        while True:
            while b"\n" in self._received:
                line, _, self._received = self._received.partition(b"\n")
                yield json.loads(line)
            if not select.select([self._reading], [], [], seconds)[0]:
                raise TimeoutError(f"a child said nothing for {seconds:g} s")
            got = os.read(self._reading, 65_536)
            if not got:
                return
            self._received += got

    def kill(self) -> None:
        """kill -9. Lines that were reported before can still be read."""
        if not self._is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> None:
        os.waitpid(self.pid, 0)
        self._is_over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._reading)


def _run(work: Work, writing: int) -> None:
    def report(value: Any) -> None:
        os.write(writing, json.dumps(value).encode() + b"\n")

    code = 0
    try:
        work(report)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        code = 1
    finally:
        os._exit(code)


def result_of(work: Work, seconds: float) -> Any:
    """The last line that a child reports before it ends; TimeoutError if it hangs."""
    deadline = time.monotonic() + seconds
    last: Any = None
    with Forked(work) as child:
        for last in child.lines(seconds):  # noqa: B007
            if time.monotonic() > deadline:
                raise TimeoutError(f"a child did not end within {seconds:g} s")
    return last
