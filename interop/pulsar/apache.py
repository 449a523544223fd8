"""Apache Pulsar from the jars that Maven got, on loopback: its standalone, and a broker of a cluster.

Sync:     Pulsar's own standalone acknowledges before anything is synced; here the journal is, as on a cluster's bookies
          and as ours is always.
Memory:   G1 and a small initial heap, so that idle memory shows what is used, not what was touched in advance.
Ready:    its REST names the namespace public/default, and its binary port takes connections.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from interop.apache import write_settings
from interop.jars import PULSAR
from interop.java_program import QUICK_JVM, java_command
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child, free_port, is_port_free

HOST = "127.0.0.1"
CLUSTER = "standalone"  # The name of each cluster here, also where there are several servers.
READY_TIMEOUT_S = 300.0  # 9 s on a quiet machine, minutes on one with ten times as much to do as it can.
_SERVER_JVM = (
    "-Xms256m",
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.leakDetection.level=disabled",
    "-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
    "--add-opens=java.base/jdk.internal.platform=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)
_LOGGING = """status = error
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss.SSS} %-5p [%t] %c{1}: %m%n%throwable
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
"""


def _write_logging(directory: Path) -> Path:
    path = directory / "log4j2.properties"
    path.write_text(_LOGGING)
    return path


def _broker_settings(ports: tuple[int, int], metadata: str, copies: int) -> dict[str, object]:
    broker, web = ports
    return {
        "clusterName": CLUSTER,
        "metadataStoreUrl": metadata,
        "configurationMetadataStoreUrl": metadata,
        "bindAddress": HOST,
        "advertisedAddress": HOST,
        "brokerServicePort": broker,
        "webServicePort": web,
        "managedLedgerDefaultEnsembleSize": copies,
        "managedLedgerDefaultWriteQuorum": copies,
        "managedLedgerDefaultAckQuorum": copies,
        "brokerShutdownTimeoutMs": 2000,
        "disableBrokerInterceptors": "true",
    }


def _standalone_settings(ports: tuple[int, int]) -> dict[str, object]:
    return {
        **_broker_settings(ports, "", 1),
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
        "loadBalancerEnabled": "false",
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "allowEphemeralPorts": "true",
        "journalSyncData": "true",
        "journalMaxGroupWaitMSec": 1,
        "flushInterval": 60000,
        "nettyMaxFrameSizeBytes": 5253120,
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.99,
        "httpServerEnabled": "false",
    }


class _ApacheServer(ABC):
    """One process that serves clients of Pulsar. Made starting; `wait_ready`; ended by `close`."""

    def __init__(
        self, name: str, directory: Path, ports: tuple[int, int], settings: Mapping[str, object], jvm: Sequence[str]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._name = name
        self._jvm = jvm
        self._ports = ports
        self.settings = dict(settings)
        """Read by the server when it is started."""
        self._config = directory / f"{name}.conf"
        self.start()

    @property
    def url(self) -> str:
        return f"pulsar://{HOST}:{self._ports[0]}"

    @property
    def admin_url(self) -> str:
        return f"http://{HOST}:{self._ports[1]}"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    @abstractmethod
    def _program(self) -> Sequence[str | Path]:
        """The main class and its arguments."""

    def start(self) -> None:
        """Returns at once."""
        write_settings(self._config, **self.settings)
        command = java_command(
            *map(str, self._program()),
            jvm=(*_SERVER_JVM, *self._jvm),
            logging=_write_logging(self.directory),
            jars=PULSAR,
        )
        self._child = Child(command, log=self.directory / f"{self._name}.log", cwd=self.directory)

    def wait_ready(self) -> None:
        self._child.wait_until(self._is_ready, what=f"Apache Pulsar's {self._name} is ready", timeout=READY_TIMEOUT_S)

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.admin_url}/admin/v2/namespaces/public", timeout=5) as answer:
                return b"public/default" in answer.read() and not is_port_free(HOST, self._ports[0])
        except (URLError, OSError):
            return False

    def stop(self) -> None:
        """In order: what the caches hold is written. May be started again."""
        self._child.stop(timeout=30)

    def close(self) -> None:
        """kill -9. May be started again."""
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class ApacheStandalone(_ApacheServer):
    """Broker, bookie and metadata."""

    def __init__(
        self, directory: Path, settings: Mapping[str, object] | None = None, *, jvm: Sequence[str] = ()
    ) -> None:
        """The settings and the flags of the virtual machine come after those above."""
        self._bookie_port = free_port(HOST)
        ports = free_port(HOST), free_port(HOST)
        super().__init__("standalone", directory, ports, {**_standalone_settings(ports), **(settings or {})}, jvm)

    def _program(self) -> Sequence[str | Path]:
        return (
            "org.apache.pulsar.PulsarStandaloneStarter",
            "--config", self._config, "--no-functions-worker", "--no-stream-storage", "--advertised-address", HOST,
            "--bookkeeper-dir", self.directory / "bookkeeper", "--bookkeeper-port", str(self._bookie_port),
            "--num-bookies", "1", "--metadata-dir", self.directory / "metadata",
        )  # fmt: skip


def set_up_cluster(directory: Path, zookeeper: str) -> None:
    """The metadata that brokers need, by Apache's own command; that of bookies must exist."""
    directory.mkdir(parents=True, exist_ok=True)
    store = f"zk:{zookeeper}"
    command = java_command(
        "org.apache.pulsar.PulsarClusterMetadataSetup",
        "--cluster", CLUSTER, "--metadata-store", store, "--configuration-metadata-store", store,
        "--web-service-url", f"http://{HOST}:8080", "--broker-service-url", f"pulsar://{HOST}:6650",
        jvm=(*_SERVER_JVM, QUICK_JVM),
        logging=_write_logging(directory),
        jars=PULSAR,
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False)
    if done.returncode:
        lines = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ProcessFailedError(f"PulsarClusterMetadataSetup ended with code {done.returncode}:\n{lines}")


class ApacheBroker(_ApacheServer):
    """A broker of a cluster whose metadata is in a ZooKeeper. It finds its bookies there."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        settings: Mapping[str, object] | None = None,
        *,
        copies: int,
        jvm: Sequence[str] = (),
    ) -> None:
        """`copies`: the bookies that hold an entry, and those of an ensemble."""
        ports = free_port(HOST), free_port(HOST)
        values = {**_broker_settings(ports, f"zk:{zookeeper}", copies), **(settings or {})}
        super().__init__("broker", directory, ports, values, jvm)

    @property
    def broker_id(self) -> str:
        """Its name in the cluster."""
        return f"{HOST}:{self._ports[1]}"

    def _program(self) -> Sequence[str | Path]:
        return "org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", self._config
