"""What the parts that load bookies share: from samples of both sides to a row, and the command of one part."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

from bench.bookie_contest import Sample
from bench.report import Better, Row, Side, print_table
from interop.apache import apache_bookie
from interop.bookies import MakeBookie
from interop.magnetar_bookies import magnetar_bookie

PEER = "Apache BookKeeper 4.18.0"
MAKES: dict[str, MakeBookie] = {"magnetar": magnetar_bookie, "apache": apache_bookie}

Taken = tuple[list[Sample], list[Sample]]
"""Of ours and of theirs."""


def both(taken: Taken, figure: Callable[[Sample], float]) -> tuple[float, float]:
    ours, theirs = (median(figure(sample) for sample in samples) for samples in taken)
    return ours, theirs


def make_row(
    name: str,
    unit: str,
    taken: Taken,
    figure: Callable[[Sample], float],
    detail: dict[str, tuple[float, float]],
    *,
    better: Better = "higher",
    goal: float | None = None,
    floor: float | None = None,
    peer: str = PEER,
) -> Row:
    ours, theirs = (
        Side(tuple(figure(sample) for sample in samples), tuple(sample.generator_cpu for sample in samples))
        for samples in taken
    )
    return Row(name, unit, better, ours, peer, theirs, goal, floor, detail)


def say(name: str) -> None:
    print(f"  {name} …", file=sys.stderr, flush=True)


def command(part: str, doc: str, names: Sequence[str], run: Callable[[str, Sequence[str]], list[Row]]) -> None:
    """`python -m bench.PART [--ours MAKE] [--rows NAME,NAME]`"""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{part}", description=doc.partition("\n")[0])
    parser.add_argument("--ours", choices=sorted(MAKES), default="magnetar", help="whose bookies stand on our side")
    parser.add_argument("--rows", default=",".join(names), metavar="NAME,NAME", help=f"of {', '.join(names)}")
    arguments = parser.parse_args()
    chosen = arguments.rows.split(",")
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"no such row: {', '.join(unknown)}")
    began = time.monotonic()
    print_table(run(arguments.ours, chosen))
    print(f"in {(time.monotonic() - began) / 60:.1f} minutes")
