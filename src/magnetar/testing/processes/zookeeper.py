"""Real ZooKeeper servers from the jars inside the `pyspark` package: one, or an ensemble.

Data is kept below the given directory, so a server that was stopped or killed starts again where it was. Ports are
chosen once and kept over restarts; one that another program took before the first start is replaced. A server is ready
when `srvr` shows a mode. (ZooKeeper answers `ruok` before it accepts sessions.) Ticks are short, so that a session
timeout of one second is possible.
Read next: child.py (children that never outlive their owner), docs/zookeeper.md
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from magnetar.errors import ConfigError, MissingDependencyError, ProcessFailedError
from magnetar.runtime.java import find_java
from magnetar.testing.processes.child import Child, free_port, is_port_free, wait_for

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0  # Half a second on an idle machine; the rest is for a busy one.
_PORT_TRIES_MAX = 5
_PROBE_TIMEOUT_S = 1.0
_POLL_S = 0.05

# Only what the server loads: the whole folder has four hundred jars, and a long class path is a slow start.
_JARS = (
    "zookeeper-3",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-api-2",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "snappy-java",
)
_JARS_FOR_TLS = (
    "netty-buffer",
    "netty-codec-base",
    "netty-codec-4",
    "netty-common",
    "netty-handler-4",
    "netty-resolver-4",
    "netty-transport-4",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
)
_JVM = (
    "-Xms32m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.preAllocSize=1024",  # Kilobytes. The default fills 64 MiB on disk for every new log file.
    "-Dzookeeper.jmx.log4j.disable=true",
)
_LOGGING = """status = off
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files for the secure port."""

    key_and_certificates: Path
    """The private key in PKCS #8 form, then the certificate chain."""
    trusted: Path
    client_must_authenticate: bool = False


@dataclass(frozen=True, slots=True)
class QuorumMember:
    number: int
    quorum_port: int
    election_port: int

    @property
    def line(self) -> str:
        return f"server.{self.number}={HOST}:{self.quorum_port}:{self.election_port}"


