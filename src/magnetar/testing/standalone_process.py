"""A real `magnetar standalone` process: started, killed and started again on the same directory.

Ports:     chosen before the first start and kept, so that clients find it again after a kill.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from magnetar.errors import ProcessFailedError
from magnetar.testing.bookie_process import MAGNETAR, START_TIMEOUT_S
from magnetar.testing.processes import Child, free_port

HOST = "127.0.0.1"


class StandaloneProcess:
    """Owns the child. `start`, or `with`, which starts and ends it; what is in `directory` stays."""

    def __init__(
        self, directory: Path, *settings: str, flags: Sequence[str] = (), under: Sequence[str | Path] = ()
    ) -> None:
        """The settings are those behind `--set`; `under` is a program that runs the one which is named behind it."""
        flags = [*flags, *(flag for setting in settings for flag in ("--set", setting))]
        self.port, self.http_port = free_port(HOST), free_port(HOST)
        ports = ["--port", str(self.port), "--http-port", str(self.http_port)]
        self._command = [*under, *MAGNETAR, "standalone", "--dir", str(directory), *ports, *flags]
        self._log = directory.with_suffix(".log")
        self._child: Child | None = None
        self.ready: dict[str, Any] = {}
        """The line it printed when it was ready."""

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def url(self) -> str:
        """Where Pulsar clients connect."""
        return f"pulsar://{HOST}:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    def start(self) -> None:
        """Returns when it says that it is ready."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Returns at once."""
        self.ready = {}
        self._child = Child(self._command, log=self._log, stdout=subprocess.PIPE)

    def wait_ready(self) -> None:
        """It says so itself, in one line; one that ends first says nothing."""
        if self.ready:
            return
        stdout = self.child.popen.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_TIMEOUT_S)
        line = stdout.readline() if readable else b""
        if not line:
            tail = self.child.log_tail()
            self.child.kill()
            raise ProcessFailedError(f"standalone did not get ready within {START_TIMEOUT_S:g} s:\n{tail}")
        self.ready = json.loads(line)

    def kill(self) -> None:
        """kill -9."""
        self.child.kill()

    def stop(self) -> int:
        """As a user would; returns its exit code."""
        return self.child.stop(timeout=30)

    def close(self) -> None:
        """Whatever its state."""
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
