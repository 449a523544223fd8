"""`python -m demo.standalone`: one server that is everything, killed with -9 under load and started again, twice.

Purpose:   It shows what an acknowledgement of `magnetar standalone` is worth: an audit on Spark compares the logs of
           the clients with the topic, and the exit code is 1 if anything that was acknowledged is missing.
Failure:   The server is killed at the end, by the kernel if need be, and its directory is removed. The report stays.
Read next: workloads/pulsar_load.py (the load), docs/audit.md (what is compared), soak/pulsar_kills.py (the same,
           100 times)
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from demo.audit import BUILD, audit, spark_for
from demo.consumer import DemoConsumer
from demo.shell import Narrator, run_demo
from magnetar.spark.pipelines.audit.table import print_result
from magnetar.spark.pipelines.audit.values import AuditResult
from magnetar.testing.audit_clients import PulsarClient
from magnetar.testing.audit_log import AuditLog
from magnetar.testing.processes.servers import StandaloneProcess
from workloads.pulsar_load import NumberedLoad, connect

TOPIC = "persistent://public/default/demo"
SUBSCRIPTION = "billing"
KILLS = 2
RATE = 3_000  # Messages a second: a load that a laptop's disk can take.
SIZE = 1_000
MESSAGES_PER_STEP = 5_000
STEP_TIMEOUT_S = 120.0  # Two seconds on an idle machine; the rest is for a busy one.
OUTPUT = BUILD / "demo-standalone"


class Demo:
    def __init__(self, directory: Path, console: Console) -> None:
        self._directory = directory
        self._say = Narrator(console).say

    def run(self) -> AuditResult:
        self._say("starting `magnetar standalone` with deduplication: broker, bookie and metadata in one process")
        began = time.monotonic()
        with StandaloneProcess(self._directory / "standalone", "broker.deduplication=true") as server:
            self._say(f"ready at {server.url} after {time.monotonic() - began:.1f} s")
            with AuditLog(self._directory / "clients.jsonl", "demo") as log:
                self._publish_and_consume(server, log)
            return self._audit(server)

    def _publish_and_consume(self, server: StandaloneProcess, log: AuditLog) -> None:
        client = PulsarClient(connect(server.url, self._directory / "client.log"), log)
        load = NumberedLoad(client, TOPIC, rate=RATE, size=SIZE)
        self._say(f"the official Pulsar client publishes {RATE:,} messages a second of {SIZE:,} bytes to {TOPIC}")
        consumer = DemoConsumer(client, TOPIC, SUBSCRIPTION)
        self._say(f"and consumes them, in the subscription {SUBSCRIPTION!r}")
        for _ in range(KILLS):
            self._wait(load)
            self._kill(server, load)
        self._wait(load)
        load.finish()
        consumer.finish(load.sent)
        self._say(f"the clients are done: {load.sent:,} messages sent, {len(consumer.received):,} received")
        client.close()

    def _audit(self, server: StandaloneProcess) -> AuditResult:
        self._say("starting Spark for `magnetar pipeline audit`: the topic is read from the bookie, past the broker")
        with spark_for(OUTPUT) as spark:
            return audit(
                spark,
                server,
                logs=self._directory / "clients.jsonl",
                topics=(TOPIC,),
                title=f"The server was killed with -9 under load, {KILLS} times",
                output=OUTPUT,
                tell=self._say,
            )

    def _wait(self, load: NumberedLoad) -> None:
        load.wait_acknowledged(MESSAGES_PER_STEP, STEP_TIMEOUT_S)
        self._say(f"{load.acknowledged:,} messages are acknowledged, which means: on disk")

    def _kill(self, server: StandaloneProcess, load: NumberedLoad) -> None:
        load.wait_unanswered()
        server.kill()
        self._say(f"kill -9 the server, with {load.unanswered:,} messages under way")
        load.longest_wait_s = 0.0
        began = time.monotonic()
        server.start()
        self._say(f"started again on the same directory, ready after {time.monotonic() - began:.1f} s")
        load.wait_acknowledged(1, STEP_TIMEOUT_S)
        self._say(
            f"the client has found it again and goes on ({load.longest_wait_s:.1f} s between two acknowledgements)"
        )


if __name__ == "__main__":
    run_demo(lambda directory, console: Demo(directory, console).run(), print_result)
