"""Our bookies beside Apache's, both driven by Apache's Java client: v2, CRC32C, no throttle, journal synced.

What our own client makes of the same load on both (`by our client`) stands beside a row of adds or reads, from one
short sample a side: for information, it decides nothing.

add-SIZE-xN     adds per second with N in flight on one bookie; `-3`: on three, E3/Qw3/Qa2
p99-1k-x1       the samples of add-1k-x1, seen as latency
read, batch-    a closed ledger of READ_BYTES read in sequence, over and over; partly from caches, as a tailing reader's
ready           exec to registered, in an empty directory
cpu-10k-ledgers CPU of our bookie per add on ten thousand open ledgers, beside the same on one
peak-SIZE       the highest resident memory of one of our bookies, under all that was measured of its group before,
                beside what is allowed: the caches it is configured to have, and MEMORY_BESIDE_CACHES

`python -m bench.bookie --rows ready` measures some rows only. With `--ours apache` Apache's bookies stand on both
sides, which shows what the harness itself is worth: ratios near 1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.bookie_contest import ONE, THREE, Contest, Contestant, Generator, Load, Sample, Shape, data_directory
from bench.interleave import ROUNDS, SAMPLE_S
from bench.ledger_generator import OurGenerator
from bench.report import Row, Side
from bench.rows import MAKES, PEER, both, command, make_row, say
from interop.apache import apache_bookie
from interop.bookies import READY_TIMEOUT_S, BookieCluster, MakeBookie
from interop.magnetar_bookies import magnetar_bookie
from magnetar.config.load import load
from magnetar.config.storage import StorageConfig

READ_BYTES = 300 * 10**6
MANY_LEDGERS = 10_000
READY_ROUNDS = 5
OUR_CLIENT_S = 2.0  # A sample for information: long enough to see what is far off.
OUR_CLIENT_READ_BYTES = 50 * 10**6
ROUNDS_WITH_FLOOR = 5  # These rows can fail a run, and they use all cores, so other work moves them most.
MEMORY_BESIDE_CACHES = 150 * 10**6  # Bytes: interpreter, index, queues, and what the allocator does not give back.
MEMORY_FLOOR = 1.0
_READY_POLL_S = 0.005

Sides = tuple[Contestant, Contestant]


@dataclass(frozen=True, slots=True)
class AddRow:
    name: str
    size: int
    in_flight: int
    goal: float
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class ReadRow:
    name: str
    size: int
    batch: bool
    goal: float


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share clusters. Large entries have clusters of their own, which bounds what lies on the disk."""

    shape: Shape
    peak: str
    adds: tuple[AddRow, ...]
    reads: tuple[ReadRow, ...] = ()

    @property
    def names(self) -> list[str]:
        return [row.name for row in self.adds] + [row.name for row in self.reads] + [self.peak]


P99 = "p99-1k-x1"
P99_GOAL = 2.0
LEDGERS = "cpu-10k-ledgers"
READY = "ready"
GROUPS = (
    Group(
        ONE,
        "peak-1k",
        (
            AddRow("add-1k-x1", 1024, 1, 4),
            AddRow("add-1k-x100", 1024, 100, 2),
            AddRow("add-1k-x2000", 1024, 2000, 1.2, floor=0.8),
        ),
        (ReadRow("read-1k", 1024, False, 1), ReadRow("batch-read-1k", 1024, True, 1)),
    ),
    Group(ONE, "peak-64k", (AddRow("add-64k-x100", 65_536, 100, 1.5),), (ReadRow("read-64k", 65_536, False, 1),)),
    Group(
        THREE,
        "peak-1k-3",
        (
            AddRow("add-1k-x1-3", 1024, 1, 3),
            AddRow("add-1k-x100-3", 1024, 100, 1.5),
            AddRow("add-1k-x2000-3", 1024, 2000, 1.1, floor=0.8),
        ),
    ),
    Group(THREE, "peak-64k-3", (AddRow("add-64k-x100-3", 65_536, 100, 1.5),)),
)
NAMES = (*(name for group in GROUPS for name in group.names), P99, LEDGERS, READY)


