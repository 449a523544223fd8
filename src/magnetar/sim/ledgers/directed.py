"""Directed runs: nothing but take-overs under fire, one kind of fire at a time.

    run_directed("drill", seed=3)                  a Report, as from run_seed
    run_directed("drill", seed=3, mutant=bug)

Why:       the aimed faults of aimed.py are a part of many seeds, among others. Here they are all there is, many times
           in a row, and each round waits until the owner has acknowledged entries that could be lost.
Read next: aimed.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from magnetar.sim.ledgers.aimed import Aimed, Strike
from magnetar.sim.ledgers.cluster import Cluster
from magnetar.sim.ledgers.life import Mutant
from magnetar.sim.ledgers.report import Report
from magnetar.sim.ledgers.run import run_seed
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.ledgers.workload import Workload
from magnetar.sim.seeds import seeded

_ROUNDS: Final = 6
_ACKS: Final = 3  # So many before the next strike …
_LOOKS_MAX: Final = 100  # … or none of so many looks found them.
_LOOK_S: Final = 0.02
_WORLD: Final[dict[str, Any]] = {"clients": 3, "topics": 1, "faults": (), "deletes": False}

RUNS: Final[dict[str, Callable[[Aimed], Strike]]] = {
    "drill": lambda aimed: aimed.drill,
    "blackout": lambda aimed: aimed.blackout,
    "fates": lambda aimed: aimed.fates,
}


def run_directed(
    name: str, seed: int, *, mutant: Mutant | None = None, trace: Callable[[str], None] | None = None
) -> Report:
    choose = RUNS[name]

    async def script(cluster: Cluster, workload: Workload, watch: Watch) -> None:
        strike = choose(Aimed(cluster, workload, watch))
        random = seeded(f"{seed}/script")
        for _ in range(_ROUNDS):
            await _wait_owned(workload, watch)
            await strike(random)

    return run_seed(seed, _WORLD, mutant=mutant, trace=trace, script=script)


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
