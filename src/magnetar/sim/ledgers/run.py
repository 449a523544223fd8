"""One seed, from its number to its report.

    report = run_seed(17)
    report = run_seed(17, {"faults": ("power", "part")}, without=("part",), mutant=planted_bug, trace=print)

Options:   drawn from the seed; `override` replaces some by name, `without` takes classes of faults away.
Mutant:    a callable without arguments that returns a context manager. It is entered before the world is made and left
           behind it: while it is entered, production classes are patched.
Repeat:    the same call gives the same report, digest included, in any process.
Read next: watch.py, cluster.py, workload.py, nemesis.py, settle.py
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from magnetar.sim.ledgers.cluster import Cluster
from magnetar.sim.ledgers.invariants import ALL
from magnetar.sim.ledgers.nemesis import Nemesis
from magnetar.sim.ledgers.options import Options, draw
from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.settle import settle
from magnetar.sim.ledgers.watch import Invariant, Watch
from magnetar.sim.ledgers.workload import Workload
from magnetar.sim.loop import SimulationError
from magnetar.sim.world import World

Mutant: TypeAlias = Callable[[], AbstractContextManager[object]]
Script: TypeAlias = Callable[[Cluster, Workload, Watch], Coroutine[Any, Any, None]]
EVENTS_MAX = 1_500_000


def run_seed(
    seed: int,
    override: Mapping[str, Any] | None = None,
    *,
    without: tuple[str, ...] = (),
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
    invariants: Sequence[type[Invariant]] = ALL,
    script: Script | None = None,
) -> Report:
    """`script`: instead of the workload's director and the nemesis (directed.py)."""
    options = draw(seed, override, without=without)
    report = Report(seed, options.summary())
    began = time.process_time()
    with muted(), mutant() if mutant is not None else contextlib.nullcontext():
        world = World(str(seed), shuffle=options.shuffle, delay=options.delay, events_max=EVENTS_MAX, trace=trace)
        with world:
            watch = Watch(world, options, invariants)
            try:
                world.run(_main(world, options, watch, script))
            except Exception as error:  # Whatever broke the run: a planted bug may break anything.
                report.failure = told(error)
            fill(report, world, watch)
    report.cpu_s = time.process_time() - began
    return report


async def _main(world: World, options: Options, watch: Watch, script: Script | None) -> None:
    cluster = Cluster(world, options, watch)
    await cluster.start()
    workload = Workload(cluster, watch)
    nemesis = Nemesis(cluster, workload, watch)
    if script is not None:
        await script(cluster, workload, watch)
    else:
        until_s = world.loop.now + options.duration_s
        breaking = world.loop.create_task(nemesis.run(until_s), name="nemesis")
        await workload.direct(until_s)
        await breaking
    await settle(cluster, workload, nemesis, watch)
    watch.look_at_disks()
    watch.tell("at_end")


def told(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, SimulationError) else error
    lines = traceback.format_exception(cause)[-8:] if cause is not None else []
    return "\n".join([str(error), *[line.rstrip() for line in lines]])


def fill(report: Report, world: World, watch: Watch) -> None:
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