class ZooKeeperServer:
    """One server process, alone or as a member of an ensemble. `with` starts and stops it."""

    def __init__(self, directory: Path, *, port: int = 0, tick_ms: int = 500, tls: ServerTls | None = None) -> None:
        self.directory = directory
        self.port = port
        self.secure_port = 0
        self.member: QuorumMember | None = None
        self._members: Sequence[QuorumMember] = ()
        self._ports_are_free_to_move = port == 0
        self._tick_ms = tick_ms
        self._tls = tls
        self._child: Child | None = None
        self._log_begins = 0

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def secure_address(self) -> str:
        return f"localhost:{self.secure_port}"

    @property
    def url(self) -> str:
        return f"zk://{self.address}"

    @property
    def pid(self) -> int:
        assert self._child is not None, "the server was never started"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def mode(self) -> str | None:
        """standalone, leader or follower; None while it does not serve."""
        for line in self.ask("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return None

    def ask(self, word: str) -> str:
        """The answer to a four-letter word; empty if there is none."""
        try:
            with socket.create_connection((HOST, self.port), _PROBE_TIMEOUT_S) as connection:
                connection.settimeout(_PROBE_TIMEOUT_S)
                connection.sendall(word.encode())
                parts = []
                while part := connection.recv(4096):
                    parts.append(part)
        except OSError:
            return ""
        return b"".join(parts).decode("utf-8", "replace")

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when it serves."""
        for tries_left in reversed(range(_PORT_TRIES_MAX)):
            self.launch()
            try:
                self.wait_ready()
                break
            except ProcessFailedError:
                self.kill()
                if not (tries_left and self._ports_are_free_to_move and self.port_was_taken()):
                    raise
                self.port = self.secure_port = 0

    async def start_async(self) -> None:
        """Like `start` for a server that has served before, without holding up the loop."""
        self.launch()
        assert self._child is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            while await asyncio.to_thread(self.mode) is None:
                self._child.raise_if_ended("it served")
                await asyncio.sleep(_POLL_S)

    def launch(self) -> None:
        """Starts the process and does not wait."""
        assert not self.is_running, "the server runs already"
        self.choose_ports()
        config = self._write_files()
        log = self.directory / "server.log"
        self._log_begins = log.stat().st_size if log.exists() else 0
        main = "quorum.QuorumPeerMain" if self.member else "ZooKeeperServerMain"
        argv: list[str | Path] = [
            find_java().executable,
            *_JVM,
            *(
                ["-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"]
                if self._tls
                else []
            ),
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp",
            class_path(with_tls=self._tls is not None),
            f"org.apache.zookeeper.server.{main}",
            config,
        ]
        self._child = Child(argv, log=log)

    def choose_ports(self) -> None:
        """Fills in what was not decided, and refuses what is taken."""
        if self.port and not is_port_free(HOST, self.port):
            raise ProcessFailedError(
                f"port {self.port} on {HOST} is in use: stop what listens there, or choose another port"
            )
        self.port = self.port or free_port(HOST)
        if self._tls:
            self.secure_port = self.secure_port or free_port(HOST)

    def wait_ready(self) -> None:
        assert self._child is not None
        self._child.wait_until(lambda: self.mode() is not None, what="it served", timeout=START_TIMEOUT_S)
        self._child.raise_if_ended(
            "it served"
        )  # Otherwise another program answered on the port that it could not take.
        self._ports_are_free_to_move = False

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()

    def raise_if_ended(self, what: str) -> None:
        """ProcessFailedError, saying before what, unless it runs."""
        assert self._child is not None, "the server was never started"
        self._child.raise_if_ended(what)

    def ask_to_end(self) -> None:
        """SIGTERM, and no waiting."""
        if self._child is not None:
            self._child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        if self._child is not None:
            self._child.kill()

    def restart(self) -> None:
        """On the same data and ports."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        assert self._child is not None
        self._child.pause()

    def resume(self) -> None:
        assert self._child is not None
        self._child.resume()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Also a signal in the middle: what was launched must not stay.
            self.kill()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    # --- files --------------------------------------------------------------------------------------------------------

    def join(self, member: QuorumMember, members: Sequence[QuorumMember]) -> None:
        """Makes it a member of an ensemble from its next start on."""
        self.member = member
        self._members = members

    def _write_files(self) -> Path:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        if self.member:
            (data / "myid").write_text(f"{self.member.number}\n")
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        config = self.directory / "zoo.cfg"
        config.write_text("\n".join(self._settings(data)) + "\n")
        return config

    def _settings(self, data: Path) -> list[str]:
        settings = [
            f"tickTime={self._tick_ms}",
            f"minSessionTimeout={2 * self._tick_ms}",
            "maxSessionTimeout=60000",
            f"dataDir={data}",
            f"clientPortAddress={HOST}",
            f"clientPort={self.port}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,ruok,mntr",
        ]
        if self.member:
            settings += ["initLimit=20", "syncLimit=10", "quorumListenOnAllIPs=false", *(m.line for m in self._members)]
        if self._tls:
            settings += [
                f"secureClientPort={self.secure_port}",
                f"secureClientPortAddress={HOST}",
                f"ssl.keyStore.location={self._tls.key_and_certificates}",
                "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={self._tls.trusted}",
                "ssl.trustStore.type=PEM",
                f"ssl.clientAuth={'need' if self._tls.client_must_authenticate else 'none'}",
            ]
        return settings

    def port_was_taken(self) -> bool:
        """The last start failed for that reason."""
        path = self.directory / "server.log"
        if not path.exists():
            return False
        with path.open("rb") as log:
            log.seek(self._log_begins)
            return b"Address already in use" in log.read()


class ZooKeeperEnsemble:
    """Servers that elect a leader. `with` starts and stops them all."""

    def __init__(self, directory: Path, *, servers: int = 3, ports: Sequence[int] = (), tick_ms: int = 500) -> None:
        """`ports`: one for each server; by default they are chosen at the start."""
        if servers < 3:
            raise ConfigError(f"an ensemble has at least 3 servers, not {servers}; for one use ZooKeeperServer")
        self._has_ports = bool(ports)
        self.servers = [
            ZooKeeperServer(directory / f"server-{n + 1}", port=port, tick_ms=tick_ms)
            for n, port in zip(range(servers), ports or [0] * servers, strict=True)
        ]

    @property
    def url(self) -> str:
        return f"zk://{','.join(server.address for server in self.servers)}"

    def leader(self) -> ZooKeeperServer | None:
        return next((server for server in self.servers if server.is_running and server.mode() == "leader"), None)

    def followers(self) -> list[ZooKeeperServer]:
        return [server for server in self.servers if server.is_running and server.mode() == "follower"]

    def start(self) -> None:
        """Returns when there is a leader and all others follow it."""
        for tries_left in reversed(range(_PORT_TRIES_MAX)):
            self._choose_ports()
            try:
                for server in self.servers:
                    server.launch()
                for server in self.servers:
                    server.wait_ready()
                self.wait_whole()
                break
            except ProcessFailedError:
                self.kill()
                if not tries_left or not any(server.port_was_taken() for server in self.servers):
                    raise

    def _choose_ports(self) -> None:
        members = [QuorumMember(n + 1, free_port(HOST), free_port(HOST)) for n in range(len(self.servers))]
        for server, member in zip(self.servers, members, strict=True):
            if not self._has_ports:
                server.port = 0
            server.join(member, members)

    def wait_whole(self, timeout: float = START_TIMEOUT_S) -> None:
        running = sum(server.is_running for server in self.servers)
        wait_for(
            lambda: self.leader() is not None and len(self.followers()) == running - 1,
            what=f"an election among {running} servers",
            timeout=timeout,
        )

    def stop(self) -> None:
        """At the same time: a server that is alone waits for the others a while."""
        for server in self.servers:
            server.ask_to_end()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Also a signal in the middle: what was launched must not stay.
            self.kill()
            raise
        return self

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def __exit__(self, *_exc: object) -> None:
        self.stop()


def class_path(*, with_tls: bool) -> str:
    folder = jar_folder()
    names = _JARS + (_JARS_FOR_TLS if with_tls else ())
    found: list[str] = []
    for name in names:
        jars = sorted(folder.glob(f"{name}*.jar"))
        if not jars:
            raise MissingDependencyError(
                f"the pyspark package has no {name}*.jar in {folder}: this version of it cannot run a ZooKeeper server;"
                " run: pip install 'magnetar[spark]'"
            )
        found.extend(str(jar) for jar in jars)
    return ":".join(found)


def jar_folder() -> Path:
    """Looked up without importing pyspark, which takes a second."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError("a ZooKeeper server needs the jars of pyspark; run: pip install 'magnetar[spark]'")
    return Path(next(iter(spec.submodule_search_locations))) / "jars"
