"""Real processes of `magnetar`: a bookie, a broker, and `standalone`, started, killed and started again.

Each of them prints one JSON line when it is ready. A bookie and `standalone` keep their directory, a broker keeps its
ports. Ports are chosen before the first start and kept, so that clients find the server again after a kill.
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

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0  # Half a second on an idle machine; the rest is for a busy one.
MAGNETAR = (sys.executable, "-m", "magnetar.cli.main")


class ServerProcess:
    """Owns the child. `start`, or `with`, which starts and ends it; what is on the disk stays."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._child: Child | None = None
        self.ready: dict[str, Any] = {}
        """The line it printed when it was ready; empty until then."""

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def start(self) -> None:
        """Returns when it is ready."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Returns at once. A process that ended by itself is put away first."""
        self.kill()
        self.ready = {}
        self._child = Child(self._command, log=self._log, stdout=subprocess.PIPE)

    def wait_ready(self) -> None:
        """ProcessFailedError, with the end of its log, if it ends first or takes too long."""
        if self.ready:
            return
        stdout = self.child.popen.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_TIMEOUT_S)
        line = stdout.readline() if readable else b""
        if not line:
            self.child.kill()
            what = "ended before it was ready" if readable else f"did not get ready within {START_TIMEOUT_S:g} s"
            raise ProcessFailedError(f"{self.name} {what}; its log is {self._log}\n{self.child.log_tail()}")
        self.ready = json.loads(line)

    def kill(self) -> None:
        """kill -9. Nothing happens if it does not run."""
        if self._child is not None:
            self._child.kill()

    def stop(self, timeout: float = 30.0) -> int:
        """As a user would; its exit code, which is 0 if it has ended by itself within that time."""
        return self.child.stop(timeout)

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and nothing is answered."""
        self.child.pause()

    def resume(self) -> None:
        self.child.resume()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()


class BookieProcess(ServerProcess):
    """Its metadata must be initialised (`init_cluster`)."""

    def __init__(self, directory: Path, metadata: str, *settings: str, port: int = 0) -> None:
        """With port 0 the bookie chooses one at its first start, and keeps it."""
        where = ["--metadata", metadata, "--dir", str(directory), "--port", str(port)]
        super().__init__(
            directory.name, [*MAGNETAR, "bookie", *where, *_flags(settings)], directory.with_suffix(".log")
        )
        self.port = 0
        self.http_port = 0
        self.bookie_id = ""

    def wait_ready(self) -> None:
        super().wait_ready()
        self.port, self.http_port = self.ready["port"], self.ready["http_port"]
        self.bookie_id = self.ready["bookie_id"]


class _PulsarServer(ServerProcess):
    """Has a port for clients of Pulsar and one for HTTP."""

    def __init__(
        self, command: Sequence[str | Path], directory: Path, flags: Sequence[str], port: int = 0, http_port: int = 0
    ) -> None:
        self.port, self.http_port = port or free_port(HOST), http_port or free_port(HOST)
        ports = ["--port", str(self.port), "--http-port", str(self.http_port)]
        super().__init__(directory.name, [*command, *ports, *flags], directory.with_suffix(".log"))

    @property
    def url(self) -> str:
        """Where Pulsar clients connect."""
        return f"pulsar://{HOST}:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"


class StandaloneProcess(_PulsarServer):
    def __init__(
        self, directory: Path, *settings: str, flags: Sequence[str] = (), under: Sequence[str | Path] = ()
    ) -> None:
        """The settings are those after `--set`; `under` is a program that runs the one which is named after it."""
        command = [*under, *MAGNETAR, "standalone", "--dir", str(directory)]
        super().__init__(command, directory, [*flags, *_flags(settings)])


class BrokerProcess(_PulsarServer):
    """Its metadata must be initialised, and there must be bookies."""

    def __init__(self, directory: Path, metadata: str, *settings: str, port: int = 0, http_port: int = 0) -> None:
        """`directory` is where its log goes, under the same name."""
        command = [*MAGNETAR, "broker", "--metadata", metadata]
        super().__init__(command, directory, _flags(settings), port, http_port)

    @property
    def broker_id(self) -> str:
        """Its name in the cluster."""
        return f"{HOST}:{self.http_port}"


def _flags(settings: Sequence[str]) -> list[str]:
    return [flag for setting in settings for flag in ("--set", setting)]


def init_cluster(metadata: str) -> None:
    """`magnetar metadata init`, as a process of its own: an embedded store has one owner at a time."""
    done = subprocess.run(
        [*MAGNETAR, "metadata", "init", "--if-missing", "--metadata", metadata],
        capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ProcessFailedError(f"magnetar metadata init failed: {done.stderr}")
