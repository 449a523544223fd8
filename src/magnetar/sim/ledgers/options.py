"""Options: what one seed's world looks like, drawn from the seed alone.

- swarm: most seeds have two or three classes of faults, and their own rates. All at once would hide each other: a
  cluster that is always down loses nothing.
- small: few bookies, few entries, short times. E > Qw and E = Qw, with and without spare bookies.
- buggify: production's constants shrink: caches of a few KiB, files of a few KiB, time-outs near the network's delays.
- streams: what came later is drawn from a generator of its own (`_TIGHT`, `_LATER_FAULTS`, `in_line`), so that old
  seeds keep everything else.
- override: any field by name (`LEDGERS.run(17, {"duration_s": 1.0})`); `without` takes classes of faults away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar, cast

from magnetar.config.bookie import NO_HTTP, BookieConfig
from magnetar.config.ledger import LedgerConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.recovery import RecoveryConfig
from magnetar.config.root import Config
from magnetar.config.storage import JournalConfig, StorageConfig
from magnetar.sim.device import DiskTiming
from magnetar.sim.network import LinkDelay
from magnetar.sim.seeds import Delay, seeded

T = TypeVar("T")

SIZES: Final = ((2, 2, 1), (2, 2, 2), (3, 3, 2), (4, 3, 2), (5, 3, 3), (5, 4, 2))

FAULTS: Final = {
    "kill": "a bookie's process is killed; its machine goes on",
    "power": "a bookie's machine loses power",
    "blackout": "most bookies lose power at once",
    "pause": "a process stands still, bookie or client, for up to twice the session's timeout",
    "client": "a client's process is killed",
    "part": "links are blocked: one way, two ways, one host alone, a split",
    "reset": "connections break, and lose what is on its way",
    "slow": "the network is slow now and then, by far",
    "stall": "a disk stands still for a while",
    "disk": "a disk refuses: EIO on write, read and sync, no room",
    "rot": "a disk lies: bit flips, sectors that cannot be read, writes to the wrong place",
    "loss": "a disk is empty after a restart",
    "meta": "the metadata's connection breaks, its answers get lost, its sessions expire, it is slow",
    "clock": "wall clocks are wrong, drift and jump",
    "drill": "the fail-over drill: see nemesis.py",
    "fates": "during a take-over each link has its own fate",
    "cpu": "a process, bookie or client, gets the processor only now and then for a while",
    "ruin": "entry logs of any bookies are damaged, of more of them than is promised: then nothing is denied",
    "stop": "a bookie is stopped in order and killed meanwhile, killed again in its start, and loses power later",
    "hostile": "a client sends garbage, frames that never end and floods, and does not read its answers",
}
"""Every class of faults, by the name that `--without` knows."""
_LATER_FAULTS: Final = {"cpu": 0.15, "stop": 0.2, "ruin": 0.05, "hostile": 0.25}
"""Those that seeds have with this probability, beside what they have drawn."""

_HEALED_SEEDS: Final = 0.3  # The share of seeds with auto-recovery.
_WEIGHTS: Final = {"drill": 3, "power": 2, "part": 2, "fates": 2, "kill": 2, "pause": 2, "blackout": 2}


def drawn_by(draw: Callable[[Random], T]) -> T:
    """The value of a field of options, unless `drawn` is given another one."""
    declared: Any = dataclasses.field(metadata={"draw": draw})
    return cast("T", declared)


def one_of(*values: T) -> T:
    return drawn_by(lambda random: random.choice(values))


def chance(probability: float) -> bool:
    return drawn_by(lambda random: random.random() < probability)


def drawn(kind: Callable[..., T], random: Random, **given: Any) -> T:
    """Fields are drawn in the order in which they are declared. `given`: a value, or a function that draws it then."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cast("Any", kind)):
        if field.name in given:
            value = given[field.name]
            values[field.name] = value() if callable(value) else value
        elif "draw" in field.metadata:
            values[field.name] = field.metadata["draw"](random)
    return kind(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int
    ensemble: int
    write: int
    ack: int
    bookies: int
    clients: int = one_of(2, 3, 3, 4)
    topics: int = one_of(1, 1, 2, 2, 3)
    journals: int = one_of(1, 1, 1, 2)
    ledger_dirs: int = one_of(1, 1, 2)
    faults: tuple[str, ...]
    fault_gap_s: float = one_of(0.15, 0.3, 0.6)
    """Mean time between two faults of one class."""
    takeover_gap_s: float = one_of(0.1, 0.2, 0.4)
    """Mean time between two take-overs of one topic."""
    duration_s: float = one_of(2.0, 3.0, 3.0)
    victims: int
    """How many bookies may lose data, or stay away forever: fewer than Qa, so that nothing is lost that counts."""
    heal_all: bool = chance(0.6)
    """Otherwise the victims stay away for good when everything else is healed."""
    deletes: bool = chance(0.4)
    burst_max: int = one_of(1, 2, 6)
    payload_max: int = one_of(16, 100, 600)
    think_s: float = one_of(0.03, 0.1, 0.1)
    """How long a writer waits between two bursts, at most."""
    in_line: bool
    """Writers call `add`, which waits in line while there is no room; otherwise they submit when there is some."""
    sticky_reads: bool
    shuffle: float = one_of(0.0, 0.0, 0.05, 0.2)
    delay: LinkDelay
    disk_timing: DiskTiming
    session_timeout_ms: int = one_of(300, 600, 1_000)
    bookie: Mapping[str, Any]
    """Settings of bookies by section, as `Config` has them."""
    ledger: Mapping[str, Any]
    """Settings of clients, as `LedgerConfig` has them."""
    repairs: bool = chance(0.7)
    """Whether an operator repairs a victim that refuses to start; otherwise it stays away."""
    ledgers_in_memory: int = one_of(10, 10, 1_000)
    """`bookie.ledgers_in_memory_max`: far below what it may be set to, and what one read of a socket can name."""
    healers: int = 0
    """How many processes run auto-recovery."""
    recovery: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Their settings, as `RecoveryConfig` has them."""

    @property
    def base(self) -> Options:
        return self

    def bookie_config(self, name: str) -> Config:
        return Config(
            metadata=self._metadata(),
            journal=JournalConfig(**self.bookie["journal"]),
            storage=StorageConfig(**self.bookie["storage"]),
            bookie=BookieConfig(
                journal_dirs=",".join(journal_dirs(self.journals)),
                ledger_dirs=",".join(ledger_dirs(self.ledger_dirs)),
                advertised_host=name,
                port=PORT,
                http_port=NO_HTTP,
                **self.bookie["bookie"],
            ),
        )

    def client_config(self) -> Config:
        ledger = LedgerConfig(**{"sticky_reads": self.sticky_reads, **self.ledger})
        return Config(metadata=self._metadata(), ledger=ledger)

    def auditor_config(self) -> Config:
        """Returns the configuration of a patient client: what it cannot read does not exist."""
        return Config(metadata=self._metadata(), ledger=LedgerConfig(**_PATIENT))

    def healer_config(self) -> Config:
        ledger = LedgerConfig(**{**_PATIENT, **self.ledger})
        return Config(metadata=self._metadata(), ledger=ledger, recovery=RecoveryConfig(**self.recovery))

    def _metadata(self) -> MetadataConfig:
        return MetadataConfig(
            url="memory:", session_timeout_ms=self.session_timeout_ms, operation_timeout_ms=2 * self.session_timeout_ms
        )

    def summary(self) -> str:
        return (
            f"E={self.ensemble} Qw={self.write} Qa={self.ack} bookies={self.bookies} clients={self.clients} "
            f"topics={self.topics} healers={self.healers} faults={','.join(self.faults) or 'none'}"
        )


PORT: Final = 3181
_HEALER: Final = "healer-"


def is_healer(node: str) -> bool:
    """Reports whether a node of this name runs auto-recovery."""
    return node.startswith(_HEALER)


_PATIENT: Final[dict[str, Any]] = {
    "connect_timeout_ms": 1_000,
    "reconnect_backoff_ms": 10,
    "reconnect_backoff_max_ms": 200,
    "add_timeout_ms": 2_000,
    "read_timeout_ms": 2_000,
    "read_entries_max": 50,
    "recovery_timeout_ms": 20_000,
    "replacement_wait_ms": 5_000,
}

_TIGHT: Final[dict[str, tuple[Any, ...]]] = {
    "adds_behind_max": (1, 5),
    "channel_unsent_bytes_max": (1, 2_000),
    "add_bytes_in_flight_max": (1, 1_000),
    "requests_in_flight_max": (50, 200),
    "batch_reads": (False,),
}
"""Limits of clients that are at production's value in most seeds, and at one of these in some."""
TIGHT_BOOKIE: Final[dict[str, tuple[Any, ...]]] = {
    "adds_in_progress_max": (1, 5),
    "reads_in_progress_max": (1, 5),
    "pending_adds_per_writer_max": (1, 5),
    "pending_adds_per_writer_wait_ms": (0, 20),
    "pending_reads_per_reader_max": (1, 5),
    "unwritable_wait_ms": (0, 20),
}
"""Limits of bookies, likewise."""
HOSTILE_LIMITS: Final[dict[str, tuple[int, ...]]] = {"receive_bytes_max": (2**16, 2**18), "frame_timeout_ms": (50, 300)}
"""Limits of servers in worlds with hostile clients: small enough to be met there."""


_PARTS: Final = ("world", "base")
"""Fields of options that are made of others."""


def journal_dirs(count: int) -> list[str]:
    return [f"/journal{number}" for number in range(count)]


def ledger_dirs(count: int) -> list[str]:
    return [f"/ledgers{number}" for number in range(count)]


def draw(seed: int, override: Mapping[str, Any] | None = None, *, without: tuple[str, ...] = ()) -> Options:
    """The options of this seed. What is replaced does not change the rest of what is drawn."""
    random = seeded(f"{seed}/options")
    ensemble, write, ack = random.choice(SIZES)
    options = drawn(
        Options,
        random,
        seed=seed,
        ensemble=ensemble,
        write=write,
        ack=ack,
        bookies=lambda: ensemble + random.choice((0, 1, 1, 2, 2, 3)),
        faults=lambda: _compatible(_draw_faults(random) + _draw_later_faults(seed)),
        victims=lambda: random.randint(0, ack - 1),
        in_line=seeded(f"{seed}/in_line").random() < 0.3,
        sticky_reads=lambda: random.random() >= 0.3,
        delay=lambda: LinkDelay(tail=random.choice((0.0, 0.01, 0.03)), tail_max_s=random.choice((0.05, 0.3))),
        disk_timing=lambda: DiskTiming(
            operation=Delay(0.000_01, random.choice((0.000_05, 0.000_5))),
            sync=Delay(0.000_1, random.choice((0.000_5, 0.003, 0.01))),
        ),
        bookie=lambda: _with_tight_limits(seed, _draw_bookie(random)),
        ledger=lambda: _draw_ledger(random) | _draw_tight(seed, _TIGHT),
        **_draw_healing(seed),
    )
    options = replaced(options, override or {}, without)
    if "hostile" not in options.faults:
        return options
    bookie = {**options.bookie["bookie"], **draw_hostile_limits(seed)}
    return dataclasses.replace(options, bookie={**options.bookie, "bookie": bookie})


def replaced(options: T, override: Mapping[str, Any], without: Collection[str] = ()) -> T:
    """Some fields by name: of these options, or of those that they are made of. `without` takes faults away."""
    given: Any = options
    known = {field.name for field in dataclasses.fields(given)}
    own = {name: value for name, value in override.items() if name in known}
    below = {name: value for name, value in override.items() if name not in known}
    if part := next((name for name in _PARTS if name in known), None):
        own[part] = replaced(own.get(part, getattr(given, part)), below, without)
    else:
        own |= below  # Nothing, or names that no options have: `replace` refuses them.
        own["faults"] = tuple(fault for fault in own.get("faults", given.faults) if fault not in without)
    return cast("T", dataclasses.replace(given, **own))


def draw_hostile_limits(seed: int) -> dict[str, int]:
    random = seeded(f"{seed}/hostile limits")
    return {name: random.choice(values) for name, values in HOSTILE_LIMITS.items()}


def _draw_faults(random: Random) -> tuple[str, ...]:
    """Two or three in most seeds; none, or many, in some."""
    count = random.choice((0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 6))
    names = [name for name in FAULTS if name not in _LATER_FAULTS]
    weights = [_WEIGHTS.get(name, 1) for name in names]
    chosen: list[str] = []
    while len(chosen) < count:
        name = random.choices(names, weights)[0]
        if name not in chosen:
            chosen.append(name)
    return tuple(name for name in names if name in chosen)


def _draw_later_faults(seed: int) -> tuple[str, ...]:
    return tuple(name for name, chance in _LATER_FAULTS.items() if seeded(f"{seed}/{name}").random() < chance)


def _compatible(faults: tuple[str, ...]) -> tuple[str, ...]:
    """A bookie that lost a disk may deny what was on it, and be repaired so; in a ruin none may deny anything."""
    return tuple(name for name in faults if "ruin" not in faults or name not in ("rot", "loss"))


def _draw_bookie(random: Random) -> dict[str, Any]:
    tiny = random.random() < 0.6
    interval_ms = random.choice((100, 300, 800))
    gc_ms = random.choice((250, 500, 1_000))
    return {
        "journal": {
            "file_bytes_max": random.choice((4_096, 8_192)) if tiny else 64 * 1024,
            "group_bytes_max": random.choice((1, 1_024, 4_096)),
            "preallocated_bytes": random.choice((0, 0, 2_048)),
            "spare_files_max": random.choice((0, 1, 2)),
        },
        "storage": {
            "write_cache_bytes_max": random.choice((4_096, 8_192)) if tiny else 256 * 1024,
            "read_cache_bytes_max": random.choice((0, 4_096, 64 * 1024)),
            "read_ahead_bytes": random.choice((0, 1_024)),
            "read_ahead_bytes_max": random.choice((0, 4_096)),
            "block_bytes": random.choice((64, 512, 2_048)),
            "log_bytes_max": random.choice((4_096, 8_192, 64 * 1024)),
            "open_logs_max": random.choice((1, 4, 16)),
            "flush_interval_ms": interval_ms,
            "max_throttle_ms": random.choice((20, 200)),
            "index_reserve_bytes": 0,
            "gc_interval_ms": gc_ms,
            "minor_compaction_interval_ms": gc_ms * 2,
            "major_compaction_interval_ms": gc_ms * 4,
            "minor_compaction_threshold_percent": 50,
            "major_compaction_threshold_percent": 99,
        },
        "bookie": {
            "disk_reserve_compaction_bytes": 0,
            "disk_reserve_high_priority_bytes": 0,
            "disk_check_interval_ms": random.choice((100, 1_000)),
        },
    }


def _draw_ledger(random: Random) -> dict[str, Any]:
    return {
        "connect_timeout_ms": random.choice((20, 100, 300)),
        "reconnect_backoff_ms": random.choice((5, 20)),
        "reconnect_backoff_max_ms": random.choice((50, 200)),
        "adds_in_flight_max": random.choice((2, 20, 1_000)),
        "add_timeout_ms": random.choice((20, 60, 200)),
        "slow_bookie_wait_ms": random.choice((50, 200)),
        "add_quorum_timeout_ms": random.choice((300, 1_000)),
        "delay_ensemble_change": random.random() < 0.25,
        "ensemble_changes_max": random.choice((3, 3, 20)),
        "replacement_wait_ms": random.choice((0, 100, 400)),
        "explicit_lac_interval_ms": random.choice((0, 0, 20)),
        "read_timeout_ms": random.choice((30, 100, 300)),
        "read_entries_max": random.choice((1, 10, 20)),
        "read_batch_bytes_max": random.choice((200, 2_000)),
        "speculative_read_max_ms": 40,
        "tail_long_poll": random.random() < 0.8,
        "long_poll_ms": random.choice((50, 300)),
        "tail_poll_interval_ms": 50,
        "recovery_reads_in_flight_max": random.choice((1, 8)),
        "recovery_timeout_ms": random.choice((500, 2_000)),
    }


def _draw_healing(seed: int) -> dict[str, Any]:
    """A generator of its own: what else a seed draws does not depend on it."""
    random = seeded(f"{seed}/healing")
    if random.random() >= _HEALED_SEEDS:
        return {"healers": 0, "recovery": {}}
    return {
        "healers": random.choice((1, 2, 2, 3)),
        "recovery": {
            "lost_bookies_max_percent": random.choice((50, 100)),
            "ledgers_at_once": random.choice((1, 4)),
            "chunks_in_flight_max": random.choice((1, 3)),
            "chunk_bytes_max": random.choice((1, 500, 5_000)),
            "open_ledger_grace_ms": random.choice((0, 50, 300)),
            "retry_ms": random.choice((50, 200)),
            "verify_all_entries": True,
        },
    }


def _with_tight_limits(seed: int, sections: dict[str, Any]) -> dict[str, Any]:
    return {**sections, "bookie": {**sections["bookie"], **_draw_tight(seed, TIGHT_BOOKIE)}}


def _draw_tight(seed: int, limits: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    tight: dict[str, Any] = {}
    for name, values in limits.items():
        random = seeded(f"{seed}/{name}")
        if random.random() < 0.3:
            tight[name] = random.choice(values)
    return tight
