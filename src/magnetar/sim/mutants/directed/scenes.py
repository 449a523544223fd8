"""The directed runs by the number of their planted bug, and how one is run.

report = run_scene(16, seed=3, planted=True)        violated on every seed
report = run_scene(16, seed=3, planted=False)       clean on every seed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from magnetar.sim.ledgers.invariants import ALL
from magnetar.sim.ledgers.life import muted
from magnetar.sim.ledgers.options import Options
from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.loop import SimulationError
from magnetar.sim.mutants.directed import disks, fences, recoveries
from magnetar.sim.mutants.directed.stage import Scene, Stage, stage_options
from magnetar.sim.mutants.registry import MUTANTS
from magnetar.sim.world import World


class Directed(NamedTuple):
    scene: Scene
    caught_by: str
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


SCENES: Final = {
    16: Directed(fences.power_loss_behind_a_fence, "L8"),
    17: Directed(recoveries.bookie_that_was_not_fenced_says_no, "L9"),
    18: Directed(fences.second_fence_while_the_first_is_written, "L8"),
    19: Directed(fences.eviction_of_a_fenced_ledger, "L8", {"ledgers_in_memory": 3}),
    20: Directed(fences.deletion_of_a_fenced_ledger, "L8", {"storage": {"gc_interval_ms": 50}}),
    21: Directed(disks.empty_disks, "B7"),
}


def run_scene(number: int, seed: int, *, planted: bool, trace: Callable[[str], None] | None = None) -> Report:
    directed = SCENES[number]
    options = stage_options(seed, **directed.options)
    report = Report(seed, options.summary())
    bug = MUTANTS[number].plant() if planted else contextlib.nullcontext()
    world = World(f"{number}/{seed}", shuffle=options.shuffle, delay=options.delay, trace=trace)
    with muted(), bug, world:
        watch = Watch(world, options, ALL)
        try:
            world.run(_play(world, options, watch, directed.scene))
        except SimulationError as error:
            report.failure = str(error)
        report.violations = watch.violations
    return report


async def _play(world: World, options: Options, watch: Watch, scene: Scene) -> None:
    stage = Stage(world, options, watch)
    await stage.start()
    await scene(stage)
