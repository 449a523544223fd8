"""magnetar standalone beside one node of Apache Kafka, driven by librdkafka (confluent-kafka); ours syncs its journal.

publish-*         messages per second of one producer with acks=all, batched by the client; Kafka as it comes, no sync
publish-*-x1      one message in flight, no linger
end-to-end-*      5,000 messages per second; from the due time in one process to `poll` in another
catch-up          a consumer reads 500 MB that were just written
publish-1k-fsync  as publish-1k, beside a Kafka that syncs every message as well (log.flush.interval.messages=1)
cross-read        a reader of Pulsar reads what a Kafka client wrote, beside what a client of Pulsar wrote, both ours

Server and client share the machine. Percentiles are at the mercy of one moment in which it stands still, so their rows
are measured more often. `python -m bench.kafka --rows publish-1k,catch-up` measures some rows only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.bookie_contest import data_directory, machine_cpu_seconds
from bench.pulsar import Sample, both, cpu_seconds
from bench.report import Better, Row, Side, print_table
from bench.rows import say
from interop.jars import KAFKA, jar_folder
from interop.pulsar.servers import MagnetarStandalone
from interop.spark.kafka import ApacheKafka
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import free_port
from magnetar.testing.processes.servers import HOST

PEER = "Apache Kafka 4.3.1"
SYNCED_PEER = "Apache Kafka 4.3.1, synced"
CROSS_PEER = "written by a Pulsar client"
ROUNDS = 3
PERCENTILE_ROUNDS = 5
SAMPLE_S = 6
WARM_UP_S = 4
CATCH_UP_MB = 500
CROSS_MB = 100
_WORKER_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a measurement: its name, and which of the worker's figures it shows."""

    name: str
    figure: str
    unit: str
    goal: float | None
    floor: float | None
    better: Better = "higher"


@dataclass(frozen=True, slots=True)
class Measured:
    figures: tuple[Figure, ...]
    words: tuple[str, ...]
    """For the worker: what, then what follows the topic."""
    rounds: int = ROUNDS
    before: tuple[str, ...] = ()
    """What the worker does first with the same topic: it says how many messages there are."""


def _percentiles(name: str, what: str, floor: float | None) -> Measured:
    figures = (
        Figure(name.format("p50"), "p50_ms", "ms", 1, floor, "lower"),
        Figure(name.format("p99"), "p99_ms", "ms", 1, floor, "lower"),
    )
    return Measured(figures, (what, str(SAMPLE_S)), PERCENTILE_ROUNDS)


def _publish(name: str, size: int, goal: float, floor: float | None) -> Measured:
    return Measured((Figure(name, "value", "msg/s", goal, floor),), ("publish", str(size), str(SAMPLE_S)))


CATCH_UP = Measured(
    (Figure("catch-up", "value", "msg/s", 1.5, 0.8),), ("catch-up",), before=("write", str(CATCH_UP_MB))
)
ROWS = (
    _publish("publish-1k", 1024, 1, 0.7),
    _publish("publish-100b", 100, 1, 0.7),
    _percentiles("publish-{}-x1", "latency", 0.7),
    _percentiles("end-to-end-{}", "e2e", None),
    CATCH_UP,
)
SYNCED = _publish("publish-1k-fsync", 1024, 2, None)
CROSS = Figure("cross-read", "value", "msg/s", None, None)
NAMES = (*(figure.name for row in (*ROWS, SYNCED) for figure in row.figures), CROSS.name)


class Contestant:
    def __init__(self, bootstrap: str, pid: int) -> None:
        self.bootstrap = bootstrap
        self._pid = pid
        self._topics = 0

    def new_topic(self, kind: str) -> str:
        self._topics += 1
        return f"bench-{kind}-{self._topics}"

    def measure(self, row: Measured) -> Sample:
        topic = self.new_topic(row.words[0])
        words = row.words
        if row.before:
            what, *rest = row.before
            words = (*words, str(int(run_worker(what, self.bootstrap, topic, *rest)["value"])))
        return self.sample(words, self.bootstrap, topic)

    def sample(self, words: Sequence[str], address: str, topic: str) -> Sample:
        what, *rest = words
        began, server, machine = time.monotonic(), cpu_seconds(self._pid), machine_cpu_seconds()
        figures = run_worker(what, address, topic, *rest)
        return Sample(
            figures,
            server_cpu_s=cpu_seconds(self._pid) - server,
            machine_cpu_s=machine_cpu_seconds() - machine,
            elapsed_s=time.monotonic() - began,
        )


