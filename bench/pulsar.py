"""magnetar standalone beside Apache Pulsar standalone, driven by the official Python client; both sync their journal.

publish-*         messages per second of one producer, batched by the client
publish-p99-x1    one message in flight, no batching
end-to-end-p99    5,000 messages per second; from the due time in one process to `receive` in another
open-1000-topics  producers per second on new topics
catch-up          a subscription reads 500 MB of the time before the server was started again
ready             from exec to the first publish acknowledged to the client, on a new topic
idle-memory       resident memory of all processes ten seconds after that, admin and metrics on

Modules are compiled before, as installers do and as Apache's jars are; an environment that keeps Python from writing
bytecode would have it compile them at every start.
The client is often the limit: its CPU is shown, and the server's CPU per message stands beside each row. What else took
cores from them, the host of a virtual machine included, is shown as well: a percentile is at its mercy, so rows of
percentiles are measured more often.
`python -m bench.pulsar --rows ready` measures some rows only.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import magnetar
from bench.bookie_contest import data_directory, machine_cpu_seconds
from bench.report import Better, Row, Side, print_table
from bench.rows import say
from interop.jars import PULSAR, jar_folder
from interop.pulsar.apache import ApacheStandalone
from interop.pulsar.servers import MagnetarStandalone, Standalone
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import descendants

PEER = "Apache Pulsar 4.2.4"
FLOOR = 0.7
ROUNDS = 3
P99_ROUNDS = 7  # One moment in which the machine stands still makes a sample's p99: the median needs more of them.
SAMPLE_S = 6
WARM_UP_S = 4
CATCH_UP_MB = 500
TOPICS = 1_000
READY_ROUNDS = 3
IDLE_S = 10.0
_WORKER_TIMEOUT_S = 300
_TICKS = os.sysconf("SC_CLK_TCK")

MakeServer = Callable[[Path], Standalone]
MAKES: dict[str, MakeServer] = {"magnetar": MagnetarStandalone, "apache": ApacheStandalone}


@dataclass(frozen=True, slots=True)
class Sample:
    figures: dict[str, float]
    server_cpu_s: float
    machine_cpu_s: float
    elapsed_s: float

    @property
    def value(self) -> float:
        return self.figures["value"]

    @property
    def server_cpu_us(self) -> float:
        return self.server_cpu_s / self.figures["messages"] * 1e6

    @property
    def other_cores(self) -> float:
        """Busy with what is neither server nor client: what makes a figure doubtful."""
        return max(0.0, (self.machine_cpu_s - self.server_cpu_s - self.figures["cpu_s"]) / self.elapsed_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """A row that the worker measures while both servers stand."""

    name: str
    unit: str
    goal: float
    words: tuple[str, ...]
    """For the worker: what, then what follows the topic."""
    better: Better = "higher"
    rounds: int = ROUNDS


ROWS = (
    Measured("publish-1k", "msg/s", 1, ("publish", "1024", str(SAMPLE_S))),
    Measured("publish-100b", "msg/s", 1, ("publish", "100", str(SAMPLE_S))),
    Measured("publish-p99-x1", "ms", 1.5, ("latency", str(SAMPLE_S)), "lower", P99_ROUNDS),
    Measured("end-to-end-p99", "ms", 2, ("e2e", str(SAMPLE_S)), "lower", P99_ROUNDS),
    Measured("open-1000-topics", "topics/s", 2, ("open", str(TOPICS))),
)
CATCH_UP, READY, MEMORY = "catch-up", "ready", "idle-memory"
NAMES = (*(row.name for row in ROWS), CATCH_UP, READY, MEMORY)


class Contestant:
    def __init__(self, server: Standalone, make: str) -> None:
        self.server = server
        self.make = make
        self._topics = 0

    def new_topic(self, kind: str) -> str:
        self._topics += 1
        return f"persistent://public/default/bench-{kind}-{self._topics}"

    def measure(self, words: Sequence[str], topic: str) -> Sample:
        what, *rest = words
        began, server, machine = time.monotonic(), cpu_seconds(self.server.pid), machine_cpu_seconds()
        figures = run_worker(what, self.server.url, topic, *rest)
        return Sample(
            figures,
            server_cpu_s=cpu_seconds(self.server.pid) - server,
            machine_cpu_s=machine_cpu_seconds() - machine,
            elapsed_s=time.monotonic() - began,
        )


class Contest:
    """Both servers, standing while either is measured."""

    def __init__(self, ours: str) -> None:
        self._makes = (ours, "apache")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        directory = Path(self._stack.enter_context(data_directory()))
        self.sides = []
        for number, make in enumerate(self._makes):
            server = MAKES[make](directory / f"{number}-{make}")
            self._stack.callback(server.close)
            server.wait_ready()
            self.sides.append(Contestant(server, make))
        for side in self.sides:
            side.measure(("publish", "1024", str(WARM_UP_S)), side.new_topic("warm"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def run_worker(*words: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.pulsar_worker", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WORKER_TIMEOUT_S, check=False)
    if done.returncode:
        raise ProcessFailedError(f"the measurement `{' '.join(words)}` failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """Of the process and all its descendants."""
    total = 0.0
    for each in (pid, *descendants(pid)):
        lines = Path(f"/proc/{each}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6
    return total


# --- rows -------------------------------------------------------------------------------------------------------------


def run(ours: str = "magnetar", names: Sequence[str] = NAMES) -> list[Row]:
    jar_folder(PULSAR)  # The download is nobody's start-up time.
    _compile_modules()
    rows: list[Row] = []
    standing = [row for row in ROWS if row.name in names]
    if standing or CATCH_UP in names:
        with Contest(ours) as contest:
            rows += [_measured(contest, row) for row in standing]
            if CATCH_UP in names:
                rows.append(_catch_up(contest))
    if READY in names or MEMORY in names:
        rows += [row for row in _starts(ours) if row.name.removeprefix("pulsar/") in names]
    return rows


def _compile_modules() -> None:
    for directory in (Path(magnetar.__file__).parent, sysconfig.get_path("purelib")):
        compileall.compile_dir(directory, quiet=2)  # Some packages bring files that are no modules of this Python.


def _measured(contest: Contest, row: Measured) -> Row:
    say(f"pulsar/{row.name}")
    taken: tuple[list[Sample], list[Sample]] = ([], [])
    for _ in range(row.rounds):
        for side, samples in zip(contest.sides, taken, strict=True):
            samples.append(side.measure(row.words, side.new_topic(row.name)))
    detail = _costs(taken)
    if row.unit == "ms":
        detail["p50 ms"] = both(taken, lambda sample: sample.figures["p50_ms"])
    return _row(row.name, row.unit, taken, row.goal, row.better, detail)


def _catch_up(contest: Contest) -> Row:
    """What was written before is read after a restart: nothing comes from the broker's memory."""
    say(f"pulsar/{CATCH_UP}")
    taken: tuple[list[Sample], list[Sample]] = ([], [])
    for _ in range(ROUNDS):
        for side, samples in zip(contest.sides, taken, strict=True):
            topic = side.new_topic(CATCH_UP)
            total = int(side.measure(("write", str(CATCH_UP_MB)), topic).value)
            side.server.stop()
            side.server.start()
            side.server.wait_ready()
            samples.append(side.measure(("catch-up", str(total)), topic))
    detail = {**_costs(taken), "MB/s": both(taken, lambda sample: sample.figures["mb_s"])}
    return _row(CATCH_UP, "msg/s", taken, 1, "higher", detail)


