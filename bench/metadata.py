"""The metadata stores beside a bare kazoo loop that makes one operation after the other.

An operation is a put or a get of a node with 300 bytes, the size of a ledger's metadata, in turn. SQLite and memory
stand beside the same loop, to show what an embedded store saves; they have no goal.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.interleave import Worker, measure
from bench.report import Row
from magnetar.testing.processes.zookeeper import ZooKeeperServer

WORKER = "bench.metadata_worker"
PEER = "kazoo, one at a time"
UNIT = "operations/s"


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as directory, ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(Path(directory) / "zookeeper"))
        hosts = f"127.0.0.1:{server.port}"
        theirs = stack.enter_context(Worker(WORKER, "kazoo", hosts))

        def row(name: str, url: str, in_flight: int, goal: float | None = None) -> Row:
            with Worker(WORKER, "store", url, str(in_flight)) as ours:
                return measure(f"metadata/{name}", UNIT, ours, PEER, theirs, goal=goal)

        return [
            row("one-at-a-time", f"zk://{hosts}/ours", 1, 0.9),
            row("in-flight-100", f"zk://{hosts}/ours", 100, 3),
            row("sqlite-one-at-a-time", f"sqlite:{directory}/one.db", 1),
            row("sqlite-in-flight-100", f"sqlite:{directory}/hundred.db", 100),
            row("memory-one-at-a-time", "memory:", 1),
            row("memory-in-flight-100", "memory:", 100),
        ]
