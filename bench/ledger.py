"""Our ledger client on our bookies beside Apache's client on Apache's bookies: E3/Qw3/Qa2, v2, CRC32C, journal synced.

add-SIZE-xN     adds per second with N in flight
p99-1k-x1       the samples of add-1k-x1, seen as latency
read            a closed ledger of READ_BYTES read in sequence, over and over, a megabyte a call, four calls in flight;
                ours reads in batches by itself, Apache's does when it is asked to (beside the row)
recover         ledgers recovered and closed per second, RECOVERED of them left open with a few entries each
cpu-1m-entries  CPU of our client per add to a ledger of a million entries, beside the same on ledgers of a thousand

`python -m bench.ledger --rows recover` measures some rows only. With `--ours apache` our client works on Apache's
bookies, too: what is left of a ratio then is the client's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.bookie_contest import THREE, Contest, Contestant, Generator, Sample
from bench.interleave import ROUNDS, SAMPLE_S
from bench.ledger_generator import OurGenerator
from bench.report import Row
from bench.rows import MAKES, Taken, both, command, make_row, say

READ_BYTES = 300 * 10**6
ROUNDS_WITH_FLOOR = 5  # These rows can fail a run, and they use all cores, so other work moves them most.
RECOVERED = 1_000
RECOVERIES_IN_FLIGHT = 100
LEFT_ENTRIES, LEFT_BYTES = 10, 1024
MANY_ENTRIES, FEW_ENTRIES = 1_000_000, 1_000
GROWN_AT_ONCE = 100_000
SMALL = 128  # A million larger entries would be gigabytes, and the client's work for one is the same.


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
    goal: float


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share clusters. Large entries have clusters of their own, which bounds what lies on the disk."""

    adds: tuple[AddRow, ...]
    read: ReadRow
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(row.name for row in self.adds), self.read.name, *self.others)


X1 = "add-1k-x1"
P99 = "p99-1k-x1"
P99_GOAL = 3.0
RECOVER = "recover"
RECOVER_GOAL = 1.0
LONG = "cpu-1m-entries"
LONG_FLOOR = 0.8
GROUPS = (
    Group(
        (
            AddRow(X1, 1024, 1, 4),
            AddRow("add-1k-x100", 1024, 100, 1.75),
            AddRow("add-1k-x2000", 1024, 2000, 1.25, floor=0.8),
        ),
        ReadRow("read-1k", 1024, 1),
        (P99, RECOVER, LONG),
    ),
    Group((AddRow("add-64k-x100", 65_536, 100, 2),), ReadRow("read-64k", 65_536, 1)),
)
NAMES = tuple(name for group in GROUPS for name in group.names)


def run(ours: str = "magnetar", names: Sequence[str] = NAMES) -> list[Row]:
    rows: list[Row] = []
    with Generator() as theirs, OurGenerator() as generator:
        for group in GROUPS:
            if not set(group.names).isdisjoint(names):
                contest = Contest(theirs, (MAKES[ours], MAKES["apache"]), THREE, our_generator=generator)
                with contest:
                    rows += _rows(contest, group, names)
    return rows


def _rows(contest: Contest, group: Group, names: Sequence[str]) -> Iterator[Row]:
    for add in group.adds:
        if add.name in names or (add.name == X1 and P99 in names):
            yield from _add(contest, add)
    if group.read.name in names:
        yield _read(contest, group.read)
    if RECOVER in group.others and RECOVER in names:
        yield _recover(contest)
    if LONG in group.others and LONG in names:
        yield _long_ledger(contest)


# --- adds -------------------------------------------------------------------------------------------------------------


def _add(contest: Contest, row: AddRow) -> Iterator[Row]:
    say(f"ledger/{row.name}")

    def take(side: Contestant, seconds: float) -> Sample:
        return side.add(seconds, size=row.size, in_flight=row.in_flight)

    taken = contest.measure(take, ROUNDS if row.floor is None else ROUNDS_WITH_FLOOR)
    detail = {
        "MB/s": both(taken, lambda sample: sample.entries_per_s * row.size / 1e6),
        "p50 ms": both(taken, lambda sample: sample.answer["p50Ms"]),
        "p99 ms": both(taken, lambda sample: sample.answer["p99Ms"]),
        **_costs(taken, "add"),
    }
    yield make_row(
        f"ledger/{row.name}",
        "adds/s",
        taken,
        lambda sample: sample.entries_per_s,
        detail,
        goal=row.goal,
        floor=row.floor,
    )
    if row.name == X1:
        yield make_row(
            f"ledger/{P99}", "ms", taken, lambda sample: sample.answer["p99Ms"], {}, better="lower", goal=P99_GOAL
        )