def _starts(ours: str) -> list[Row]:
    """The servers in turn, alone on the machine, each in a new directory."""
    say(f"pulsar/{READY}")
    seconds: tuple[list[float], list[float]] = ([], [])
    megabytes: tuple[list[float], list[float]] = ([], [])
    for _ in range(READY_ROUNDS):
        for number, make in enumerate((ours, "apache")):
            took, used = _one_start(make)
            seconds[number].append(took)
            megabytes[number].append(used)
    return [
        Row(f"pulsar/{READY}", "s", "lower", _side(seconds[0]), PEER, _side(seconds[1]), 8, FLOOR),
        Row(f"pulsar/{MEMORY}", "MB", "lower", _side(megabytes[0]), PEER, _side(megabytes[1]), 4, FLOOR),
    ]


def _one_start(make: str) -> tuple[float, float]:
    with data_directory() as directory:
        home = Path(directory) / make
        began = time.monotonic()
        server = MAKES[make](home)
        try:
            server.wait_ready()
            acknowledged = run_worker("first", server.url, "persistent://public/default/first")["value"]
            time.sleep(IDLE_S)
            return acknowledged - began, resident_mb(server.pid)
        finally:
            server.close()
            shutil.rmtree(home, ignore_errors=True)


def _side(values: Sequence[float]) -> Side:
    return Side(tuple(values), (0.0,) * len(values))


def _costs(taken: tuple[list[Sample], list[Sample]]) -> dict[str, tuple[float, float]]:
    return {
        "server CPU µs/message": both(taken, lambda sample: sample.server_cpu_us),
        "cores busy elsewhere": both(taken, lambda sample: sample.other_cores),
    }


def both(taken: tuple[list[Sample], list[Sample]], figure: Callable[[Sample], float]) -> tuple[float, float]:
    ours, theirs = (median(figure(sample) for sample in samples) for samples in taken)
    return ours, theirs


def _row(
    name: str,
    unit: str,
    taken: tuple[list[Sample], list[Sample]],
    goal: float,
    better: Better,
    detail: dict[str, tuple[float, float]],
) -> Row:
    ours, theirs = (
        Side(tuple(sample.value for sample in samples), tuple(sample.figures["cpu"] for sample in samples))
        for samples in taken
    )
    return Row(f"pulsar/{name}", unit, better, ours, PEER, theirs, goal, FLOOR, detail)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pulsar", description=__doc__.partition("\n")[0])
    parser.add_argument("--ours", choices=sorted(MAKES), default="magnetar", help="whose server stands on our side")
    parser.add_argument("--rows", default=",".join(NAMES), metavar="NAME,NAME", help=f"of {', '.join(NAMES)}")
    arguments: Any = parser.parse_args()
    chosen = arguments.rows.split(",")
    if unknown := sorted(set(chosen) - set(NAMES)):
        parser.error(f"no such row: {', '.join(unknown)}")
    print_table(run(arguments.ours, chosen))


if __name__ == "__main__":
    main()
