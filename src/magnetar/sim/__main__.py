"""The simulator's command line: many seeds on all cores, or one seed to look at.

    python -m magnetar.sim --seeds 300 --from 1000
    python -m magnetar.sim --minutes 20
    python -m magnetar.sim --kind topics --seed 17 --trace --without part,pause

Order:     Every seed runs in a worker. Results are taken in the order of seeds, so the output is the same on any number
           of cores. Without a kind each seed is run as each kind of world in turn; one seed alone is of ledgers then.
Failure:   A seed that fails is run again, to print what happened in its world before; then the command that repeats it.
           The exit code is 1 if any seed failed, or if a batch of a hundred seeds or more did not do what it is for.
Read next: run.py, scenarios.py, docs/simulation.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
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

from magnetar.sim.run import Report
from magnetar.sim.scenarios import SCENARIOS, run

_SHOWN_LINES = 80
_BATCH_MIN = 100  # Fewer seeds may by chance miss something that every batch must have met.
_PROGRESS_S = 10.0


def main(arguments: Sequence[str]) -> int:
    chosen = _parser().parse_args(arguments)
    without = tuple(name for name in chosen.without.split(",") if name)
    kinds = [chosen.kind] if chosen.kind is not None else list(SCENARIOS)
    faults = dict.fromkeys(name for kind in kinds for name in SCENARIOS[kind].faults)
    if unknown := [name for name in without if name not in faults]:
        _say(f"there is no class of faults {', '.join(unknown)}; there are {', '.join(faults)}", to=sys.stderr)
        return 2
    if chosen.seed is not None:
        return _run_one(kinds[0], chosen.seed, without, trace=chosen.trace)
    totals = _run_batch(chosen, kinds, without)
    if chosen.json:
        _say(json.dumps({each.kind: each.as_json() for each in totals.values()}, indent=2))
    else:
        _say("\n".join(each.as_text() for each in totals.values()))
    return 0 if all(each.is_well for each in totals.values()) else 1


def _run_batch(chosen: argparse.Namespace, kinds: Sequence[str], without: tuple[str, ...]) -> dict[str, Totals]:
    began = said = time.monotonic()
    totals = {kind: Totals(kind, jobs=chosen.jobs) for kind in kinds}
    for kind, report in _run_many(_jobs(chosen, kinds), chosen.minutes, chosen.jobs, without):
        totals[kind].add(report)
        if not report.is_clean:
            _explain(kind, report, without)
        if time.monotonic() - said >= _PROGRESS_S:
            said = time.monotonic()
            done, failed = (
                sum(each.seeds for each in totals.values()),
                sum(len(each.failed) for each in totals.values()),
            )
            _say(f"… {done} seeds, {failed} failed, up to {kind} seed {report.seed}", to=sys.stderr)
    for each in totals.values():
        each.wall_s = time.monotonic() - began
    return totals


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m magnetar.sim", description="Simulated disasters, by seed.")
    parser.add_argument("--kind", choices=list(SCENARIOS), default=None, help="which worlds (default: all)")
    parser.add_argument("--seeds", type=int, default=None, help="how many of each kind (default 100)")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED", help="the first one (default 0)")
    parser.add_argument("--minutes", type=float, default=None, help="as many as fit into this time")
    parser.add_argument("--seed", type=int, default=None, help="run this one alone, and print what happened")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    faults = ", ".join(dict.fromkeys(name for kind in SCENARIOS.values() for name in kind.faults))
    parser.add_argument("--without", default="", metavar="CLASS,…", help=f"without these faults: {faults}")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="worker processes")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON")
    return parser


def _jobs(chosen: argparse.Namespace, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    is_endless = chosen.seeds is None and chosen.minutes is not None
    seeds = itertools.count(chosen.first) if is_endless else range(chosen.first, chosen.first + (chosen.seeds or 100))
    return ((kind, seed) for seed in seeds for kind in kinds)


# --- one seed ---------------------------------------------------------------------------------------------------------


def _run_one(kind: str, seed: int, without: tuple[str, ...], *, trace: bool) -> int:
    _say(f"seed {seed}: {SCENARIOS[kind].draw(seed, without=without).summary()}")

    def show(line: str) -> None:
        if trace or _is_note(line):
            _say(line)

    report = run(kind, seed, without=without, trace=show)
    _say_findings(report)
    _say(f"{report.events} events, {report.virtual_s:.3f} s of virtual time, digest {report.digest:08x}")
    _say("\n".join(f"  {name}: {count}" for name, count in sorted((report.counters + report.faults).items())))
    return 0 if report.is_clean else 1


def _explain(kind: str, report: Report, without: tuple[str, ...]) -> None:
    lines: list[str] = []

    def keep(line: str) -> None:
        if _is_note(line):
            lines.append(line)

    again = run(kind, report.seed, without=without, trace=keep)
    _say(f"{kind} seed {report.seed} failed: {report.options}")
    _say("\n".join(f"    {line}" for line in lines[-_SHOWN_LINES:]))
    _say_findings(report)
    if again.digest != report.digest:
        _say(f"  and it did not repeat: digest {report.digest:08x}, then {again.digest:08x}")
    options = f" --without {','.join(without)}" if without else ""
    _say(f"  again: python -m magnetar.sim --kind {kind} --seed {report.seed}{options}")


def _say_findings(report: Report) -> None:
    for violation in report.violations:
        _say(f"  VIOLATION {violation}")
    if report.failure is not None:
        _say(f"  FAILED {report.failure}")


def _is_note(line: str) -> bool:
    """What the world did; everything else is a step of some process."""
    return line.partition(" ")[2].startswith("* ")


# --- many seeds -------------------------------------------------------------------------------------------------------


def _run_many(
    work: Iterable[tuple[str, int]], minutes: float | None, jobs: int, without: tuple[str, ...]
) -> Iterator[tuple[str, Report]]:
    deadline = math.inf if minutes is None else time.monotonic() + minutes * 60
    waiting = itertools.takewhile(lambda _: time.monotonic() < deadline, work)
    if jobs <= 1:
        for kind, seed in waiting:
            yield kind, run(kind, seed, without=without)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from _in_order(pool, partial(run, without=without), waiting, ahead=2 * jobs)


def _in_order(
    pool: multiprocessing.pool.Pool, runs: Callable[..., Report], work: Iterator[tuple[str, int]], ahead: int
) -> Iterator[tuple[str, Report]]:
    """A few seeds ahead of the one that is waited for: an endless supply is not taken all at once."""
    under_way = [(each[0], pool.apply_async(runs, each)) for each in itertools.islice(work, ahead)]
    while under_way:
        kind, running = under_way.pop(0)
        yield kind, running.get()
        under_way += [(each[0], pool.apply_async(runs, each)) for each in itertools.islice(work, 1)]


@dataclass(slots=True)
class Totals:
    """Counts of the seeds of one kind."""

    kind: str
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

    @property
    def missing(self) -> list[str]:
        """What should have happened, and did not."""
        return [name for name in SCENARIOS[self.kind].must_happen if not self.counters[name]]

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
            f"{self.seeds} seeds of {self.kind} in {self.wall_s:.0f} s, {rate:.1f} a second, on {self.jobs} cores",
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
