"""The simulator's command line: many seeds on all cores, or one seed to look at.

    python -m magnetar.sim --seeds 300 --from 1000
    python -m magnetar.sim --minutes 20
    python -m magnetar.sim --seed 17 --trace --without part,pause

Order:     every seed runs in a worker; results are taken in the order of seeds, so the output is the same on any number
           of cores.
Failure:   a seed that fails is run again, to print what happened in its world before; then the command that repeats it.
           The exit code is 1 if any seed failed, or if a batch of a hundred seeds or more did not do what it is for.
Read next: ledgers/run.py, docs/simulation.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import multiprocessing.pool
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TextIO

from magnetar.sim.ledgers.options import FAULTS, draw
from magnetar.sim.ledgers.report import MUST_HAPPEN, Report
from magnetar.sim.ledgers.run import run_seed

_SHOWN_LINES = 80
_BATCH_MIN = 100  # Fewer seeds may by chance miss something that every batch must have met.
_PROGRESS_S = 10.0


def main(arguments: Sequence[str]) -> int:
    chosen = _parser().parse_args(arguments)
    without = tuple(name for name in chosen.without.split(",") if name)
    if unknown := [name for name in without if name not in FAULTS]:
        _say(f"there is no class of faults {', '.join(unknown)}; there are {', '.join(FAULTS)}", to=sys.stderr)
        return 2
    if chosen.seed is not None:
        return _run_one(chosen.seed, without, trace=chosen.trace)
    began = time.monotonic()
    totals = Totals(jobs=chosen.jobs)
    for report in _run_many(_seeds(chosen), chosen.minutes, chosen.jobs, without):
        totals.add(report)
        if not report.is_clean:
            _explain(report, without)
        if totals.is_progress_due():
            _say(f"… {totals.seeds} seeds, {len(totals.failed)} failed, up to seed {report.seed}")
    totals.wall_s = time.monotonic() - began
    _say(json.dumps(totals.as_json(), indent=2) if chosen.json else totals.as_text())
    return 0 if totals.is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m magnetar.sim", description="Simulated disasters, by seed.")
    parser.add_argument("--seeds", type=int, default=None, help="how many (default 100)")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED", help="the first one (default 0)")
    parser.add_argument("--minutes", type=float, default=None, help="as many as fit into this time")
    parser.add_argument("--seed", type=int, default=None, help="run this one alone, and print what happened")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--without", default="", metavar="CLASS,…", help=f"without these faults: {', '.join(FAULTS)}")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="worker processes")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON")
    return parser


def _seeds(chosen: argparse.Namespace) -> Iterable[int]:
    if chosen.seeds is None and chosen.minutes is not None:
        return itertools.count(chosen.first)
    return range(chosen.first, chosen.first + (chosen.seeds or 100))


# --- one seed ---------------------------------------------------------------------------------------------------------


def _run_one(seed: int, without: tuple[str, ...], *, trace: bool) -> int:
    _say(f"seed {seed}: {draw(seed, without=without).summary()}")

    def show(line: str) -> None:
        if trace or _is_note(line):
            _say(line)

    report = run_seed(seed, without=without, trace=show)
    _say_findings(report)
    _say(f"{report.events} events, {report.virtual_s:.3f} s of virtual time, digest {report.digest:08x}")
    _say("\n".join(f"  {name}: {count}" for name, count in sorted((report.counters + report.faults).items())))
    return 0 if report.is_clean else 1


def _explain(report: Report, without: tuple[str, ...]) -> None:
    lines: list[str] = []

    def keep(line: str) -> None:
        if _is_note(line):
            lines.append(line)

    again = run_seed(report.seed, without=without, trace=keep)
    _say(f"seed {report.seed} failed: {report.options}")
    _say("\n".join(f"    {line}" for line in lines[-_SHOWN_LINES:]))
    _say_findings(report)
    if again.digest != report.digest:
        _say(f"  and it did not repeat: digest {report.digest:08x}, then {again.digest:08x}")
    options = f" --without {','.join(without)}" if without else ""
    _say(f"  again: python -m magnetar.sim --seed {report.seed}{options}")


def _say_findings(report: Report) -> None:
    for violation in report.violations:
        _say(f"  VIOLATION {violation}")
    if report.failure is not None:
        _say(f"  FAILED {report.failure}")


def _is_note(line: str) -> bool:
    """What the world did; everything else is a step of some process."""
    return line.partition(" ")[2].startswith("* ")


# --- many seeds -------------------------------------------------------------------------------------------------------


def _run_many(seeds: Iterable[int], minutes: float | None, jobs: int, without: tuple[str, ...]) -> Iterator[Report]:
    deadline = None if minutes is None else time.monotonic() + minutes * 60
    waiting = _until(deadline, seeds)
    if jobs <= 1:
        for seed in waiting:
            yield run_seed(seed, without=without)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from _in_order(pool, partial(run_seed, without=without), waiting, ahead=2 * jobs)


def _in_order(
    pool: multiprocessing.pool.Pool, work: Callable[[int], Report], seeds: Iterator[int], ahead: int
) -> Iterator[Report]:
    """A few seeds ahead of the one that is waited for: an endless supply is not taken all at once."""
    under_way = [pool.apply_async(work, (seed,)) for seed in itertools.islice(seeds, ahead)]
    while under_way:
        yield under_way.pop(0).get()
        under_way += [pool.apply_async(work, (seed,)) for seed in itertools.islice(seeds, 1)]


def _until(deadline: float | None, seeds: Iterable[int]) -> Iterator[int]:
    for seed in seeds:
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield seed


@dataclass(slots=True)
class Totals:
    seeds: int = 0
    events: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    jobs: int = 1
    counters: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)
    _said: float = field(default_factory=time.monotonic)

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.events += report.events
        self.virtual_s += report.virtual_s
        self.cpu_s += report.cpu_s
        self.counters += report.counters
        self.faults += report.faults
        self.violations.update(report.caught)
        if not report.is_clean:
            self.failed.append(report.seed)

    def is_progress_due(self) -> bool:
        if time.monotonic() - self._said < _PROGRESS_S:
            return False
        self._said = time.monotonic()
        return True

    @property
    def missing(self) -> list[str]:
        """What should have happened, and did not."""
        return [name for name in MUST_HAPPEN if not self.counters[name]]

    @property
    def is_well(self) -> bool:
        return not self.failed and (self.seeds < _BATCH_MIN or not self.missing)

    def as_json(self) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "failed": self.failed,
            "violations": dict(sorted(self.violations.items())),
            "events": self.events,
            "virtual_s": round(self.virtual_s, 3),
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
            "counters": dict(sorted(self.counters.items())),
            "faults": dict(sorted(self.faults.items())),
            "missing": self.missing,
        }

    def as_text(self) -> str:
        rate = self.seeds / max(self.wall_s, 0.001)
        lines = [
            f"{self.seeds} seeds in {self.wall_s:.0f} s, {rate:.1f} a second, on {self.jobs} cores",
            f"{self.events} events, {self.virtual_s:.0f} s of virtual time, {self.cpu_s:.0f} s of computing",
            "faults injected:",
            *[f"  {name}: {count}" for name, count in sorted(self.faults.items())],
            "what happened:",
            *[f"  {name}: {count}" for name, count in sorted(self.counters.items())],
        ]
        if self.missing and self.seeds >= _BATCH_MIN:
            lines.append(f"MISSING, so this batch proves little: {', '.join(self.missing)}")
        found = ", ".join(f"{name} in {count} seeds" for name, count in sorted(self.violations.items()))
        lines.append(f"violations: {found or 0}; seeds that failed: {self.failed or 'none'}")
        return "\n".join(lines)


def _say(text: str, to: TextIO | None = None) -> None:
    stream = sys.stdout if to is None else to
    stream.write(f"{text}\n")
    stream.flush()