def run(ours: str = "magnetar", names: Sequence[str] = NAMES) -> list[Row]:
    makes = (MAKES[ours], MAKES["apache"])
    rows: list[Row] = []
    if chosen := [group for group in GROUPS if _wanted(group, names)]:
        with Generator() as generator, OurGenerator() as our_generator:
            for group in chosen:
                rows += _run_group(generator, our_generator, makes, group, names)
    if READY in names:
        rows.append(_ready(makes))
    return rows


def _wanted(group: Group, names: Sequence[str]) -> bool:
    own = [*group.names, P99, LEDGERS] if group is GROUPS[0] else group.names
    return not set(own).isdisjoint(names)


def _run_group(
    generator: Generator, our_generator: Load, makes: tuple[MakeBookie, MakeBookie], group: Group, names: Sequence[str]
) -> list[Row]:
    rows: list[Row] = []
    with Contest(generator, makes, group.shape) as contest:
        by_our_client = contest.loaded_by(our_generator)
        for add in group.adds:
            if add.name in names or (add.name == "add-1k-x1" and P99 in names):
                rows += _add(contest, by_our_client, add)
        for read in group.reads:
            if read.name in names:
                rows.append(_read(contest, by_our_client, read))
        if group is GROUPS[0] and LEDGERS in names:
            rows.append(_many_ledgers(contest))
        if group.peak in names and makes[0] is magnetar_bookie:  # Of Apache's nothing is promised.
            rows.append(
                peak_row(group.peak, contest.ours.peak_memory_mib(), load(environment=os.environ).config.storage)
            )
    return rows


# --- adds -------------------------------------------------------------------------------------------------------------


def _add(contest: Contest, by_our_client: Sides, row: AddRow) -> Iterator[Row]:
    say(f"bookie/{row.name}")

    def take(side: Contestant, seconds: float) -> Sample:
        return side.add(seconds, size=row.size, in_flight=row.in_flight)

    taken = contest.measure(take, ROUNDS if row.floor is None else ROUNDS_WITH_FLOOR)
    detail = {
        "MB/s": both(taken, lambda sample: sample.entries_per_s * row.size / 1e6),
        "p50 ms": both(taken, lambda sample: sample.answer["p50Ms"]),
        "p99 ms": both(taken, lambda sample: sample.answer["p99Ms"]),
        "adds/s by our client": added_by_our_client(by_our_client, row),
        **_costs(contest, taken, "add"),
    }
    yield make_row(
        f"bookie/{row.name}",
        "adds/s",
        taken,
        lambda sample: sample.entries_per_s,
        detail,
        goal=row.goal,
        floor=row.floor,
    )
    if row.name == "add-1k-x1":
        yield make_row(
            f"bookie/{P99}", "ms", taken, lambda sample: sample.answer["p99Ms"], {}, better="lower", goal=P99_GOAL
        )


def _costs(contest: Contest, taken: tuple[list[Sample], list[Sample]], what: str) -> dict[str, tuple[float, float]]:
    return {
        f"bookies' CPU µs/{what}": both(taken, lambda sample: sample.bookie_cpu_us),
        "cores busy elsewhere": both(taken, lambda sample: sample.other_cores),
        "cores of the one at rest": both(taken, lambda sample: sample.resting_cores),
        "peak MiB": (contest.ours.peak_memory_mib(), contest.theirs.peak_memory_mib()),
    }


def _many_ledgers(contest: Contest) -> Row:
    """Both sides are ours: the load is the same, only spread over more ledgers."""
    say(f"bookie/{LEDGERS}")

    def take(ledgers: int) -> Sample:
        return contest.ours.add(SAMPLE_S, size=1024, in_flight=100, ledgers=ledgers, keep=f"{ledgers} ledgers")

    taken: tuple[list[Sample], list[Sample]] = ([], [])
    for round_ in range(ROUNDS + 1):
        for ledgers, samples in zip((MANY_LEDGERS, 1), taken, strict=True):
            sample = take(ledgers)
            if round_:  # The first one opens them.
                samples.append(sample)
    detail = {"adds/s": both(taken, lambda sample: sample.entries_per_s)}
    return make_row(
        f"bookie/{LEDGERS}",
        "µs/add",
        taken,
        lambda s: s.bookie_cpu_us,
        detail,
        better="lower",
        floor=0.8,
        peer="ours, on one ledger",
    )


