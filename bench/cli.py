"""How long a small command takes, from exec to its end: `magnetar topics list` against a standalone on this machine.

There is no peer: the row stands beside the 200 ms that are its aim. The first request loads the admin interface of the
server, which is not the command's time: it is made before.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import Row, Side, print_table
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.servers import StandaloneProcess

RUNS = 10
AIM_MS = 200.0
TOPICS = 10
_TIMEOUT_S = 60


def run() -> list[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-bench-") as directory,
        StandaloneProcess(Path(directory) / "standalone") as server,
    ):
        for number in range(TOPICS):
            _command(server, "topics", "create", f"bench-{number}")
        _command(server, "topics", "list")
        samples = [_timed(server) for _ in range(RUNS)]
    took, cpu = zip(*samples, strict=True)
    return [Row("cli/topics-list", "ms", "lower", Side(took, cpu), "the aim", Side((AIM_MS,), (0.0,)), 1)]


def _timed(server: StandaloneProcess) -> tuple[float, float]:
    """Milliseconds, and CPU seconds per second."""
    before, began = _cpu_s(), time.monotonic()
    output = _command(server, "topics", "list")
    took = time.monotonic() - began
    if len(output.splitlines()) != TOPICS:
        raise ProcessFailedError(f"`magnetar topics list` printed {output!r}")
    return took * 1000, (_cpu_s() - before) / took


def _command(server: StandaloneProcess, *words: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("magnetar"), *words],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        env={**os.environ, "MAGNETAR_ADMIN_URL": server.admin_url},
    )  # fmt: skip
    if done.returncode:
        raise ProcessFailedError(f"`magnetar {' '.join(words)}` failed: {done.stderr}")
    return done.stdout


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print_table(run())
