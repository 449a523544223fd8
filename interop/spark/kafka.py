"""One node of Apache Kafka, broker and controller in one, from the jars that Maven got, on loopback.

Sync:     Kafka's default: acks=all means that the replicas have it in memory; nothing is synced. Ours always syncs.
          The setting `log.flush.interval.messages=1` makes Kafka sync as well.
Topics:   made by whoever names them first, with `partitions` partitions.
Ready:    it answers a request for metadata with one broker.
"""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from interop.apache import write_settings
from interop.jars import KAFKA
from interop.java_program import java_command
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child, free_port

HOST = "127.0.0.1"
READY_TIMEOUT_S = 120.0  # 4 s on a quiet machine.
_FORMAT_TIMEOUT_S = 120
_PROBE_TIMEOUT_S = 2.0
_SERVER_JVM = ("-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_TOOL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING = """status = error
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss.SSS} %-5p [%t] %c{1}: %m%n%throwable
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
"""
_METADATA_REQUEST = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">ib", 0, 0)  # Version 4, for no topic.


class ApacheKafka:
    """Made starting; `wait_ready`; ended by `close`."""

    def __init__(self, directory: Path, *, partitions: int = 2, settings: Mapping[str, object] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._port, controller = free_port(HOST), free_port(HOST)
        self._config = write_settings(
            directory / "node.properties",
            **{**_settings(directory / "data", self._port, controller, partitions), **(settings or {})},
        )
        self._logging = directory / "log4j2.properties"
        self._logging.write_text(_LOGGING)
        self._format()
        self.start()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def _format(self) -> None:
        """A directory is prepared once, for a cluster of this name; one that begins with "-" is no option."""
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = java_command(
            "kafka.tools.StorageTool", "format", f"--cluster-id={name}", "-c", self._config,
            jvm=_TOOL_JVM, logging=self._logging, jars=KAFKA,
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False)
        if done.returncode:
            raise ProcessFailedError(f"Kafka's directory could not be prepared:\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        command = java_command("kafka.Kafka", self._config, jvm=_SERVER_JVM, logging=self._logging, jars=KAFKA)
        self._child = Child(command, log=self.directory / "node.log", cwd=self.directory)

    def wait_ready(self) -> None:
        self._child.wait_until(self._is_ready, what="Apache Kafka is ready", timeout=READY_TIMEOUT_S)

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self._port), timeout=_PROBE_TIMEOUT_S) as link:
                link.sendall(struct.pack(">i", len(_METADATA_REQUEST)) + _METADATA_REQUEST)
                stream = link.makefile("rb")
                (size,) = struct.unpack(">i", stream.read(4))
                answer = stream.read(size)
            (brokers,) = struct.unpack_from(">i", answer, 8)  # Behind the correlation id and the throttle time.
        except (OSError, struct.error):
            return False
        return bool(brokers == 1)

    def close(self) -> None:
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _settings(data: Path, port: int, controller: int, partitions: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
        "num.partitions": partitions,
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        # One node can hold one replica of its own topics; without this, consumers hang.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
