"""One seed of staging, from its number to its report. As topics/run.py, with the same report.

    report = run_seed(17)
    report = run_seed(17, {"strike": 0.5}, without=("part",), mutant=planted_bug, trace=print)

Read next: job.py, points.py, invariants.py, settle.py
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.run import Mutant, fill, muted, told
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.staging.cluster import StagingCluster
from magnetar.sim.staging.invariants import ALL
from magnetar.sim.staging.options import StagingOptions, draw
from magnetar.sim.staging.settle import settle
from magnetar.sim.staging.tap import tapped
from magnetar.sim.staging.watch import StagingWatch
from magnetar.sim.staging.workload import StagingWorkload
from magnetar.sim.topics.nemesis import TopicNemesis
from magnetar.sim.world import World

EVENTS_MAX = 3_000_000

MUST_HAPPEN = (
    "epochs committed",
    "commits failed",
    "attempts failed",
    "intents",
    "epochs left behind",
    "staged ledgers swept",
    "intents finished by a sweeper",
    "take-overs",
    "point mid-copy",
    "point between-topics",
    "sessions expired",
)
"""Counters that are above zero over any batch worth its name."""


def run_seed(
    seed: int,
    override: Mapping[str, Any] | None = None,
    *,
    without: tuple[str, ...] = (),
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
    invariants: Sequence[type[Invariant]] = ALL,
) -> Report:
    options = draw(seed, override, without=without)
    report = Report(seed, options.summary())
    base = options.world.base
    began = time.process_time()
    with muted(), mutant() if mutant is not None else contextlib.nullcontext():
        world = World(f"staging/{seed}", shuffle=base.shuffle, delay=base.delay, events_max=EVENTS_MAX, trace=trace)
        with world:
            watch = StagingWatch(world, options, invariants)
            with tapped(watch):
                try:
                    world.run(_main(world, options, watch))
                except Exception as error:  # Whatever broke the run: a planted bug may break anything.
                    report.failure = told(error)
            fill(report, world, watch)
    report.cpu_s = time.process_time() - began
    return report


async def _main(world: World, options: StagingOptions, watch: StagingWatch) -> None:
    cluster = StagingCluster(world, options, watch)
    await cluster.start()
    workload = StagingWorkload(cluster, watch)
    nemesis = TopicNemesis(cluster, workload, watch)
    workload.begin()
    until_s = world.loop.now + options.world.base.duration_s
    breaking = world.loop.create_task(nemesis.run(until_s), name="nemesis")
    await workload.direct(until_s)
    await breaking
    await settle(cluster, workload, nemesis, watch)
    watch.tell("at_end")
