"""The workload: a writer that gets no room any more does not pass for one that has nothing to do."""

from __future__ import annotations

import contextlib
import dataclasses
from contextlib import AbstractContextManager

import pytest

from magnetar.errors import MagnetarError
from magnetar.ledger.writing.engine import WriteEngine
from magnetar.sim.ledgers.invariants import ALL
from magnetar.sim.ledgers.options import Options
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.mutants.planting import Edit, planted
from magnetar.sim.mutants.scenes import SceneWorld, scene_options
from magnetar.sim.network import LinkDelay
from magnetar.sim.run import Report, live
from magnetar.sim.world import World

SEEDS = range(1, 4)
AWAY = "bookie-0"
WRITER = "client-0"
SLOW = LinkDelay(1.0, 1.0, tail=0.0, tail_max_s=1.0)
"""Far longer than a writer that waits for nothing looks at its clock."""


def impatient(seed: int, *, in_line: bool) -> Options:
    """A writer that may owe a bookie one answer, and hears from no bookie meanwhile."""
    options = scene_options(seed, in_line=in_line)
    ledger = {
        "adds_behind_max": 1,
        "add_bytes_in_flight_max": 1 << 20,
        "slow_bookie_wait_ms": 200,
        "connect_timeout_ms": 20_000,
        "explicit_lac_interval_ms": 0,
        "delay_ensemble_change": False,
    }
    return dataclasses.replace(options, ledger={**options.ledger, **ledger})


async def bookie_that_is_back_late_and_answers_nothing(scene: SceneWorld) -> None:
    """Its connection breaks while nothing is in flight; others confirm two entries before the next one exists."""
    workload, network = scene.workload, scene.world.network
    created = await scene.do(0, workload.create(scene.client(0)))
    assert created is not None
    writer, acks = created
    await scene.do(0, workload.burst(writer, acks, 1))
    await scene.until(lambda: not acks.pending, "the first entry is not acknowledged")
    slot = next(slot for slot in writer._engine.slots if slot.bookie_id.startswith(AWAY))
    way = scene.ledger_client(0).bookies._dialer_of(slot.bookie_id)
    network.reset(WRITER, AWAY)
    await scene.until(lambda: slot.is_empty and way.is_forgettable, "the bookie cannot be tried again")
    network.link(WRITER, AWAY).delay = SLOW
    for _ in range(2):
        await scene.do(0, workload.burst(writer, acks, 1))
        await scene.until(lambda: not acks.pending, "two bookies do not confirm it")
    scene.world.pause(AWAY)
    await scene.until(lambda: not writer.has_room, "the connection does not come back")
    with contextlib.suppress(MagnetarError):  # A call that hung reports its error here.
        await scene.begin(0, workload.burst(writer, acks, 1))


def run(seed: int, *, in_line: bool, bug: AbstractContextManager[None] | None = None) -> Report:
    options = impatient(seed, in_line=in_line)

    async def life(world: World, watch: Watch) -> None:
        scene = SceneWorld(world, options, watch)
        await scene.start()
        await bookie_that_is_back_late_and_answers_nothing(scene)

    return live(
        Report(seed, options.summary()),
        lambda: World(f"room/{seed}", shuffle=options.shuffle, delay=options.delay),
        lambda world: Watch(world, options, ALL),
        life,
        mutant=None if bug is None else lambda: bug,
    )


@pytest.mark.parametrize("in_line", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_writer_that_never_gets_room_again_is_a_call_that_does_not_end(seed: int, in_line: bool) -> None:
    nobody_looks = planted([Edit(WriteEngine.connect_slot, "self._check_stalls_later()", "pass")])
    report = run(seed, in_line=in_line, bug=nobody_looks)
    assert (report.failure, report.caught) == (None, ["V2"])


@pytest.mark.parametrize("in_line", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_writer_goes_on_without_a_bookie_that_is_back_and_answers_nothing(seed: int, in_line: bool) -> None:
    assert run(seed, in_line=in_line).is_clean
