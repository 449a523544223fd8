"""One seed of staging, from its number to its report.

    report = run_seed(17)
    report = run_seed(17, {"strike": 0.5}, without=("part",), mutant=planted_bug, trace=print)

Read next: ../ledgers/life.py, job.py, points.py, invariants.py, settle.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar.sim.ledgers.life import Mutant, live, work_under_faults
from magnetar.sim.ledgers.report import Report
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
    "attempts for nothing",
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
    base = options.world.base
    return live(
        Report(seed, options.summary()),
        lambda: World(f"staging/{seed}", shuffle=base.shuffle, delay=base.delay, events_max=EVENTS_MAX, trace=trace),
        lambda world: StagingWatch(world, options, invariants),
        lambda world, watch: _life(world, options, watch),
        mutant=mutant,
        tap=tapped,
    )


async def _life(world: World, options: StagingOptions, watch: StagingWatch) -> None:
    cluster = StagingCluster(world, options, watch)
    await cluster.start()
    workload = StagingWorkload(cluster, watch)
    nemesis = TopicNemesis(cluster, workload, watch)
    workload.begin()
    await work_under_faults(world, workload, nemesis, options.world.base.duration_s)
    await settle(cluster, workload, nemesis, watch)
    watch.tell("at_end")
