"""The life of one world, of whatever kind: made, lived through, watched, and told in a report.

Mutant:    a callable without arguments that returns a context manager. It is entered before the world is made and left
           behind it: while it is entered, production classes are patched.
Tap:       a context manager for the life itself: what the watch has to hear from inside production classes.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.loop import SimulationError
from magnetar.sim.world import World

Mutant: TypeAlias = Callable[[], AbstractContextManager[object]]
W = TypeVar("W", bound=Watch)


class Director(Protocol):
    async def direct(self, until_s: float) -> None: ...


class Breaker(Protocol):
    async def run(self, until_s: float) -> None: ...


def live(
    report: Report,
    make_world: Callable[[], World],
    make_watch: Callable[[World], W],
    life: Callable[[World, W], Coroutine[Any, Any, None]],
    *,
    mutant: Mutant | None,
    tap: Callable[[W], AbstractContextManager[object]] = contextlib.nullcontext,
) -> Report:
    """What happened goes to the report, which is returned."""
    began = time.process_time()
    with muted(), mutant() if mutant is not None else contextlib.nullcontext(), make_world() as world:
        watch = make_watch(world)
        with tap(watch):
            try:
                world.run(life(world, watch))
            except Exception as error:  # Whatever broke the run: a planted bug may break anything.
                report.failure = _told(error)
        _fill(report, world, watch)
    report.cpu_s = time.process_time() - began
    return report


async def work_under_faults(world: World, workload: Director, nemesis: Breaker, duration_s: float) -> None:
    until_s = world.loop.now + duration_s
    breaking = world.loop.create_task(nemesis.run(until_s), name="nemesis")
    await workload.direct(until_s)
    await breaking


def _told(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, SimulationError) else error
    lines = traceback.format_exception(cause)[-8:] if cause is not None else []
    return "\n".join([str(error), *[line.rstrip() for line in lines]])


def _fill(report: Report, world: World, watch: Watch) -> None:
    report.violations = watch.violations
    report.events = world.loop.events
    report.virtual_s = world.loop.now
    report.digest = world.loop.digest.value
    report.counters = watch.counters
    report.faults = watch.faults


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """A broken world has much to log."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
