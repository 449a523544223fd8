"""Directed runs: nothing but take-overs under fire, one kind of fire at a time.

    run_directed("drill", seed=3)                  a Report, as from LEDGERS.run
    run_directed("drill", seed=3, mutant=bug)

Purpose:   aimed faults are a part of many seeds, among others. Here they are all there is, many times in a row, and
           each round waits until the owner has acknowledged entries that could be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from magnetar.sim.ledgers.cluster import Cluster
from magnetar.sim.ledgers.nemesis import Strike, TargetedFaults
from magnetar.sim.ledgers.scenario import LEDGERS
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.ledgers.workload import Workload
from magnetar.sim.run import Planted, Report
from magnetar.sim.seeds import seeded

_ROUNDS: Final = 6
_ACKS: Final = 3  # Acknowledgements before the next strike …
_LOOKS_MAX: Final = 100  # … or after this many looks without them.
_LOOK_S: Final = 0.02
_WORLD: Final[dict[str, Any]] = {"clients": 3, "topics": 1, "faults": (), "deletes": False}

RUNS: Final[dict[str, Callable[[TargetedFaults], Strike]]] = {
    "drill": lambda faults: faults.drill,
    "blackout": lambda faults: faults.blackout,
    "fates": lambda faults: faults.fates,
}


def run_directed(
    name: str, seed: int, *, mutant: Planted | None = None, trace: Callable[[str], None] | None = None
) -> Report:
    choose = RUNS[name]

    async def script(cluster: Cluster, workload: Workload, watch: Watch) -> None:
        strike = choose(TargetedFaults(cluster, workload, watch))
        random = seeded(f"{seed}/script")
        for _ in range(_ROUNDS):
            await _wait_owned(workload, watch)
            await strike(random)

    return LEDGERS.run(seed, _WORLD, mutant=mutant, trace=trace, script=script)


async def _wait_owned(workload: Workload, watch: Watch) -> None:
    """Until the topic has an owner that writes; a new one, if the old one does not."""
    topic = workload.topics[0]
    if topic.ledger_id is None:
        workload.take_over(topic)
    before = watch.counters["acks"]
    for _ in range(_LOOKS_MAX):
        if watch.counters["acks"] >= before + _ACKS:
            return
        await asyncio.sleep(_LOOK_S)
    workload.take_over(topic)
