"""Placement: which broker serves a bundle, and which bundles move, split or merge. Pure decisions of the leader.

Purpose:   `choose` answers lookups for a bundle without an owner. `Balancer.decide` is called once a round with the
           loads of all brokers, and returns what should change.
Order:     A broker that takes more than its share gives one bundle to the broker with the smallest load, and only if
           that makes the larger of the two loads smaller. So a move never only swaps the roles, and rounds come to an
           end when nothing better is left. A bundle that has moved stays for a while.
Invariant: A round returns at most one change for a namespace, and at most one move from or to a broker. The next round
           sees its effect.
Limits:    Rates are averages over some samples: a short burst moves nothing.
Read next: isolation.py, load_manager.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.names import NamespaceName
from magnetar.words import counted

_OVERLOADED: Final = 0.85
"""A broker whose busiest resource is used more than this gets no bundles while another one can take them."""
_RATE_PER_BYTE: Final = 1 / 1024
"""What a byte costs beside a message: a KiB as much as the message that it is in."""
_MISPLACED_MAX: Final = 100
"""Bundles that may move in one round because a rule was changed: enough, and not all clients at once."""
_MERGE_SHARE: Final = 0.1
"""Neighbours merge when both together are within this share of what one bundle may have."""


@dataclass(frozen=True, slots=True)
class BundleLoad:
    messages_per_s: float = 0.0
    """In and out."""
    bytes_per_s: float = 0.0
    topics: int = 0
    sessions: int = 0
    """Producers and consumers."""

    @property
    def weight(self) -> float:
        return self.messages_per_s + self.bytes_per_s * _RATE_PER_BYTE

    def __add__(self, other: BundleLoad) -> BundleLoad:
        return BundleLoad(
            self.messages_per_s + other.messages_per_s,
            self.bytes_per_s + other.bytes_per_s,
            self.topics + other.topics,
            self.sessions + other.sessions,
        )


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    usage: float
    """How much of its busiest resource is used; 1 is all of it."""
    bundles: Mapping[NamespaceBundle, BundleLoad] = field(default_factory=dict)
    """Must not change: their weight is computed once."""
    weight: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", sum(load.weight for load in self.bundles.values()))

    @property
    def is_overloaded(self) -> bool:
        return self.usage > _OVERLOADED


Brokers: TypeAlias = Mapping[str, BrokerLoad]
"""Broker id → its load."""
Allowed: TypeAlias = Callable[[NamespaceBundle], Sequence[str]]
"""Returns the brokers that may serve a bundle."""
BundleCounts: TypeAlias = Callable[[NamespaceName], tuple[int, int]]
"""Returns how many bundles a namespace has now, and how many it was created with. It merges none below that."""


def choose(allowed: Iterable[str], brokers: Brokers, promised: Mapping[str, BrokerLoad], random: Random) -> str | None:
    """Returns the broker with the smallest load, or None if none is allowed. `promised` has the bundles that brokers
    were chosen for since they reported their loads."""

    def cost(broker: str) -> tuple[bool, float, int]:
        known, more = brokers.get(broker, _UNKNOWN), promised.get(broker, _UNKNOWN)
        return known.is_overloaded, known.weight + more.weight, len(known.bundles) + len(more.bundles)

    costs = {broker: cost(broker) for broker in allowed}
    cheapest = [broker for broker, each in costs.items() if each == min(costs.values())]
    return random.choice(cheapest) if cheapest else None


_UNKNOWN = BrokerLoad(0.0)


# --- what should change -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    bundle: NamespaceBundle
    source: str
    destination: str
    why: str


@dataclass(frozen=True, slots=True)
class Split:
    bundle: NamespaceBundle
    owner: str
    why: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Joins a bundle and the next one, both of which one broker serves."""

    bundle: NamespaceBundle
    next: NamespaceBundle
    owner: str


Change: TypeAlias = Move | Split | Merge


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceLimits:
    excess_begin: float
    """A broker begins to shed when its load is above the average by this share of the average."""
    excess_end: float
    """A broker that sheds stops below this share."""
    weight_min: float
    """A difference of loads below this is not worth a move."""
    rest_s: float
    """A bundle that has moved stays at least this long."""
    topics_max: int
    sessions_max: int
    messages_per_s_max: float
    bytes_per_s_max: float
    bundles_max: int
    """A namespace with this many bundles is not split further."""
    moves: bool
    splits: bool
    merges: bool

    def exceeded_by(self, load: BundleLoad) -> str:
        """Names the limit of one bundle that the load exceeds; empty if none."""
        if load.topics > self.topics_max:
            return f"{counted(load.topics, 'topic')}, {self.topics_max:,} allowed"
        if load.sessions > self.sessions_max:
            sessions = counted(load.sessions, "producer or consumer", "producers and consumers")
            return f"{sessions}, {self.sessions_max:,} allowed"
        if load.messages_per_s > self.messages_per_s_max:
            return f"{load.messages_per_s:.0f} messages/s, {self.messages_per_s_max:.0f} allowed"
        if load.bytes_per_s > self.bytes_per_s_max:
            return f"{load.bytes_per_s:.0f} bytes/s, {self.bytes_per_s_max:.0f} allowed"
        return ""

    def is_small(self, load: BundleLoad) -> bool:
        """Whether a bundle with this load could grow tenfold without a split."""
        times = 1 / _MERGE_SHARE
        return not self.exceeded_by(
            BundleLoad(
                load.messages_per_s * times,
                load.bytes_per_s * times,
                round(load.topics * times),
                round(load.sessions * times),
            )
        )


