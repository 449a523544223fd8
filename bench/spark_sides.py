"""The two sides of the Spark rows: a server, and a warm Spark session on two cores in a process of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

import pulsar

from bench.bookie_contest import machine_cpu_seconds
from bench.spark_environment import spark_python
from bench.spark_values import DIGITS, filler
from interop.pulsar.servers import MagnetarStandalone
from interop.spark.kafka import ApacheKafka
from interop.spark.kill_hook import PYTHONPATH
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child, descendants
from workloads.pulsar_load import connect

PARTITIONS = 2
ANSWER_TIMEOUT_S = 600.0
_TICKS = os.sysconf("SC_CLK_TCK")
_REST_TIMEOUT_S = 30.0
_REST_WINDOW_S = 0.5
_REST_CORES = 0.1
_KEEPS_ALL = "defaults.retention_minutes=-1", "defaults.retention_mb=-1"


@dataclass(frozen=True, slots=True)
class Sample:
    rows: int
    seconds: float
    spark_cpu_s: float
    """Of the driver, its JVM and the Python workers."""
    server_cpu_s: float
    other_cores: float
    """Busy with something else meanwhile."""
    in_all_s: float
    """With what is not timed: the start of a query, its end."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


class Program:
    """`bench.spark_worker`: a line of JSON is asked, a line of JSON is answered."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [spark_python(), "-m", "bench.spark_worker", *arguments, str(directory)]
        self._child = Child(
            command, log=directory / "worker.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()
        )
        if self._read() != "ready":
            raise ProcessFailedError(f"the Spark side did not get ready:\n{self._child.log_tail()}")

    @property
    def pid(self) -> int:
        return self._child.pid

    def ask(self, op: str, **arguments: Any) -> dict[str, float]:
        stdin = self._child.popen.stdin
        assert stdin is not None
        stdin.write((json.dumps({"op": op, **arguments}) + "\n").encode())
        stdin.flush()
        answer: dict[str, float] = json.loads(self._read())
        return answer

    def _read(self) -> str:
        stdout = self._child.popen.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], ANSWER_TIMEOUT_S)
        line: bytes = stdout.readline() if readable else b""
        if not line:
            raise ProcessFailedError(f"the Spark side ended or is silent:\n{self._child.log_tail()}")
        return line.decode().strip()

    def close(self) -> None:
        """Its JVM ends with it: it sees its own standard input close."""
        self._child.stop(timeout=30)


def _environment() -> dict[str, str]:
    """Without what would lead to another PySpark."""
    return {**{name: value for name, value in os.environ.items() if name != "SPARK_HOME"}, "PYTHONPATH": PYTHONPATH}


class Contestant(ABC):
    """Owns its server and its Spark session."""

    def __init__(self, close_server: Callable[[], None], server_pid: int, program: Program) -> None:
        self._close_server = close_server
        self._server_pid = server_pid
        self.program = program
        self._topics = 0

    def new_topic(self, kind: str) -> str:
        self._topics += 1
        return f"bench-{kind}-{self._topics}"

    @abstractmethod
    def fill(self, topic: str, rows: int, size: int) -> None:
        """Puts so many values of this size into a new topic."""

    def measure(self, op: str, topic: str, rows: int, **arguments: Any) -> Sample:
        if op == "write":
            arguments["rows"] = rows
        before, began, at = self._cpu(), machine_cpu_seconds(), time.monotonic()
        answer = self.program.ask(op, topic=topic, **arguments)
        (spark, server), machine = self._cpu(), machine_cpu_seconds() - began
        spark, server, seconds = spark - before[0], server - before[1], answer["seconds"]
        if answer.get("rows", rows) != rows:
            raise ProcessFailedError(f"{op} of {topic} had {answer['rows']:,.0f} rows, not {rows:,}")
        in_all = time.monotonic() - at
        return Sample(rows, seconds, spark, server, max(0.0, machine - spark - server) / in_all, in_all)

    def check_count(self, topic: str, rows: int) -> None:
        """Not timed: what was written is all there, and once."""
        found = self.program.ask("count", topic=topic)["rows"]
        if found != rows:
            raise ProcessFailedError(f"{topic} has {found:,.0f} rows, but {rows:,} were written")

    def rest(self) -> None:
        """Waits until the server has nothing left to do, but not for ever."""
        deadline = time.monotonic() + _REST_TIMEOUT_S
        while time.monotonic() < deadline:
            before = sum(self._cpu())
            time.sleep(_REST_WINDOW_S)
            if sum(self._cpu()) - before < _REST_CORES * _REST_WINDOW_S:
                return

    def _cpu(self) -> tuple[float, float]:
        return tree_cpu_seconds(self.program.pid), tree_cpu_seconds(self._server_pid)

    def close(self) -> None:
        self.program.close()
        self._close_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class KafkaSide(Contestant):
    def __init__(self, directory: Path) -> None:
        server = ApacheKafka(directory / "kafka", partitions=PARTITIONS)
        try:
            server.wait_ready()
            super().__init__(server.close, server.pid, Program(directory / "spark", "kafka", server.bootstrap))
        except BaseException:
            server.close()
            raise

    def fill(self, topic: str, rows: int, size: int) -> None:
        self.program.ask("write", topic=topic, rows=rows, size=size)


class MagnetarSide(Contestant):
    def __init__(self, directory: Path) -> None:
        self.server = server = MagnetarStandalone(directory / "magnetar", *_KEEPS_ALL)
        try:
            server.wait_ready()
            program = Program(directory / "spark", "magnetar", server.url, server.admin_url)
            super().__init__(server.close, server.pid, program)
        except BaseException:
            server.close()
            raise
        self.data = directory / "magnetar"
        self._log = directory / "client.log"

    def new_topic(self, kind: str) -> str:
        """With its partitions: they are made before a producer names it."""
        topic = super().new_topic(kind)
        path = f"/admin/v2/persistent/public/default/{topic}/partitions"
        headers = {"Content-Type": "application/json"}
        body = str(PARTITIONS).encode()
        with urlopen(Request(self.server.admin_url + path, body, headers, method="PUT"), timeout=30):
            return f"persistent://public/default/{topic}"

    def fill(self, topic: str, rows: int, size: int) -> None:
        """By the official client, in the batches that it makes by itself: as topics are, whoever reads them."""
        client = connect(self.server.url, self._log)
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            block_if_queue_full=True,
            max_pending_messages=10_000,
            max_pending_messages_across_partitions=20_000,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        send, rest = producer.send_async, filler(size)
        for number in range(rows):
            send(b"%0*d" % (DIGITS, number) + rest, None)
        producer.flush()
        client.close()


def tree_cpu_seconds(pid: int) -> float:
    """Of the process, of its descendants, and of those that have ended and were waited for."""
    total = 0.0
    for each in (pid, *descendants(pid)):
        with suppress(OSError):  # It ended while we looked.
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / _TICKS
    return total
