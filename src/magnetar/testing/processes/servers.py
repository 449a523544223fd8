"""Real processes of `magnetar`: a bookie, a broker, and `standalone`, started, killed and started again.

A bookie and `standalone` keep their directory, a broker keeps its ports. Ports are chosen before the first start and
kept, so that clients find the server again after a kill.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child, free_port

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


HOST = "127.0.0.1"


class StandaloneProcess:
    """Owns the child. `start`, or `with`, which starts and ends it; what is in `directory` stays."""

    def __init__(
        self, directory: Path, *settings: str, flags: Sequence[str] = (), under: Sequence[str | Path] = ()
    ) -> None:
        """The settings are those after `--set`; `under` is a program that runs the one which is named after it."""
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


class BrokerProcess(StandaloneProcess):
    """Owns the child. Its metadata must be initialised, and there must be bookies."""

    def __init__(self, directory: Path, metadata: str, *settings: str) -> None:
        """`directory` is where its log goes, under the same name."""
        super().__init__(directory)
        ports = ["--port", str(self.port), "--http-port", str(self.http_port)]
        flags = [flag for setting in settings for flag in ("--set", setting)]
        self._command = [*MAGNETAR, "broker", "--metadata", metadata, *ports, *flags]
