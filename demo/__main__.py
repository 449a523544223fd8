"""Tells what it does while it does it, prints the table, and exits 1 if anything that was acknowledged is not there.

Ends:      the server is killed at the end, by the kernel if need be; the directory is removed.
Read next: magnetar/testing/pulsar_load.py (the load and what is counted), soak/pulsar_kills.py (the same, 100 times)
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from demo.shell import print_figures, run_demo
from magnetar.testing.pulsar_load import NumberedLoad, Tally, connect, read_back
from magnetar.testing.standalone_process import StandaloneProcess

TOPIC = "persistent://public/default/demo"
KILLS = 2
RATE = 3_000  # Messages a second: a load that a laptop's disk can take.
SIZE = 1_000
MESSAGES_PER_STEP = 5_000
STEP_TIMEOUT_S = 120.0  # Two seconds on an idle machine; the rest is for a busy one.


class Demo:
    def __init__(self, directory: Path, console: Console) -> None:
        self._directory = directory
        self._console = console
        self._began = time.monotonic()

    def run(self) -> Tally:
        self._say("starting `magnetar standalone` with deduplication: broker, bookie and metadata in one process")
        began = time.monotonic()
        with StandaloneProcess(self._directory / "standalone", "broker.deduplication=true") as server:
            self._say(f"ready at {server.url} after {time.monotonic() - began:.1f} s")
            client = connect(server.url, self._directory / "client.log")
            load = NumberedLoad(client, TOPIC, rate=RATE, size=SIZE)
            self._say(f"the official Pulsar client publishes {RATE:,} messages a second of {SIZE:,} bytes to {TOPIC}")
            for _ in range(KILLS):
                self._wait(load)
                self._kill(server, load)
            self._wait(load)
            load.finish()
            self._say(f"the producer is done: {load.sent:,} messages sent; a reader begins with the first one")
            tally = read_back(client, TOPIC, load, SIZE)
            self._say(f"{tally.received:,} messages read back, every byte compared")
            client.close()
            return tally

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

    def _say(self, what: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.1f} s  {what}", highlight=False, markup=False)


def print_verdict(tally: Tally, console: Console) -> None:
    figures = {
        "sent": tally.sent,
        "acknowledged": tally.acknowledged,
        "received": tally.received,
        "lost": tally.lost,
        "duplicated": tally.duplicated,
        "out of order": tally.out_of_order,
    }
    print_figures(f"the server was killed with -9 under load, {KILLS} times", figures, tally.notes, console)
    if tally.passed:
        console.print("passed: everything acknowledged is there, once and in order.")
    else:
        console.print("FAILED: the topic is not what was acknowledged.")


if __name__ == "__main__":
    run_demo(lambda directory, console: Demo(directory, console).run(), print_verdict)