# --- reads ------------------------------------------------------------------------------------------------------------


def _read(contest: Contest, by_our_client: Sides, row: ReadRow) -> Row:
    say(f"bookie/{row.name}")
    entries = READ_BYTES // row.size
    ledgers = {
        side: side.add(120, size=row.size, in_flight=500, entries=entries).answer["ledgerId"] for side in contest.sides
    }

    def take(side: Contestant, seconds: float) -> Sample:
        return side.read(seconds, ledger_id=ledgers[side], size=row.size, batch=row.batch)

    def rate(sample: Sample) -> float:
        return sample.entries_per_s * row.size / 1e6

    taken = contest.measure(take)
    detail = {"MB/s by our client": read_by_our_client(by_our_client, row), **_costs(contest, taken, "read")}
    return make_row(f"bookie/{row.name}", "MB/s", taken, rate, detail, goal=row.goal)


# --- by our client ----------------------------------------------------------------------------------------------------


def added_by_our_client(sides: Sides, row: AddRow) -> tuple[float, float]:
    """Adds per second on both."""
    ours, theirs = (side.add(OUR_CLIENT_S, size=row.size, in_flight=row.in_flight).entries_per_s for side in sides)
    return ours, theirs


def read_by_our_client(sides: Sides, row: ReadRow) -> tuple[float, float]:
    """MB per second on both, of a ledger that it wrote itself; it reads in batches, asked for it or not."""

    def rate(side: Contestant) -> float:
        written = side.add(60, size=row.size, in_flight=500, entries=OUR_CLIENT_READ_BYTES // row.size)
        read = side.read(OUR_CLIENT_S, ledger_id=written.answer["ledgerId"], size=row.size, batch=row.batch)
        return read.entries_per_s * row.size / 1e6

    ours, theirs = map(rate, sides)
    return ours, theirs


# --- memory -----------------------------------------------------------------------------------------------------------


def peak_row(name: str, peak_mib: float, storage: StorageConfig) -> Row:
    caches = 2 * storage.write_cache_bytes_max + storage.read_cache_bytes_max
    allowed = Side(((caches + MEMORY_BESIDE_CACHES) / 2**20,), (0.0,))
    peer = f"caches + {MEMORY_BESIDE_CACHES // 10**6} MB"
    return Row(f"bookie/{name}", "MiB", "lower", Side((peak_mib,), (0.0,)), peer, allowed, floor=MEMORY_FLOOR)


# --- start ------------------------------------------------------------------------------------------------------------


def _ready(makes: tuple[MakeBookie, MakeBookie]) -> Row:
    say(f"bookie/{READY}")
    seconds: tuple[list[float], list[float]] = ([], [])
    with data_directory() as directory, BookieCluster(Path(directory), apache_bookie, 0) as place:
        for round_ in range(READY_ROUNDS):
            for number, make in enumerate(makes):
                home = Path(directory) / f"start-{round_}-{number}"
                seconds[number].append(_seconds_to_register(place, home, make))
    sides = [Side(tuple(taken), (0.0,) * len(taken)) for taken in seconds]
    return Row(f"bookie/{READY}", "s", "lower", sides[0], PEER, sides[1], goal=3)


def _seconds_to_register(place: BookieCluster, home: Path, make: MakeBookie) -> float:
    assert place.registry is not None
    before = set(place.registry.available())  # One that has just ended may be there until its session ends.
    bookie = make(home, place.zookeeper)
    began = time.perf_counter()
    bookie.launch()
    try:
        while before.issuperset(place.registry.available()):
            assert bookie.child is not None
            bookie.child.raise_if_ended("it was registered")
            if time.perf_counter() - began > READY_TIMEOUT_S:
                raise TimeoutError(f"a bookie was not registered within {READY_TIMEOUT_S:g} s; see {bookie.child.log}")
            time.sleep(_READY_POLL_S)
        return time.perf_counter() - began
    finally:
        bookie.stop()


# --- rows -------------------------------------------------------------------------------------------------------------


def main() -> None:
    command("bookie", __doc__, NAMES, run)


if __name__ == "__main__":
    main()
