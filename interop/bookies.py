"""Bookies as processes, whoever made them, and a cluster of them with a ZooKeeper of its own.

Both makes are started, watched and ended in the same way, so whatever is shown or measured of them is comparable: a
bookie is ready when its id is among ZooKeeper's available ones. Everything listens on 127.0.0.1 only.
Read next: apache.py, magnetar_bookies.py (the two makes)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child
from magnetar.testing.processes.zookeeper import ZooKeeperServer

ROOT = "/ledgers"
READY_TIMEOUT_S = 120.0  # Three JVMs that start at once on two busy cores need a dozen seconds.
_INIT_TIMEOUT_S = 60
_REGISTRY_TIMEOUT_S = 30.0
_READONLY = "readonly"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Registry:
    """The bookies that ZooKeeper says are there."""

    def __init__(self, zookeeper: str) -> None:
        self._client = KazooClient(zookeeper)

    def available(self) -> list[str]:
        return sorted(name for name in self._client.get_children(f"{ROOT}/available") if name != _READONLY)

    def __enter__(self) -> Self:
        self._client.start(timeout=_REGISTRY_TIMEOUT_S)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.stop()
        self._client.close()


class Bookie(ABC):
    """One bookie in a directory of its own; may be stopped and started again."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.child: Child | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    @abstractmethod
    def id(self) -> str:
        """As registered."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]: ...

    @property
    def pid(self) -> int:
        assert self.child is not None, "the bookie was never started"
        return self.child.pid

    def launch(self) -> None:
        """Starts the process and does not wait."""
        assert self.child is None or not self.child.is_running, "the bookie runs already"
        self.child = self._launched(self.directory / "bookie.log")

    def _launched(self, log: Path) -> Child:
        return Child(self.command(), log=log)

    def is_ready(self, registry: Registry) -> bool:
        return self.id in registry.available()

    def wait_ready(self, registry: Registry) -> None:
        assert self.child is not None
        self.child.wait_until(lambda: self.is_ready(registry), what="it was registered", timeout=READY_TIMEOUT_S)

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop(timeout=30)

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()

    def cpu_seconds(self) -> float:
        """Used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def peak_memory_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return parse_peak_memory(status)


MakeBookie = Callable[[Path, str], Bookie]


def parse_peak_memory(status: str) -> int:
    """The highest resident size, from the text of /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM in the status of the process: it has ended")


class BookieCluster:
    """A ZooKeeper and bookies of one make below one directory. `with` starts and ends them."""

    def __init__(self, directory: Path, make: MakeBookie, count: int) -> None:
        self._directory = directory
        self._make = make
        self._count = count
        self._server = ZooKeeperServer(directory / "zookeeper")
        self._stack = ExitStack()
        self.bookies: list[Bookie] = []
        self.registry: Registry | None = None

    @property
    def zookeeper(self) -> str:
        return self._server.address

    @property
    def ids(self) -> list[str]:
        return [bookie.id for bookie in self.bookies]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._server)
            init_metadata(self._server.url)
            self.registry = stack.enter_context(Registry(self.zookeeper))
            stack.callback(self._end)
            self.bookies = [self._make(self._directory / f"bookie-{n}", self.zookeeper) for n in range(self._count)]
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def start(self) -> None:
        assert self.registry is not None
        for bookie in self.bookies:
            bookie.launch()
        for bookie in self.bookies:
            bookie.wait_ready(self.registry)

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.stop()
        self._wait_gone()

    def kill(self) -> None:
        """kill -9 of all of them at once."""
        for bookie in self.bookies:
            bookie.kill()
        self._wait_gone()

    def _wait_gone(self) -> None:
        """A bookie that comes back while its old session lives has to wait for it anyway."""
        assert self.registry is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self.registry.available():
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"still registered after {READY_TIMEOUT_S:g} s: {self.registry.available()}")
            time.sleep(0.05)

    def _end(self) -> None:
        for bookie in self.bookies:
            bookie.kill()  # What they hold is thrown away, so there is nothing to flush for.


def magnetar_program() -> Path:
    """The command as installed beside the interpreter that runs us."""
    return Path(sys.executable).parent / "magnetar"


def init_metadata(url: str) -> None:
    """The place of a new cluster; Apache's bookies accept it as their own `initnewcluster`'s."""
    command: list[str | Path] = [magnetar_program(), "metadata", "init", "--metadata", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INIT_TIMEOUT_S, check=False)
    if done.returncode:
        raise ProcessFailedError(f"the metadata of a new cluster was not made: {done.stderr.strip()}")
