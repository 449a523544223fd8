"""The hunt: seeds with a bug planted, one after the other, until an invariant says that something is wrong.

- honest: the same seed without the bug must be clean; otherwise the seed caught something else (`is_false`).
- run: a seed that broke down (an unhandled exception) catches a bug only if no invariant does within the budget: a bug
  that was planted badly would break down as well.
- directed: where there is a scene for the bug, it must show it on every seed, and pass without it.
- processes: one per core, started anew, so that nothing of one planted bug can reach the next. Two hunts share them:
  while one waits for its last seed, its control or its scene, the seeds of the other keep every core busy.

Order:     the seed that counts is the first one that catches the bug, however many processes look for it: what is
           before it was run and was clean.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.sim.mutants.registry import MUTANTS
from magnetar.sim.mutants.scenes import SCENES, run_scene
from magnetar.sim.run import Report
from magnetar.sim.scenarios import run

CONTROL: Final = 0
CONTROLS: Final = {CONTROL: "ledgers", -1: "topics", -2: "staging", -3: "bundles"}
"""In place of a mutant's number: no bug at all, in worlds of this kind."""
RUN: Final = "run"
_SCENE_SEEDS: Final = 10
_HUNTS: Final = 2  # At a time. One more would only begin seeds that turn out not to be needed.


class Catch(NamedTuple):
    seed: int
    invariants: tuple[str, ...]
    """In the order in which they were violated; `run` if the run itself broke down."""
    what: str


class Played(NamedTuple):
    """A scene on some seeds."""

    seeds: int
    shown: int
    """The number of them on which it showed the planted bug."""
    clean: int
    """The number of them on which it passed without the bug."""

    @property
    def is_good(self) -> bool:
        return self.shown == self.clean == self.seeds


class Found(NamedTuple):
    """What one seed showed."""

    catch: Catch | None
    cpu_s: float

    @property
    def is_violated(self) -> bool:
        """An invariant noticed it; the run did not merely break down."""
        return self.catch is not None and self.catch.invariants != (RUN,)


@dataclass(slots=True)
class Hunt:
    """How it ended for one mutant, or for the control."""

    number: int
    catch: Catch | None = None
    seeds: int = 0
    """Up to and including the one that caught it; all of them, if none did."""
    cpu_s: float = 0.0
    elapsed_s: float = 0.0
    is_false: bool = False
    """The seed is not clean without the bug either."""
    played: Played | None = None
    """None: there is no scene for it."""


def run_one(number: int, seed: int, trace: Callable[[str], None] | None = None) -> Report:
    if number in CONTROLS:
        return run(CONTROLS[number], seed, trace=trace)
    mutant = MUTANTS[number]
    return run(mutant.kind, seed, override=mutant.options, mutant=mutant.plant, trace=trace)


def run_clean(number: int, seed: int) -> bool:
    """Whether the mutant's seed is clean without the bug."""
    return run(MUTANTS[number].kind, seed, override=MUTANTS[number].options).is_clean


def look(number: int, seed: int) -> Found:
    """A job: one seed."""
    report = run_one(number, seed)
    catch: Catch | None = None
    if report.violations:
        catch = Catch(seed, tuple(report.caught), str(report.violations[0]))
    elif report.failure is not None:
        catch = Catch(seed, (RUN,), report.failure.splitlines()[0])
    return Found(catch, report.cpu_s)


def play(number: int, first: int, count: int) -> Played:
    """A job: the scene of this bug on these seeds."""
    seeds = range(first, first + count)
    shown = [run_scene(number, seed, planted=True) for seed in seeds]
    clean = [run_scene(number, seed, planted=False) for seed in seeds]
    caught_by = SCENES[number].caught_by
    return Played(
        count,
        sum(report.failure is None and caught_by in report.caught for report in shown),
        sum(report.is_clean for report in clean),
    )


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of their own; they end when the block does, and what they were about to do is not done."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_leave_interrupts_to_the_parent)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def hunt_all(
    budgets: Mapping[int, int],
    first: int,
    pool: ProcessPoolExecutor,
    width: int,
    on_ended: Callable[[Hunt], None],
) -> list[Hunt]:
    """`budgets`: seeds by number. `on_ended` hears of each hunt in this order."""
    turn = asyncio.Semaphore(_HUNTS)

    async def in_turn(number: int, budget: int) -> Hunt:
        async with turn:
            return await hunt(number, first, budget, pool, width)

    async with asyncio.TaskGroup() as group:
        hunts = [group.create_task(in_turn(number, budget)) for number, budget in budgets.items()]
        for ending in hunts:
            on_ended(await ending)
    return [ended.result() for ended in hunts]


async def hunt(number: int, first: int, budget: int, pool: ProcessPoolExecutor, width: int) -> Hunt:
    """`width` jobs at a time. The control has to go through all its seeds, or stops at the first that is not clean."""
    began = time.monotonic()
    seeds = iter(range(first, first + budget))
    found: dict[int, Found] = {}
    jobs: dict[asyncio.Future[Found], int] = {}
    while True:
        while len(jobs) < width and not any(each.is_violated for each in found.values()):
            if (seed := next(seeds, None)) is None:
                break
            jobs[asyncio.wrap_future(pool.submit(look, number, seed))] = seed
        if not jobs:
            break
        done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        found.update({jobs.pop(job): job.result() for job in done})
    ended = _conclude(number, found)
    if ended.catch is not None and number not in CONTROLS:
        ended.is_false = not await asyncio.wrap_future(pool.submit(run_clean, number, ended.catch.seed))
    if number in SCENES:
        ended.played = await asyncio.wrap_future(pool.submit(play, number, first, _SCENE_SEEDS))
    ended.elapsed_s = time.monotonic() - began
    return ended


def _conclude(number: int, found: Mapping[int, Found]) -> Hunt:
    """Seeds after the one that counts were run so that no process was idle; they cost time, and nothing more."""
    ended = Hunt(number, cpu_s=sum(each.cpu_s for each in found.values()))
    for seed in sorted(found):
        ended.seeds += 1
        ended.catch = ended.catch or found[seed].catch
        if found[seed].is_violated:
            ended.catch = found[seed].catch
            break
    return ended
