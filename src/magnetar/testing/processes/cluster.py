"""A cluster of real processes on this machine: ZooKeeper, bookies and brokers, each of which can be killed and paused.

Order:     ZooKeeper serves before anything else is started. Then all bookies and brokers start at once, and the cluster
           is ready when each of them is.
Format:    Members are named `zookeeper-1`, …, `bookie-1`, …, `broker-1`, …; directories and logs have these names. The
           file `ports.json` has every port that was chosen, so a cluster has the same ones when it is started again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import free_port
from magnetar.testing.processes.servers import HOST, BookieProcess, BrokerProcess, init_cluster
from magnetar.testing.processes.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

_PORTS = "ports.json"
_STOP_TIMEOUT_S = 30.0


class Member(Protocol):
    """What all processes of a cluster have in common."""

    @property
    def pid(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> object: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ProcessCluster:
    """`with` starts and ends it all. The directory is left to its owner."""

    def __init__(
        self,
        directory: Path,
        bookies: int,
        settings: Sequence[str] = (),
        *,
        brokers: int = 0,
        broker_settings: Sequence[str] = (),
        settings_of: Mapping[str, Sequence[str]] | None = None,
        zookeepers: int = 1,
        port: int = 0,
        http_port: int = 0,
    ) -> None:
        """The settings are `section.key=value`: those of the bookies, of the brokers, and of single members by their
        names. The first broker has the given ports, the next one those after them, and so on; 0: any free ports."""
        own = settings_of or {}
        self._directory = directory
        self._ports = _read_ports(directory)
        self.zookeeper = (
            ZooKeeperServer(directory / "zookeeper", port=self._port("zookeeper"))
            if zookeepers == 1
            else ZooKeeperEnsemble(
                directory / "zookeeper",
                servers=zookeepers,
                ports=[self._port(name) for name in _names("zookeeper", zookeepers)],
            )
        )
        # Ports that no outgoing connection is given: a server finds its own free when it is started after a kill.
        self.bookies = [
            BookieProcess(directory / name, self.metadata, *settings, *own.get(name, ()), port=self._port(name))
            for name in _names("bookie", bookies)
        ]
        self.brokers = [
            BrokerProcess(
                directory / name,
                self.metadata,
                *broker_settings,
                *own.get(name, ()),
                port=port + number if port else self._port(name),
                http_port=http_port + number if http_port else self._port(f"{name} http"),
            )
            for number, name in enumerate(_names("broker", brokers))
        ]

    @property
    def metadata(self) -> str:
        return self.zookeeper.url

    @property
    def members(self) -> dict[str, Member]:
        """By their names."""
        store = self.zookeeper
        servers = [store] if isinstance(store, ZooKeeperServer) else store.servers
        named: dict[str, Member] = {f"zookeeper-{number}": server for number, server in enumerate(servers, 1)}
        return named | {server.name: server for server in [*self.bookies, *self.brokers]}

    def start(self) -> None:
        """Returns when all are ready."""
        self._directory.mkdir(parents=True, exist_ok=True)
        _write_ports(self._directory, self._ports)
        self.zookeeper.start()
        init_cluster(self.metadata)
        for server in [*self.bookies, *self.brokers]:
            server.launch()
        for server in [*self.bookies, *self.brokers]:
            server.wait_ready()

    def _port(self, name: str) -> int:
        if name not in self._ports:
            self._ports[name] = free_port(HOST)
        return self._ports[name]

    def bookie(self, bookie_id: str) -> BookieProcess:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def make_whole(self) -> None:
        """Starts again who was killed, and wakes who was paused."""
        for server in [*self.bookies, *self.brokers]:
            if server.is_running:
                server.resume()
            else:
                server.start()

    def end(self) -> None:
        """At once: what is acknowledged does not depend on a graceful stop."""
        for server in [*self.brokers, *self.bookies]:
            server.kill()
        self.zookeeper.kill()

    def stop(self) -> None:
        """As a user would stop it: the brokers hand over, then the bookies flush, then ZooKeeper ends."""
        for servers in (self.brokers, self.bookies):
            for server in servers:
                server.child.ask_to_end()
            for server in servers:
                server.child.wait_ended(_STOP_TIMEOUT_S)
        self.zookeeper.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end()


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number + 1}" for number in range(count)]


def _read_ports(directory: Path) -> dict[str, int]:
    path = directory / _PORTS
    try:
        found: dict[str, int] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise ProcessFailedError(f"{path} is damaged: delete {directory}, or choose another directory") from None
    return found


def _write_ports(directory: Path, ports: Mapping[str, int]) -> None:
    """The file exists as a whole or not at all, also after a kill."""
    new = directory / f"{_PORTS}.new"
    new.write_text(json.dumps(ports, indent=2))
    new.replace(directory / _PORTS)