def misplaced(brokers: Brokers, is_misplaced: Callable[[NamespaceBundle, str], bool], allowed: Allowed) -> list[Move]:
    """Returns moves of bundles that their brokers may not serve any more, to those with the smallest load. They come
    before what a balancer decides, and do not wait for the bundle's rest."""
    costs = {broker: (load.weight, len(load.bundles)) for broker, load in brokers.items()}
    moves: list[Move] = []
    for source, broker in brokers.items():
        for bundle, load in broker.bundles.items():
            if not is_misplaced(bundle, source):
                continue
            targets = [target for target in allowed(bundle) if target in costs and target != source]
            if targets and len(moves) < _MISPLACED_MAX:
                target = min(targets, key=lambda each: (costs[each], each))
                costs[target] = costs[target][0] + load.weight, costs[target][1] + 1
                moves.append(Move(bundle, source, target, f"the rules of the cluster do not allow {source}"))
    return moves


class Balancer:
    """The leader's memory between rounds: which brokers shed, and which bundles have just moved."""

    def __init__(self, limits: BalanceLimits) -> None:
        self._limits = limits
        self._shedding: set[str] = set()
        self._moved_s: dict[NamespaceBundle, float] = {}

    def decide(self, brokers: Brokers, allowed: Allowed, counts: BundleCounts, now_s: float) -> list[Change]:
        """Returns the changes of this round."""
        self._forget(brokers, now_s)
        changes: dict[NamespaceName, Change] = {}
        found: list[Change] = [
            *self._splits(brokers, counts),
            *self._moves(brokers, allowed),
            *self._merges(brokers, counts),
        ]
        for change in found:
            changes.setdefault(change.bundle.namespace, change)
        for change in changes.values():
            if isinstance(change, Move):
                self._moved_s[change.bundle] = now_s
        return list(changes.values())

    def _forget(self, brokers: Brokers, now_s: float) -> None:
        self._shedding &= set(brokers)
        self._moved_s = {
            bundle: moved_s for bundle, moved_s in self._moved_s.items() if now_s - moved_s < self._limits.rest_s
        }

    # --- moves --------------------------------------------------------------------------------------------------------

    def _moves(self, brokers: Brokers, allowed: Allowed) -> list[Move]:
        if not self._limits.moves or len(brokers) < 2:
            return []
        average = sum(load.weight for load in brokers.values()) / len(brokers)
        self._update_shedding(brokers, average)
        free = set(brokers) - self._shedding
        moves = []
        for source in sorted(self._shedding, key=lambda broker: -brokers[broker].weight):
            move = self._best_move(source, brokers, free, allowed)
            if move is not None:
                free.discard(move.destination)
                moves.append(move)
        return moves

    def _update_shedding(self, brokers: Brokers, average: float) -> None:
        """Between the two limits a broker continues with what it did, so that it does not start and stop all the
        time."""
        for broker, load in brokers.items():
            share = self._limits.excess_end if broker in self._shedding else self._limits.excess_begin
            excess = load.weight - average
            is_above = excess > share * average and excess > self._limits.weight_min
            if is_above or (load.is_overloaded and load.weight > average):
                self._shedding.add(broker)
            else:
                self._shedding.discard(broker)

    def _best_move(self, source: str, brokers: Brokers, free: set[str], allowed: Allowed) -> Move | None:
        """Returns the move that makes the larger load of the two brokers as small as possible; None if none makes it
        smaller."""
        best: tuple[float, Move] | None = None
        before = brokers[source].weight
        for bundle, load in brokers[source].bundles.items():
            if bundle in self._moved_s or not load.weight:
                continue
            targets = [broker for broker in allowed(bundle) if broker in free and not brokers[broker].is_overloaded]
            if not targets:
                continue
            target = min(targets, key=lambda broker: (brokers[broker].weight, broker))
            after = max(before - load.weight, brokers[target].weight + load.weight)
            if after < before and (best is None or after < best[0]):
                why = f"{source} has a load of {before:.0f}, and {target} of {brokers[target].weight:.0f}"
                best = after, Move(bundle, source, target, why)
        return None if best is None else best[1]

    # --- splits and merges --------------------------------------------------------------------------------------------

    def _splits(self, brokers: Brokers, counts: BundleCounts) -> list[Split]:
        if not self._limits.splits:
            return []
        return [
            Split(bundle, owner, why)
            for owner, broker in brokers.items()
            for bundle, load in broker.bundles.items()
            if load.topics > 1  # A single topic cannot be divided.
            and (why := self._limits.exceeded_by(load))
            and counts(bundle.namespace)[0] < self._limits.bundles_max
        ]

    def _merges(self, brokers: Brokers, counts: BundleCounts) -> list[Merge]:
        if not self._limits.merges:
            return []

        def is_divided(namespace: NamespaceName) -> bool:
            now, at_first = counts(namespace)
            return now > at_first

        return [
            Merge(bundle, neighbour, owner)
            for owner, broker in brokers.items()
            for bundle, neighbour in _neighbours(broker.bundles)
            if self._limits.is_small(broker.bundles[bundle] + broker.bundles[neighbour])
            and not {bundle, neighbour} & self._moved_s.keys()
            and is_divided(bundle.namespace)
        ]


def _neighbours(bundles: Iterable[NamespaceBundle]) -> Iterator[tuple[NamespaceBundle, NamespaceBundle]]:
    """Yields each bundle of which one ends where another begins. The bundles between two that are served may have no
    owner, and are not known here."""
    begins = {(each.namespace, each.bundle.first): each for each in bundles}
    for (namespace, _), each in begins.items():
        neighbour = begins.get((namespace, each.bundle.last))
        if neighbour is not None:
            yield each, neighbour