class Contest:
    """Both servers, standing while either is measured."""

    def __init__(self, theirs: dict[str, object]) -> None:
        self._theirs = theirs
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        directory = Path(self._stack.enter_context(data_directory()))
        ours = magnetar_with_kafka(directory / "ours")
        self._stack.callback(ours.close)
        theirs = self._stack.enter_context(ApacheKafka(directory / "theirs", settings=self._theirs))
        ours.wait_ready()
        theirs.wait_ready()
        self.pulsar_url = ours.url
        self.ours = Contestant(f"{HOST}:{ours.ready['kafka_port']}", ours.pid)
        self.sides = (self.ours, Contestant(theirs.bootstrap, theirs.pid))
        for side in self.sides:
            side.sample(("publish", "1024", str(WARM_UP_S)), side.bootstrap, side.new_topic("warm"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def magnetar_with_kafka(directory: Path) -> MagnetarStandalone:
    settings = ("kafka.enabled=true", f"kafka.port={free_port(HOST)}", "kafka.group_initial_rebalance_delay_ms=0")
    return MagnetarStandalone(directory, *settings)


def run_worker(*words: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.kafka_worker", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WORKER_TIMEOUT_S, check=False)
    if done.returncode:
        raise ProcessFailedError(f"the measurement `{' '.join(words)}` failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# --- rows -------------------------------------------------------------------------------------------------------------


def run(names: Sequence[str] = NAMES) -> list[Row]:
    jar_folder(KAFKA)
    rows: list[Row] = []
    standing = [row for row in ROWS if _is_named(row, names)]
    if standing or CROSS.name in names:
        with Contest({}) as contest:
            for row in standing:
                rows += _measured(contest, row, PEER)
            if CROSS.name in names:
                rows.append(_cross_read(contest))
    if _is_named(SYNCED, names):
        with Contest({"log.flush.interval.messages": 1}) as contest:
            rows += _measured(contest, SYNCED, SYNCED_PEER)
    return rows


def _is_named(row: Measured, names: Sequence[str]) -> bool:
    return any(figure.name in names for figure in row.figures)


def _measured(contest: Contest, row: Measured, peer: str) -> list[Row]:
    say(" ".join(f"kafka/{figure.name}" for figure in row.figures))
    taken: tuple[list[Sample], list[Sample]] = ([], [])
    for _ in range(row.rounds):
        for side, samples in zip(contest.sides, taken, strict=True):
            samples.append(side.measure(row))
    return [_row(figure, taken, peer) for figure in row.figures]


def _cross_read(contest: Contest) -> Row:
    """Reads begin after all is written, and a topic is read once: nothing of a conversion is left from before."""
    say(f"kafka/{CROSS.name}")
    side, url = contest.ours, contest.pulsar_url
    writers = (("write", side.bootstrap), ("cross-write", url))
    taken: tuple[list[Sample], list[Sample]] = ([], [])
    for _ in range(ROUNDS):
        for (writer, address), samples in zip(writers, taken, strict=True):
            topic = side.new_topic(writer)
            total = int(run_worker(writer, address, topic, str(CROSS_MB))["value"])
            samples.append(side.sample(("cross-read", str(total)), url, topic))
    return _row(CROSS, taken, CROSS_PEER)


def _row(figure: Figure, taken: tuple[list[Sample], list[Sample]], peer: str) -> Row:
    ours, theirs = (
        Side(
            tuple(sample.figures[figure.figure] for sample in samples),
            tuple(sample.figures["cpu"] for sample in samples),
        )
        for samples in taken
    )
    detail = {
        "server CPU µs/message": both(taken, lambda sample: sample.server_cpu_us),
        "cores busy elsewhere": both(taken, lambda sample: sample.other_cores),
    }
    name = f"kafka/{figure.name}"
    return Row(name, figure.unit, figure.better, ours, peer, theirs, figure.goal, figure.floor, detail)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default=",".join(NAMES), metavar="NAME,NAME", help=f"of {', '.join(NAMES)}")
    arguments: Any = parser.parse_args()
    chosen = arguments.rows.split(",")
    if unknown := sorted(set(chosen) - set(NAMES)):
        parser.error(f"no such row: {', '.join(unknown)}")
    print_table(run(chosen))


if __name__ == "__main__":
    main()
