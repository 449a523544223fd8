"""One seed, from its number to its report.

    report = run_seed(17)
    report = run_seed(17, {"faults": ("power", "part")}, without=("part",), mutant=planted_bug, trace=print)

Options:   drawn from the seed; `override` replaces some by name, `without` takes classes of faults away.
Repeat:    the same call gives the same report, digest included, in any process.
Read next: life.py, watch.py, cluster.py, workload.py, nemesis.py, settle.py
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from magnetar.sim.ledgers.cluster import Cluster
from magnetar.sim.ledgers.invariants import ALL
from magnetar.sim.ledgers.life import Mutant, live, work_under_faults
from magnetar.sim.ledgers.nemesis import Nemesis
from magnetar.sim.ledgers.options import Options, draw
from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.settle import settle
from magnetar.sim.ledgers.watch import Invariant, Watch
from magnetar.sim.ledgers.workload import Workload
from magnetar.sim.world import World

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
    return live(
        Report(seed, options.summary()),
        lambda: World(str(seed), shuffle=options.shuffle, delay=options.delay, events_max=EVENTS_MAX, trace=trace),
        lambda world: Watch(world, options, invariants),
        lambda world, watch: _life(world, options, watch, script),
        mutant=mutant,
    )


async def _life(world: World, options: Options, watch: Watch, script: Script | None) -> None:
    cluster = Cluster(world, options, watch)
    await cluster.start()
    workload = Workload(cluster, watch)
    nemesis = Nemesis(cluster, workload, watch)
    if script is not None:
        await script(cluster, workload, watch)
    else:
        await work_under_faults(world, workload, nemesis, options.duration_s)
    await settle(cluster, workload, nemesis, watch)
    watch.look_at_disks()
    watch.tell("at_end")
