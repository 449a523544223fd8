"""Options: what one seed's world of bundles looks like, drawn from the seed alone.

Topics:    brokers, bookies, network and faults are drawn as for the seeds of topics. There are more topics, and fewer
           clients of each.
Paths:     what topics can do besides carrying messages is drawn here: trimming or compaction, delayed messages, keys.
Balance:   in some seeds the leader moves and splits bundles. The load of a topic is drawn, and is not measured: a
           steady load is what convergence is about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from magnetar.config.balance import BalanceConfig
from magnetar.config.root import Config
from magnetar.sim.ledgers.options import Options, chance, drawn, drawn_by, one_of, replaced
from magnetar.sim.seeds import seeded
from magnetar.sim.topics import options as topics
from magnetar.sim.topics.options import KEY_SHARED, TopicOptions

FAULTS: Final = {
    **topics.FAULTS,
    "session": "a broker's session ends: at once, while it cannot be reached, or while it stands still",
}
NAMESPACE: Final = "public/default"
_OWN_FAULTS: Final = {"session": 0.7, "meta": 0.4, "leave": 0.3}
_TYPES: Final = (*topics.SUBSCRIPTIONS, KEY_SHARED)
_BUNDLES_MAX: Final = 8
_DURATION_S_MAX: Final = 2.0


def _draw_weights(random: Random) -> tuple[int, ...]:
    return tuple(random.choice((5, 20, 50, 200)) for _ in range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    world: TopicOptions
    bundles: int = one_of(1, 2, 4)
    """Of the namespace, in the beginning."""
    session_expired_policy: str = one_of("reconnect", "reconnect", "shutdown")
    topic_policies: bool = chance(0.3)
    balances: bool = chance(0.4)
    """The leader moves and splits bundles."""
    bundle_topics_max: int = one_of(1, 2, 1_000)
    """A bundle with more topics is split, if the leader balances."""
    weights: tuple[int, ...] = drawn_by(_draw_weights)
    """Of each topic: its messages per second, as brokers report them."""
    command_gap_s: float = one_of(0.1, 0.2, 0.4)
    """Mean time between two requests of the operator."""

    @property
    def base(self) -> Options:
        return self.world.base

    def broker_config(self, name: str) -> Config:
        config = self.world.broker_config(name)
        broker = dataclasses.replace(
            config.broker,
            namespace_bundles=self.bundles,
            session_expired_policy=self.session_expired_policy,
            topic_policies=self.topic_policies,
            topic_policies_timeout_s=4,
        )
        return dataclasses.replace(
            config,
            broker=broker,
            balance=self._balance(),
            upkeep=dataclasses.replace(config.upkeep, retention_check_s=1),
        )

    def _balance(self) -> BalanceConfig:
        return BalanceConfig(
            report_interval_s=1,
            round_interval_s=1,
            rest_minutes=0,  # Two limits alone have to keep bundles where they are.
            difference_min=1,
            shedding=self.balances,
            splitting=self.balances,
            bundle_topics_max=self.bundle_topics_max,
            namespace_bundles_max=_BUNDLES_MAX,
        )

    def summary(self) -> str:
        world = self.world
        return (
            f"{world.summary()} bundles={self.bundles} expired={self.session_expired_policy} balances={self.balances} "
            f"topic_policies={self.topic_policies} trims={world.trims} delays={world.delays}"
        )


def draw(seed: int, override: Mapping[str, Any] | None = None, *, without: tuple[str, ...] = ()) -> BundleOptions:
    """The options of this seed. What is replaced does not change the rest of what is drawn."""
    random = seeded(f"{seed}/bundle options")
    own = tuple(fault for fault, probability in _OWN_FAULTS.items() if random.random() < probability)
    options = drawn(BundleOptions, random, world=_world(seed, own))
    return replaced(options, override or {}, without)


def _world(seed: int, own: tuple[str, ...]) -> TopicOptions:
    world, random = topics.draw_plain(seed), seeded(f"{seed}/bundle topics")
    base = world.base
    faults = (*(fault for fault in base.faults if fault not in own), *own)
    subscriptions = tuple(sorted(random.sample(_TYPES, random.choice((1, 1, 2)))))
    upkeep = random.choice(("trims", "compacts", "neither"))
    delays = random.choice((0.0, 0.2))
    return dataclasses.replace(
        world,
        base=dataclasses.replace(base, faults=faults, duration_s=min(base.duration_s, _DURATION_S_MAX)),
        brokers=random.choice((2, 3, 3)),
        topics=random.choice((2, 3, 4)),
        producers=1,
        consumers=1,
        subscriptions=subscriptions,
        dispatch={**world.dispatch, "delayed_tick_ms": random.choice((10, 50))},
        think_s=max(world.think_s, 0.2),
        keys=random.choice((2, 5)) if upkeep == "compacts" or KEY_SHARED in subscriptions else 0,
        delays=delays if "clock" not in faults else 0.0,  # A clock a minute behind delays by a minute.
        trims=upkeep == "trims",
        compacts=upkeep == "compacts",
    )
