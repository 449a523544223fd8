"""Options: what one seed's world of topics looks like, drawn from the seed alone.

Base:      bookies, network, disks and faults are drawn as for the seeds of ledgers (sim/ledgers/options.py).
Small:     few topics, few messages, ledgers of a few entries, patience near the network's delays.
Override:  any field by name, of this class or of its base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from magnetar.client import ClientOptions
from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import TopicDefaultsConfig
from magnetar.config.dispatch import DispatchConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.root import Config
from magnetar.config.topic import CursorConfig, TopicConfig
from magnetar.config.upkeep import UpkeepConfig
from magnetar.sim.ledgers import options as ledgers
from magnetar.sim.ledgers.options import FAULTS as LEDGER_FAULTS
from magnetar.sim.ledgers.options import chance, drawn, drawn_by, one_of
from magnetar.sim.seeds import seeded

FAULTS: Final = {
    **LEDGER_FAULTS,
    "client": "a broker, a producer or a consumer is killed",
    "broker": "a broker is killed; it starts again after a moment",
    "overtake": "a broker stands still while it opens a topic, and another one gets it",
    "leave": "a broker is stopped in order and killed meanwhile, and killed again while it loads its topics",
}
PORT: Final = 6650
KEY_SHARED: Final = "key_shared"
SUBSCRIPTIONS: Final = ("exclusive", "failover", "shared")
"""What most seeds choose from; some have KEY_SHARED in the place of one."""

_HOLDS_DURATION_S: Final = 1.5  # Shorter than others: they have a calm after it.


def _draw_topic(random: Random) -> dict[str, Any]:
    return {
        "ledger_entries_max": random.choice((3, 10, 1_000)),
        "ledger_minutes_min": 0,
        "ledger_retry_ms": 100,
        "ledger_wait_ms": random.choice((300, 2_000)),
        "appends_waiting_max": random.choice((4, 1_000)),
        "tail_cache_bytes_max": random.choice((0, 300, 2**20)),
        "ledgers_read_max": random.choice((1, 16)),
        "read_ahead_bytes": random.choice((0, 1_000)),
    }


def _draw_cursor(random: Random) -> dict[str, Any]:
    return {
        "mark_delete_interval_ms": random.choice((5, 50, 300)),
        "store_timeout_ms": random.choice((300, 2_000)),
        "ranges_in_metadata_max": random.choice((0, 1, 1_000)),
        "ranges_as_bitmaps": random.random() < 0.5,
        "ledger_entries_max": random.choice((4, 12, 1_000)),
    }


def _draw_broker(random: Random) -> dict[str, Any]:
    return {"deduplication_snapshot_entries": random.choice((1, 5, 1_000)), "deduplication_snapshot_s": 1}


def _draw_pulsar(random: Random) -> dict[str, Any]:
    return {
        "keep_alive_interval_ms": random.choice((100, 300)),
        "liveness_check_timeout_ms": random.choice((50, 200)),
        "pending_publishes_per_connection_max": random.choice((2, 1_000)),
    }


def _draw_upkeep(random: Random) -> dict[str, Any]:
    return {"topic_load_timeout_ms": random.choice((1_000, 4_000)), "close_timeout_ms": 3_000}


def _draw_dispatch(random: Random) -> dict[str, Any]:
    return {
        "read_entries_max": random.choice((1, 3, 500)),
        "round_robin_messages_max": random.choice((1, 20)),
        "read_retry_initial_ms": 20,
        "read_retry_max_ms": 200,
        "read_timeout_ms": 500,
        "failover_delay_ms": random.choice((0, 50)),
    }


def _draw_client(random: Random) -> dict[str, Any]:
    return {
        "connect_timeout_s": random.choice((0.1, 0.4)),
        "request_timeout_s": random.choice((0.5, 2.0)),
        "open_timeout_s": 3.0,
        "reconnect_timeout_s": random.choice((1.0, 5.0)),
        "backoff_first_s": 0.005,
        "backoff_longest_s": 0.2,
        "keep_alive_s": random.choice((0.1, 0.3)),
        "redirects_max": 4,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    base: ledgers.Options
    brokers: int = one_of(2, 2, 3)
    topics: int = one_of(1, 1, 2)
    producers: int = one_of(1, 2)
    """Of each topic."""
    subscriptions: tuple[str, ...]
    """Of each topic; the name says which type."""
    consumers: int = one_of(1, 2)
    """Of each subscription; of an exclusive one they try one after the other."""
    batching: bool = chance(0.4)
    burst_max: int = one_of(1, 2, 4)
    think_s: float = one_of(0.1, 0.2, 0.4)
    rewind: float = one_of(0.0, 0.3)
    """How likely it is that a producer begins again before what it knows to be stored."""
    queue_max: int = one_of(1, 4, 100)
    """Messages that a consumer lets come ahead."""
    informed: float = one_of(0.2, 0.8)
    """How likely it is that an old owner is told soon that it is one."""
    topic: Mapping[str, Any] = drawn_by(_draw_topic)
    cursor: Mapping[str, Any] = drawn_by(_draw_cursor)
    broker: Mapping[str, Any] = drawn_by(_draw_broker)
    dispatch: Mapping[str, Any] = drawn_by(_draw_dispatch)
    pulsar: Mapping[str, Any] = drawn_by(_draw_pulsar)
    upkeep: Mapping[str, Any] = drawn_by(_draw_upkeep)
    client: Mapping[str, Any] = drawn_by(_draw_client)
    send_timeout_s: float = one_of(0.5, 2.0, 10.0)
    batch_max: int = 3
    """Messages of a batch."""
    keys: int = 0
    """Keys that messages have; 0: none."""
    holds: bool = False
    """Consumers keep some messages before they acknowledge them; what is unacknowledged has small limits."""
    compacts: bool = False
    """The operator has topics compacted, and their compacted views are read at the end."""
    trims: bool = False
    """Ledgers that every subscription has acknowledged are deleted."""
    delays: float = 0.0
    """How likely it is that a message asks to be delivered later."""

    def broker_config(self, name: str) -> Config:
        base, keeps = self.base, 0 if self.trims else -1
        return dataclasses.replace(
            base.client_config(),
            broker=BrokerConfig(deduplication=True, topic_policies=False, inactive_topics_delete=False, **self.broker),
            defaults=TopicDefaultsConfig(retention_minutes=keeps, retention_mb=keeps),
            dispatch=DispatchConfig(**self.dispatch),
            topic=TopicConfig(ensemble_size=base.ensemble, write_quorum=base.write, ack_quorum=base.ack, **self.topic),
            cursor=CursorConfig(**self.cursor),
            pulsar=PulsarConfig(port=PORT, advertised_host=name, **self.pulsar, **self._hostile_limits()),
            upkeep=UpkeepConfig(**self.upkeep),
        )

    def _hostile_limits(self) -> dict[str, Any]:
        return ledgers.draw_hostile_limits(self.base.seed) if "hostile" in self.base.faults else {}

    def client_options(self) -> ClientOptions:
        return ClientOptions(**self.client)

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(f"broker-{number}:{PORT}" for number in range(self.brokers))

    @property
    def topic_names(self) -> list[str]:
        return [f"persistent://public/default/topic-{number}" for number in range(self.topics)]

    def summary(self) -> str:
        base = self.base
        return (
            f"E={base.ensemble} Qw={base.write} Qa={base.ack} bookies={base.bookies} brokers={self.brokers} "
            f"topics={self.topics} producers={self.producers} subscriptions={','.join(self.subscriptions)} "
            f"consumers={self.consumers} batching={self.batching} keys={self.keys} holds={self.holds} "
            f"compacts={self.compacts} faults={','.join(base.faults) or 'none'}"
        )


def draw(seed: int, override: Mapping[str, Any] | None = None, *, without: tuple[str, ...] = ()) -> TopicOptions:
    """The options of this seed. What is replaced does not change the rest of what is drawn."""
    return ledgers.replaced(_with_dispatch(seed, draw_plain(seed)), override or {}, without)


def draw_plain(seed: int) -> TopicOptions:
    """Without what makes dispatch difficult."""
    random = seeded(f"{seed}/topic options")
    base = ledgers.draw(seed, without=("ruin",))  # What is lost in a ruin, a topic cannot have.
    faults = base.faults if random.random() < 0.7 else (*base.faults, "broker")
    if seeded(f"{seed}/overtake").random() < 0.3:
        faults = (*faults, "overtake")
    if seeded(f"{seed}/leave").random() < 0.25:
        faults = (*faults, "leave")
    base = dataclasses.replace(base, faults=faults, deletes=False, topics=0, clients=0)
    return drawn(
        TopicOptions,
        random,
        base=base,
        subscriptions=lambda: tuple(sorted(random.sample(SUBSCRIPTIONS, random.choice((1, 1, 2))))),
    )


def _with_dispatch(seed: int, options: TopicOptions) -> TopicOptions:
    """What makes dispatch difficult, in some seeds: keys, small limits, consumers that hold what they got."""
    random = seeded(f"{seed}/dispatch")
    if random.random() < 0.6:
        return options
    subscriptions = options.subscriptions
    if random.random() < 0.6:
        subscriptions = tuple(sorted({KEY_SHARED, *subscriptions[1:]}))
    limits = {
        "unacked_messages_per_consumer_max": random.choice((0, 3, 8)),
        "unacked_messages_per_subscription_max": random.choice((0, 5, 16)),
        "key_shared_look_ahead_per_consumer": random.choice((3, 2_000)),
    }
    return dataclasses.replace(
        options,
        base=dataclasses.replace(options.base, duration_s=_HOLDS_DURATION_S),
        think_s=max(options.think_s, 0.2),
        subscriptions=subscriptions,
        dispatch={**options.dispatch, **limits},
        burst_max=random.choice((2, 8)),
        batch_max=random.choice((3, 8)),
        keys=random.choice((2, 5)),
        holds=True,
        compacts=random.random() < 0.5,
    )
