"""format("magnetar") beside Spark's connector for Kafka: the same values, two cores, two partitions, the same PySpark.

batch-read    a topic to nowhere, from the servers' page cache; six columns that both have
stream-read   the same as a streaming query that ends at the end of the topic (AvailableNow): rows by the time of its
              batches, checkpoints included; the start of the query, which a stream does once, stands beside
write         rows that Spark makes, into a topic: ours exactly once and synced, Kafka's at least once, acks=all
…-100b        the same with values of 100 bytes; the others have 1 KiB
scrub         every replica of every entry read and verified, beside the same files read in sequence; before either
              the page cache forgets them

What is read was written by each system's usual writer: ours by the official client, Kafka's by its connector.
Both servers and both sessions stand while either is measured; the samples alternate.
`python -m bench.spark --rows batch-read,write` measures some rows only; `--scale 0.1` a tenth of the data.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.bookie_contest import data_directory
from bench.report import Row, Side, print_table
from bench.rows import say
from bench.spark_disk import drop_cached, read_all
from bench.spark_environment import PYSPARK, spark_python
from bench.spark_sides import Contestant, KafkaSide, MagnetarSide, Sample
from interop.jars import KAFKA, KAFKA_CONNECTOR, jar_folder

PEER = f"spark-sql-kafka {PYSPARK}"
ROUNDS = 3
SMALL_FLOOR = 0.3
ROWS_1K, ROWS_100B = 1_000_000, 4_000_000  # A gigabyte; 400 MB.

Taken = tuple[list[Sample], list[Sample]]


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    op: str
    """Of the worker: write, batch or stream."""
    size: int
    rows: int
    goal: float
    floor: float | None = None


ROWS = (
    Measured("batch-read", "batch", 1024, ROWS_1K, 2),
    Measured("stream-read", "stream", 1024, ROWS_1K, 1.5),
    Measured("write", "write", 1024, ROWS_1K, 1),
    Measured("batch-read-100b", "batch", 100, ROWS_100B, 1, SMALL_FLOOR),
    Measured("stream-read-100b", "stream", 100, ROWS_100B, 1, SMALL_FLOOR),
    Measured("write-100b", "write", 100, ROWS_100B, 1, SMALL_FLOOR),
)
SCRUB = "scrub"
NAMES = (*(row.name for row in ROWS), SCRUB)


class Contest:
    """Both sides, and the topics that have been filled for reading, by the size of their values."""

    def __init__(self, ours: Contestant, theirs: Contestant, scale: float) -> None:
        self.sides = (ours, theirs)
        self._scale = scale
        self._filled: dict[tuple[Contestant, int], str] = {}

    def rows_of(self, row: Measured) -> int:
        return max(1, int(row.rows * self._scale))

    def measure(self, row: Measured) -> Taken:
        say(f"spark/{row.name}")
        take = self._write if row.op == "write" else self._read
        taken: Taken = ([], [])
        for side in self.sides:
            take(side, row)  # Warms up.
        for _ in range(ROUNDS):
            for side, samples in zip(self.sides, taken, strict=True):
                for each in self.sides:
                    each.rest()
                samples.append(take(side, row))
            ours, theirs = (samples[-1].rows_per_s for samples in taken)
            print(f"    {ours:,.0f} / {theirs:,.0f} rows/s", file=sys.stderr, flush=True)
        return taken

    def all_columns(self, row: Measured) -> tuple[float, float]:
        """Rows per second of one batch read of every column that each side has."""
        ours, theirs = (self._read(side, row, op="wide").rows_per_s for side in self.sides)
        return ours, theirs

    def _read(self, side: Contestant, row: Measured, *, op: str = "") -> Sample:
        return side.measure(op or row.op, self.fill(side, row), self.rows_of(row))

    def _write(self, side: Contestant, row: Measured) -> Sample:
        topic, rows = side.new_topic(row.name), self.rows_of(row)
        sample = side.measure("write", topic, rows, size=row.size)
        side.check_count(topic, rows)
        return sample

    def fill(self, side: Contestant, row: Measured) -> str:
        """A topic with the values of this row; written when it is asked for first."""
        if (side, row.size) not in self._filled:
            topic, rows = side.new_topic(f"read-{row.size}"), self.rows_of(row)
            side.fill(topic, rows, row.size)
            side.check_count(topic, rows)
            self._filled[side, row.size] = topic
        return self._filled[side, row.size]


def run(names: Sequence[str] = NAMES, scale: float = 1.0) -> list[Row]:
    spark_python()  # What is downloaded once is nobody's time.
    jar_folder(KAFKA)
    jar_folder(KAFKA_CONNECTOR)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(data_directory()))
        theirs = stack.enter_context(KafkaSide(directory / "theirs"))
        ours = stack.enter_context(MagnetarSide(directory / "ours"))
        contest = Contest(ours, theirs, scale)
        rows = [_row(contest, row) for row in ROWS if row.name in names]
        return [*rows, _scrub(contest, ours)] if SCRUB in names else rows


def _row(contest: Contest, row: Measured) -> Row:
    taken = contest.measure(row)
    detail = {
        "MB/s of values": _both(taken, lambda sample: sample.rows_per_s * row.size / 1e6),
        "Spark's CPU µs/row": _both(taken, lambda sample: sample.spark_cpu_s / sample.rows * 1e6),
        "server's CPU µs/row": _both(taken, lambda sample: sample.server_cpu_s / sample.rows * 1e6),
        "cores busy elsewhere": _both(taken, lambda sample: sample.other_cores),
    }
    if row.op == "stream":
        detail["seconds to start and end the query"] = _both(taken, lambda sample: sample.in_all_s - sample.seconds)
    if row.op == "batch":
        detail["rows/s with all columns"] = contest.all_columns(row)
    ours, theirs = (
        Side(
            tuple(sample.rows_per_s for sample in samples),
            tuple(sample.spark_cpu_s / sample.seconds for sample in samples),
        )
        for samples in taken
    )
    return Row(f"spark/{row.name}", "rows/s", "higher", ours, PEER, theirs, row.goal, row.floor, detail)


def _scrub(contest: Contest, ours: MagnetarSide) -> Row:
    """The whole server: what the other rows have left there, or at least one topic."""
    say(f"spark/{SCRUB}")
    contest.fill(ours, ROWS[0])
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        ours.rest()
        drop_cached(ours.data)
        answer = ours.program.ask("scrub")
        rates[0].append(answer["bytes"] / answer["seconds"] / 1e6)
        drop_cached(ours.data)
        size, seconds = read_all(ours.data)
        rates[1].append(size / seconds / 1e6)
    detail = {"MB read": (answer["bytes"] / 1e6, size / 1e6), "entries unanswered": (answer["unanswered"], 0.0)}
    sides = [Side(tuple(samples), (0.0,) * ROUNDS) for samples in rates]
    return Row(f"spark/{SCRUB}", "MB/s", "higher", sides[0], "the disk, read in sequence", sides[1], detail=detail)


def _both(taken: Taken, figure: Callable[[Sample], float]) -> tuple[float, float]:
    ours, theirs = (median(figure(sample) for sample in samples) for samples in taken)
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default=",".join(NAMES), metavar="NAME,NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data")
    arguments = parser.parse_args()
    chosen = arguments.rows.split(",")
    if unknown := sorted(set(chosen) - set(NAMES)):
        parser.error(f"no such row: {', '.join(unknown)}")
    began = time.monotonic()
    print_table(run(chosen, arguments.scale))
    print(f"in {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
