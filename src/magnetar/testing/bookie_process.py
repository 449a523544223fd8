"""A real bookie process: started, killed and started again on the same directory."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from magnetar.errors import ProcessFailedError
from magnetar.testing.processes import Child

START_TIMEOUT_S = 60.0  # Half a second on an idle machine; the rest is for a busy one.
MAGNETAR = (sys.executable, "-m", "magnetar.cli.main")


class BookieProcess:
    """Owns the child. Its metadata must be initialised (`init_cluster`)."""

    def __init__(self, directory: Path, metadata: str, *settings: str) -> None:
        flags = [flag for setting in settings for flag in ("--set", setting)]
        self._command = [*MAGNETAR, "bookie", "--metadata", metadata, "--dir", str(directory), "--port", "0", *flags]
        self._log = directory.with_suffix(".log")
        self._child: Child | None = None
        self.port = 0
        self.http_port = 0
        self.bookie_id = ""

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    def start(self) -> None:
        """Returns when the bookie says that it is ready."""
        self._child = Child(self._command, log=self._log, stdout=subprocess.PIPE)
        ready = self._read_ready(self._child)
        self.port, self.http_port, self.bookie_id = ready["port"], ready["http_port"], ready["bookie_id"]

    def _read_ready(self, child: Child) -> dict[str, Any]:
        stdout = child.popen.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_TIMEOUT_S)
        line = stdout.readline() if readable else b""
        if not line:
            tail = child.log_tail()
            child.kill()
            raise ProcessFailedError(f"the bookie did not get ready within {START_TIMEOUT_S:g} s:\n{tail}")
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> None:
        """kill -9."""
        self.child.kill()

    def stop(self, timeout: float = 30.0) -> int:
        """Its exit code: 0 if it has flushed everything by itself within that time."""
        return self.child.stop(timeout)


def init_cluster(metadata: str) -> None:
    """`magnetar metadata init`, as a process of its own: an embedded store has one owner at a time."""
    done = subprocess.run(
        [*MAGNETAR, "metadata", "init", "--metadata", metadata],
        capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ProcessFailedError(f"magnetar metadata init failed: {done.stderr}")