def _long_ledger(contest: Contest) -> Row:
    """Both sides are ours, and add the same entries: to one ledger that is long already, and to many short ones."""
    say(f"ledger/{LONG}")
    load: dict[str, Any] = {"size": SMALL, "in_flight": 100}
    for _ in range(MANY_ENTRIES // GROWN_AT_ONCE):
        grown = contest.ours.add(120, **load, entries=GROWN_AT_ONCE, keep=LONG)
        if grown.answer["entries"] < GROWN_AT_ONCE:
            raise TimeoutError(f"{GROWN_AT_ONCE} entries took longer than two minutes: the machine is too busy")
    taken: tuple[list[Sample], list[Sample]] = ([], [])
    for _ in range(ROUNDS_WITH_FLOOR):
        contest.rest()
        taken[0].append(contest.ours.add(SAMPLE_S, **load, keep=LONG))
        contest.rest()
        taken[1].append(
            contest.ours.run(
                "addFresh", seconds=SAMPLE_S, size=SMALL, inFlight=100, entriesPerLedger=FEW_ENTRIES, **_QUORUM
            )
        )
    return make_row(f"ledger/{LONG}", "µs/add", taken, lambda sample: sample.generator_cpu_us,
        {"adds/s": both(taken, lambda sample: sample.entries_per_s)},
        better="lower", floor=LONG_FLOOR, peer="ours, on short ledgers",
    )  # fmt: skip


# --- reads ------------------------------------------------------------------------------------------------------------


def _read(contest: Contest, row: ReadRow) -> Row:
    say(f"ledger/{row.name}")
    entries = READ_BYTES // row.size
    ledgers = {
        side: side.add(120, size=row.size, in_flight=500, entries=entries).answer["ledgerId"] for side in contest.sides
    }

    def take(side: Contestant, seconds: float, *, batch: bool = False) -> Sample:
        return side.read(seconds, ledger_id=ledgers[side], size=row.size, batch=batch)

    def rate(sample: Sample) -> float:
        return sample.entries_per_s * row.size / 1e6

    taken = contest.measure(take)
    batches = contest.measure(lambda side, seconds: take(side, seconds, batch=True), rounds=1)
    detail = {"MB/s, Apache's asked for batches": both(batches, rate), **_costs(taken, "read")}
    return make_row(f"ledger/{row.name}", "MB/s", taken, rate, detail, goal=row.goal)


# --- recovery ---------------------------------------------------------------------------------------------------------


def _recover(contest: Contest) -> Row:
    say(f"ledger/{RECOVER}")

    def take(side: Contestant, _seconds: float) -> Sample:
        left = side.ask("leaveOpen", ledgers=RECOVERED, entries=LEFT_ENTRIES, size=LEFT_BYTES, **_QUORUM)
        contest.rest()
        return side.run("recover", ledgerIds=left, entries=LEFT_ENTRIES, inFlight=RECOVERIES_IN_FLIGHT)

    taken = contest.measure(take)
    detail = _costs(taken, "ledger")
    return make_row(
        f"ledger/{RECOVER}", "ledgers/s", taken, lambda sample: sample.entries_per_s, detail, goal=RECOVER_GOAL
    )


# --- rows -------------------------------------------------------------------------------------------------------------

_QUORUM = {"ensemble": THREE.ensemble, "writeQuorum": THREE.write_quorum, "ackQuorum": THREE.ack_quorum}


def _costs(taken: Taken, what: str) -> dict[str, tuple[float, float]]:
    return {
        f"client's CPU µs/{what}": both(taken, lambda sample: sample.generator_cpu_us),
        f"bookies' CPU µs/{what}": both(taken, lambda sample: sample.bookie_cpu_us),
        "cores busy elsewhere": both(taken, lambda sample: sample.other_cores),
        "cores of the one at rest": both(taken, lambda sample: sample.resting_cores),
    }


def main() -> None:
    command("ledger", __doc__, NAMES, run)


if __name__ == "__main__":
    main()
