"""Bookies of two makes side by side, loaded in turn through Apache's Java client, or each through a client of its own.

Generator: one Java process for both, so both meet the same compiled code; where clients are compared, one for each. Its
           CPU is measured: a figure that its generator limits says nothing.
Fairness:  both clusters live while either is measured, each with a ZooKeeper of its own. The one at rest costs what
           `cores of the one at rest` says. Before a sample, what the last one left to write is synced, and the bookies
           come to rest.
Disk:      a sample ends at its time or at BYTES_MAX, and a contest's files are removed with it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from bench.interleave import ROUNDS, SAMPLE_S, WARM_UP_S
from interop.bookies import ROOT, BookieCluster, MakeBookie
from interop.java_program import JavaProgram
from magnetar.errors import ConfigError

BUILD = Path("build")
BYTES_MAX = 2 * 10**9  # On all bookies together, for one sample; journal and entry log write each byte twice.
DISK_FREE_MIN = 40 * 10**9
JVM_WARM_UP_S = 10.0  # A JVM compiles what is hot: without this the first row would measure its interpreter.
_GENERATOR_JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10")
_ANSWER_TIMEOUT_S = 180
_REST_CORES = 0.1
_REST_WINDOW_S = 0.5
_REST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Shape:
    bookies: int
    ensemble: int
    write_quorum: int
    ack_quorum: int


ONE = Shape(1, 1, 1, 1)
THREE = Shape(3, 3, 3, 2)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run of the generator saw, and the CPU seconds that it cost."""

    answer: dict[str, Any]
    bookie_cpu_s: float
    resting_cpu_s: float
    machine_cpu_s: float
    elapsed_s: float

    @property
    def entries_per_s(self) -> float:
        return float(self.answer["entries"] / self.answer["seconds"])

    @property
    def generator_cpu(self) -> float:
        """CPU seconds per second."""
        return float(self.answer["cpuSeconds"] / self.answer["seconds"])

    @property
    def generator_cpu_us(self) -> float:
        """CPU microseconds of the generator per entry."""
        return float(self.answer["cpuSeconds"] / self.answer["entries"] * 1e6)

    @property
    def bookie_cpu_us(self) -> float:
        """CPU microseconds of all bookies per entry."""
        return float(self.bookie_cpu_s / self.answer["entries"] * 1e6)

    @property
    def resting_cores(self) -> float:
        return self.resting_cpu_s / self.elapsed_s

    @property
    def other_cores(self) -> float:
        """Busy with what is neither bookie nor generator: what makes a figure doubtful."""
        ours = self.bookie_cpu_s + self.resting_cpu_s + self.answer["cpuSeconds"]
        return max(0.0, float(self.machine_cpu_s - ours) / self.elapsed_s)


class Load(Protocol):
    """What makes load: a process that answers requests, such as `add` and `read`, with what it measured."""

    def ask(self, op: str, **arguments: Any) -> Any: ...


