"""Options: what one seed's world of staging looks like, drawn from the seed alone.

Topics:    brokers, bookies, network and faults are drawn as for the seeds of topics; nobody consumes.
Short:     a staged ledger is old after a moment, so that sweepers get in everybody's way.
Patience:  a task that gives a bookie up is begun again at once, in new ledgers. If it has less patience than the disks
           need for that, it never ends, and neither does the job: that would be no bug of the protocol.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.sim.seeds import seeded
from magnetar.sim.topics import options as topics
from magnetar.sim.topics.options import TopicOptions
from magnetar.staging.settings import StagingSettings

FAULTS: Final = {
    **topics.FAULTS,
    "points": "a driver, a task or a broker is killed, or stands still, at a step of the protocol",
    "drivers": "two drivers of one job at a time",
    "speculation": "two attempts of one task at a time; the loser goes on",
}
TTL_MS: Final = 3_600_000
"""Longer than any task, as it has to be; a shorter one must do no harm all the same."""
_ADD_TIMEOUT_MS_MIN: Final = 100
_OWN_FAULTS: Final = {"points": 0.8, "drivers": 0.5, "speculation": 0.5, "broker": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingOptions:
    world: TopicOptions
    jobs: int
    epochs: int
    """Of each job."""
    executors: int
    partitions_max: int
    rows_max: int
    """Of one epoch."""
    strike: float
    """How likely it is that something happens at a step of the protocol."""
    points: tuple[str, ...]
    """Only at these steps; empty: at any."""
    task_patience_s: float
    patience_s: float
    """Of a commit."""
    sweepers: int
    sweep_gap_s: float
    ttl_ms: int
    finish_after_ms: int
    careless: bool
    """A driver goes on behind an epoch that was decided, though its commit failed: the next one has to finish it."""
    large_intents: bool
    """Every intent is in a ledger of its own."""

    @property
    def faults(self) -> tuple[str, ...]:
        return self.world.base.faults

    @property
    def settings(self) -> StagingSettings:
        base = self.world.base
        return StagingSettings(ensemble_size=base.ensemble, write_quorum=base.write, ack_quorum=base.ack)

    def summary(self) -> str:
        return (
            f"{self.world.summary()} jobs={self.jobs} epochs={self.epochs} executors={self.executors} "
            f"strike={self.strike} sweepers={self.sweepers} ttl={self.ttl_ms} ms"
        )


def draw(seed: int, override: Mapping[str, Any] | None = None, *, without: tuple[str, ...] = ()) -> StagingOptions:
    """The options of this seed. What is replaced does not change what else is drawn."""
    random = seeded(f"{seed}/staging options")
    own = tuple(fault for fault, chance in _OWN_FAULTS.items() if random.random() < chance)
    options = StagingOptions(
        world=_world(seed, own),
        jobs=random.choice((1, 1, 2)),
        epochs=random.choice((2, 3, 4)),
        executors=random.choice((1, 2, 3)),
        partitions_max=random.choice((1, 2, 4)),
        rows_max=random.choice((3, 8, 20)),
        strike=random.choice((0.05, 0.15, 0.3)),
        points=(),
        task_patience_s=random.choice((0.3, 1.0)),
        patience_s=random.choice((0.3, 1.0, 3.0)),
        sweepers=random.choice((1, 2)),
        sweep_gap_s=random.choice((0.05, 0.2, 0.5)),
        ttl_ms=random.choice((50, 300, TTL_MS, TTL_MS)),
        finish_after_ms=random.choice((0, 200, 3_600_000)),
        large_intents=random.random() < 0.2,
        careless=random.random() < 0.3,
    )
    return _replaced(options, override or {}, without)


def _world(seed: int, own: tuple[str, ...]) -> TopicOptions:
    world = topics.draw(seed)
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


def _replaced(options: StagingOptions, override: Mapping[str, Any], without: tuple[str, ...]) -> StagingOptions:
    known = frozenset(field.name for field in dataclasses.fields(StagingOptions))
    below = {name: value for name, value in override.items() if name not in known}
    own = {name: value for name, value in override.items() if name in known}
    world = topics.replaced(options.world, below, without)
    return dataclasses.replace(options, world=world, **own)
