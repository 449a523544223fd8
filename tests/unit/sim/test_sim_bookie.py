"""The unchanged bookie in the simulated world: what it acknowledged survives, and a seed repeats to the bit."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from magnetar.sim.device import Crash
from magnetar.sim.world import World
from tests.unit.sim.sim_bookie import NODE, SimBookie, write_crash_read


@pytest.mark.parametrize("kind", list(Crash))
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_acknowledged_entries_are_read_back_after_a_crash(seed: str, kind: Crash) -> None:
    with World(seed) as world:
        acknowledged = world.run(write_crash_read(world, kind))
    assert len(acknowledged) >= 300


@pytest.mark.parametrize("shuffle", [0.0, 0.2])
def test_same_seed_gives_the_same_run(shuffle: float) -> None:
    assert _run("1", shuffle) == _run("1", shuffle) != _run("2", shuffle)


def _run(seed: str, shuffle: float) -> tuple[int, int, list[str]]:
    lines: list[str] = []
    with World(seed, shuffle=shuffle, trace=lines.append) as world:
        world.run(write_crash_read(world, Crash.POWER_LOSS, count=100))
    return world.loop.digest.value, world.loop.events, lines


DIGEST = """
from magnetar.sim.device import Crash
from magnetar.sim.world import World
from tests.unit.sim.sim_bookie import write_crash_read

for kind in (Crash.KILL, Crash.POWER_LOSS):
    with World("5", shuffle=0.1) as world:
        world.run(write_crash_read(world, kind))
    print(world.loop.digest.value, world.loop.events, world.loop.now, world.network.counters)
"""


def test_run_of_a_bookie_does_not_depend_on_the_hash_seed() -> None:
    assert _output("1") == _output("2")


def _output(hash_seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def test_client_of_a_paused_or_unreachable_bookie_gets_its_answers_afterwards() -> None:
    async def main(world: World) -> None:
        node = SimBookie(world)
        await node.prepare()
        await node.start()
        load = await node.connect()
        load.begin(5)
        for trouble, relief in (
            (lambda: world.pause(NODE), lambda: world.resume(NODE)),
            (lambda: world.network.isolate(NODE), world.network.heal),
        ):
            await load.wait_for(lambda load: len(load.acknowledged) >= 50)
            trouble()
            await asyncio.sleep(0.6)
            before = len(load.acknowledged)
            await asyncio.sleep(0.6)
            assert len(load.acknowledged) == before
            relief()
            await load.wait_for(lambda load, before=before: len(load.acknowledged) > before + 50)
        assert not load.is_lost
        assert load.acknowledged == sorted(load.acknowledged)

    with World("1") as world:
        world.run(main(world))


def test_watchers_and_listeners_run_as_the_process_that_set_them_and_not_after_its_death() -> None:
    async def main(world: World) -> list[str]:
        node = SimBookie(world)
        await node.prepare()
        heard: list[str] = []

        async def client(runtime: object) -> None:
            store = node.metadata.connect()
            store.session.listen(lambda state: heard.append(f"{world.loop.current().name} {state.value}"))
            await node.metadata.expire(store)
            for path in ("/one", "/two"):
                await store.get(path, watch=lambda event: heard.append(f"{world.loop.current().name} {event.path}"))
            await asyncio.Event().wait()

        world.add_node("client")
        world.start("client", client)
        await asyncio.sleep(1)
        store = node.metadata.connect()
        await store.create("/one")
        await asyncio.sleep(1)
        world.crash("client", Crash.KILL)
        await store.create("/two")
        await asyncio.sleep(10)
        return heard

    with World("1") as world:
        assert world.run(main(world)) == ["client expired", "client re-established", "client /one"]