class Generator:
    """BookieBench in a process that stays."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-bench-")))
        program = JavaProgram("BookieBench", directory, jvm=_GENERATOR_JVM, answer_timeout_s=_ANSWER_TIMEOUT_S)
        self._program = self._stack.enter_context(program)
        self._runner = self._stack.enter_context(asyncio.Runner())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def ask(self, op: str, **arguments: Any) -> Any:
        return self._runner.run(self._program.ask(op, root=ROOT, **arguments))


class Contestant:
    """One make: its cluster, and the load on it."""

    def __init__(self, generator: Load, cluster: BookieCluster, shape: Shape) -> None:
        self.cluster = cluster
        self._generator = generator
        self._shape = shape
        self.rival: Contestant | None = None

    def add(
        self, seconds: float, *, size: int, in_flight: int, entries: int | None = None, ledgers: int = 1, keep: str = ""
    ) -> Sample:
        """Adds for a while, or up to so many entries; with `keep` on ledgers that stay open between samples."""
        at_most = BYTES_MAX // (size * self._shape.write_quorum)
        return self.run(
            "add", seconds=seconds, size=size, inFlight=in_flight, entriesMax=entries or at_most, ledgers=ledgers,
            ensemble=self._shape.ensemble, writeQuorum=self._shape.write_quorum, ackQuorum=self._shape.ack_quorum,
            **({"keep": keep} if keep else {}),
        )  # fmt: skip

    def read(self, seconds: float, *, ledger_id: int, size: int, batch: bool) -> Sample:
        return self.run("read", seconds=seconds, ledgerId=ledger_id, size=size, batch=batch)

    def run(self, op: str, **arguments: Any) -> Sample:
        before = self._clocks()
        answer = self.ask(op, **arguments)
        return Sample(answer, *(now - then for then, now in zip(before, self._clocks(), strict=True)))

    def ask(self, op: str, **arguments: Any) -> Any:
        """What is not measured."""
        return self._generator.ask(op, zookeeper=self.cluster.zookeeper, **arguments)

    def _clocks(self) -> tuple[float, float, float, float]:
        return self.cpu_seconds(), self._resting_cpu_seconds(), machine_cpu_seconds(), time.monotonic()

    def cpu_seconds(self) -> float:
        return sum(bookie.cpu_seconds() for bookie in self.cluster.bookies)

    def _resting_cpu_seconds(self) -> float:
        return self.rival.cpu_seconds() if self.rival is not None else 0.0

    def peak_memory_mib(self) -> float:
        """Of the one bookie that took most, since its start."""
        return max(bookie.peak_memory_bytes() for bookie in self.cluster.bookies) / 2**20

    def disconnect(self) -> None:
        self.ask("disconnect")


Take = Callable[[Contestant, float], Sample]


class Contest:
    """Two clusters of the same shape; `with` starts them, warms them up, and removes them with their data."""

    def __init__(
        self,
        generator: Generator,
        makes: tuple[MakeBookie, MakeBookie],
        shape: Shape,
        *,
        our_generator: Load | None = None,
    ) -> None:
        """With a generator of our own, ours is loaded by that one."""
        self._generators: tuple[Load, Load] = (our_generator or generator, generator)
        self._makes = makes
        self._shape = shape
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._directory = Path(stack.enter_context(data_directory()))
            self.ours = self._contestant(stack, "ours", 0)
            self.theirs = self._contestant(stack, "theirs", 1)
            self.ours.rival, self.theirs.rival = self.theirs, self.ours
            self._stack = stack.pop_all()
        for side in self.sides:
            side.add(JVM_WARM_UP_S, size=1024, in_flight=500)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _contestant(self, stack: ExitStack, name: str, number: int) -> Contestant:
        cluster = BookieCluster(self._directory / name, self._makes[number], self._shape.bookies)
        side = Contestant(self._generators[number], stack.enter_context(cluster), self._shape)
        stack.callback(side.disconnect)  # Before the bookies end: a client would try to find them again.
        return side

    @property
    def sides(self) -> tuple[Contestant, Contestant]:
        return self.ours, self.theirs

    def loaded_by(self, generator: Load) -> tuple[Contestant, Contestant]:
        """The same two clusters under another load, which is disconnected from them when the contest ends."""
        ours, theirs = (Contestant(generator, side.cluster, self._shape) for side in self.sides)
        ours.rival, theirs.rival = theirs, ours
        for side in (ours, theirs):
            self._stack.callback(side.disconnect)
        return ours, theirs

    def measure(self, take: Take, rounds: int = ROUNDS) -> tuple[list[Sample], list[Sample]]:
        """A warm-up of each, then samples in turn."""
        for side in self.sides:
            take(side, WARM_UP_S)
        taken: tuple[list[Sample], list[Sample]] = ([], [])
        for _ in range(rounds):
            for side, samples in zip(self.sides, taken, strict=True):
                self.rest()
                samples.append(take(side, SAMPLE_S))
        return taken

    def rest(self) -> None:
        """Waits until nothing is left to write and the bookies are at rest, but not for ever."""
        os.sync()
        deadline = time.monotonic() + _REST_TIMEOUT_S
        while time.monotonic() < deadline:
            before = sum(side.cpu_seconds() for side in self.sides)
            time.sleep(_REST_WINDOW_S)
            if sum(side.cpu_seconds() for side in self.sides) - before < _REST_CORES * _REST_WINDOW_S:
                return
        print("  the bookies did not come to rest", file=sys.stderr, flush=True)


def machine_cpu_seconds() -> float:
    """Used on all cores since the machine started, waiting for disks not counted."""
    return parse_machine_cpu(Path("/proc/stat").read_text()) / os.sysconf("SC_CLK_TCK")


def parse_machine_cpu(stat: str) -> int:
    """Ticks, from the text of /proc/stat."""
    user, nice, system, _idle, _iowait, irq, soft_irq, steal = map(int, stat.split()[1:9])
    return user + nice + system + irq + soft_irq + steal


def data_directory() -> tempfile.TemporaryDirectory[str]:
    """Below build/, which is on a disk where a temporary directory may be in memory."""
    BUILD.mkdir(exist_ok=True)
    free = shutil.disk_usage(BUILD).free
    if free < DISK_FREE_MIN:
        raise ConfigError(
            f"the bookies of a benchmark may write {DISK_FREE_MIN // 10**9} GB below {BUILD.resolve()}, but"
            f" {free // 10**9} GB are free there: make room, or make build/ a link to a larger disk"
        )
    return tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=BUILD.resolve())
