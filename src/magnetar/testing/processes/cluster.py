"""A cluster of real processes on this machine: a ZooKeeper server, and bookies that can be killed and paused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from magnetar.testing.processes.child import free_port
from magnetar.testing.processes.servers import BookieProcess, init_cluster
from magnetar.testing.processes.zookeeper import HOST, ZooKeeperServer


class _Bookie(BookieProcess):
    """On a port that no outgoing connection is given: it finds it free when it is started again after a kill."""

    def __init__(self, directory: Path, metadata: str, *settings: str) -> None:
        super().__init__(directory, metadata, *settings)
        self._command[self._command.index("--port") + 1] = str(free_port(HOST))


class ProcessCluster:
    """`with` starts and ends it all. The directory is left to its owner."""

    def __init__(self, directory: Path, bookies: int, settings: Sequence[str] = ()) -> None:
        """The settings are those of the bookies."""
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.bookies: list[BookieProcess] = []
        self._directories = [directory / f"bookie-{number + 1}" for number in range(bookies)]
        self._settings = settings

    @property
    def metadata(self) -> str:
        return self.zookeeper.url

    def start(self) -> None:
        self.zookeeper.start()
        init_cluster(self.metadata)
        for directory in self._directories:
            bookie = _Bookie(directory, self.metadata, *self._settings)
            bookie.start()
            self.bookies.append(bookie)

    def bookie(self, bookie_id: str) -> BookieProcess:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def make_whole(self) -> None:
        """Starts again who was killed, and wakes who was paused."""
        for bookie in self.bookies:
            if bookie.child.is_running:
                resume(bookie)
            else:
                bookie.start()

    def end(self) -> None:
        """At once: what is acknowledged does not depend on a graceful stop."""
        for bookie in self.bookies:
            bookie.kill()
        self.zookeeper.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end()


def pause(bookie: BookieProcess) -> None:
    """SIGSTOP: its connections stay open, and nothing is answered."""
    bookie.child.pause()


def resume(bookie: BookieProcess) -> None:
    bookie.child.resume()
