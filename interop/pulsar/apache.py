"""Apache Pulsar standalone from the jars that Maven got, on loopback.

Sync:     Pulsar's own standalone acknowledges before anything is synced; here the journal is, as on a cluster's bookies
          and as ours is always.
Memory:   G1 and a small initial heap, so that idle memory shows what is used, not what was touched in advance.
Ready:    its REST names the namespace public/default, and its binary port takes connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from interop.apache import write_settings
from interop.jars import PULSAR
from interop.java_program import java_command
from magnetar.testing.processes.child import Child, free_port, is_port_free

HOST = "127.0.0.1"
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


def _settings(ports: tuple[int, int]) -> dict[str, object]:
    broker, web = ports
    return {
        "clusterName": "standalone",
        "metadataStoreUrl": "",
        "configurationMetadataStoreUrl": "",
        "bindAddress": HOST,
        "advertisedAddress": HOST,
        "brokerServicePort": broker,
        "webServicePort": web,
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "brokerShutdownTimeoutMs": 2000,
        "disableBrokerInterceptors": "true",
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


class ApacheStandalone:
    """One process with broker, bookie and metadata. Made starting; `wait_ready`; ended by `close`."""

    def __init__(
        self, directory: Path, settings: Mapping[str, object] | None = None, *, jvm: Sequence[str] = ()
    ) -> None:
        """The settings and the flags of the virtual machine come after those above."""
        directory.mkdir(parents=True, exist_ok=True)
        self._jvm = jvm
        self.directory = directory
        self._ports = free_port(HOST), free_port(HOST)
        self._bookie_port = free_port(HOST)
        values = {**_settings(self._ports), **(settings or {})}
        self._config = write_settings(directory / "standalone.conf", **values)
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

    def start(self) -> None:
        options: Sequence[str | Path] = (
            "--config", self._config, "--no-functions-worker", "--no-stream-storage", "--advertised-address", HOST,
            "--bookkeeper-dir", self.directory / "bookkeeper", "--bookkeeper-port", str(self._bookie_port),
            "--num-bookies", "1", "--metadata-dir", self.directory / "metadata",
        )  # fmt: skip
        command = java_command(
            "org.apache.pulsar.PulsarStandaloneStarter",
            *options,
            jvm=(*_SERVER_JVM, *self._jvm),
            logging=_write_logging(self.directory),
            jars=PULSAR,
        )
        self._child = Child(command, log=self.directory / "standalone.log", cwd=self.directory)

    def wait_ready(self) -> None:
        self._child.wait_until(self._is_ready, what="Apache Pulsar's standalone is ready", timeout=READY_TIMEOUT_S)

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
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
