"""One seed of topics, from its number to its report.

    report = run_seed(17)
    report = run_seed(17, {"faults": ("power", "part")}, without=("part",), mutant=planted_bug, trace=print)

Read next: ../ledgers/life.py, watch.py, cluster.py, workload.py, settle.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar.sim.ledgers.life import Mutant, live, work_under_faults
from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.topics.cluster import TopicCluster
from magnetar.sim.topics.invariants import ALL
from magnetar.sim.topics.nemesis import TopicNemesis
from magnetar.sim.topics.options import TopicOptions, draw
from magnetar.sim.topics.settle import settle
from magnetar.sim.topics.tap import tapped
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.topics.workload import TopicWorkload
from magnetar.sim.world import World

EVENTS_MAX = 3_000_000

MUST_HAPPEN = (
    "receipts",
    "take-overs",
    "topics lost",
    "duplicates",
    "sends of unknown outcome",
    "acks confirmed",
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
    base = options.base
    return live(
        Report(seed, options.summary()),
        lambda: World(f"topics/{seed}", shuffle=base.shuffle, delay=base.delay, events_max=EVENTS_MAX, trace=trace),
        lambda world: TopicWatch(world, options, invariants),
        lambda world, watch: _life(world, options, watch),
        mutant=mutant,
        tap=tapped,
    )


async def _life(world: World, options: TopicOptions, watch: TopicWatch) -> None:
    cluster = TopicCluster(world, options, watch)
    await cluster.start()
    workload = TopicWorkload(cluster, watch)
    nemesis = TopicNemesis(cluster, workload, watch)
    workload.begin()
    await work_under_faults(world, workload, nemesis, options.base.duration_s)
    await settle(cluster, workload, nemesis, watch)
    watch.tell("at_end")
