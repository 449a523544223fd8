"""Options: what one seed's world of staging looks like, drawn from the seed alone.

- topics: brokers, bookies, network and faults are drawn as for the seeds of topics; no client consumes.
- short: a staged ledger is old after a moment, so that sweepers get in the way of every job.
- patience: a task that gives a bookie up is begun again at once, in new ledgers. If it has less patience than the disks
  need for that, it never ends, and neither does the job: that would be no bug of the protocol. In a healed world each
  attempt of a task gets more time than the one before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.sim.ledgers.options import Options, chance, drawn, one_of, replaced
from magnetar.sim.seeds import seeded
from magnetar.sim.topics import options as topics
from magnetar.sim.topics.options import TopicOptions
from magnetar.staging.register import StagingSettings

FAULTS: Final = {
    **topics.FAULTS,
    "points": "a driver, a task or a broker is killed, or stands still, at a step of the protocol",
    "drivers": "two drivers of one job at a time",
    "speculation": "two attempts of one task at a time; the loser continues",
}
TTL_MS: Final = 3_600_000
"""Longer than any task, as it has to be; a shorter one must do no harm anyway."""
_ADD_TIMEOUT_MS_MIN: Final = 100
_OWN_FAULTS: Final = {"points": 0.8, "drivers": 0.5, "speculation": 0.5, "broker": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingOptions:
    world: TopicOptions
    jobs: int = one_of(1, 1, 2)
    epochs: int = one_of(2, 3, 4)
    """Of each job."""
    executors: int = one_of(1, 2, 3)
    partitions_max: int = one_of(1, 2, 4)
    rows_max: int = one_of(3, 8, 20)
    """Rows of one epoch."""
    strike: float = one_of(0.05, 0.15, 0.3)
    """How likely it is that something happens at a step of the protocol."""
    points: tuple[str, ...] = ()
    """Only at these steps; empty: at any."""
    task_patience_s: float = one_of(0.3, 1.0)
    patience_s: float = one_of(0.3, 1.0, 3.0)
    """Patience of a commit."""
    sweepers: int = one_of(1, 2)
    sweep_gap_s: float = one_of(0.05, 0.2, 0.5)
    ttl_ms: int = one_of(50, 300, TTL_MS, TTL_MS)
    finish_after_ms: int = one_of(0, 200, 3_600_000)
    large_intents: bool = chance(0.2)
    """Every intent is in a ledger of its own."""

    careless: bool = chance(0.3)
    """A driver continues after an epoch that was decided, though its commit failed: the next one has to finish it."""
    saves: int = one_of(0, 0, 1)
    """Queries whose batches are saved to several topics, each save a batch job, all with one job id."""

    @property
    def base(self) -> Options:
        return self.world.base

    @property
    def faults(self) -> tuple[str, ...]:
        return self.base.faults

    @property
    def settings(self) -> StagingSettings:
        base = self.base
        return StagingSettings(ensemble_size=base.ensemble, write_quorum=base.write, ack_quorum=base.ack)

    def summary(self) -> str:
        return (
            f"{self.world.summary()} jobs={self.jobs} saves={self.saves} epochs={self.epochs} "
            f"executors={self.executors} strike={self.strike} sweepers={self.sweepers} ttl={self.ttl_ms} ms"
        )


def draw(seed: int, override: Mapping[str, Any] | None = None, *, without: tuple[str, ...] = ()) -> StagingOptions:
    """The options of this seed. What is replaced does not change the rest of what is drawn."""
    random = seeded(f"{seed}/staging options")
    own = tuple(fault for fault, chance in _OWN_FAULTS.items() if random.random() < chance)
    options = drawn(StagingOptions, random, world=_world(seed, own))
    return replaced(options, override or {}, without)


def _world(seed: int, own: tuple[str, ...]) -> TopicOptions:
    world = topics.draw_plain(seed)
    faults = (*(fault for fault in world.base.faults if fault not in own), *own)
    ledger = {**world.base.ledger, "add_timeout_ms": max(_ADD_TIMEOUT_MS_MIN, world.base.ledger["add_timeout_ms"])}
    return dataclasses.replace(
        world,
        base=dataclasses.replace(world.base, faults=faults, ledger=ledger),
        producers=1,
        subscriptions=(),
        batching=False,
        topics=seeded(f"{seed}/staging topics").choice((1, 2, 2, 3)),
    )
