"""Placement: which bookies an ensemble is made of, and who comes in the place of one that failed.

Always:    E different bookies, all writable; nobody excluded; a replacement was not in the ensemble before.
Aside:     bookies in quarantine are used only if it does not work without them, no more of them than are missing where
           their number is what is missing; and the result names them.
Rules:     what a policy wants beyond that, it gets as far as the bookies allow; the result says how far.
Random:    every choice comes from the generator that is passed in.
Read next: random_placement.py, rack_aware.py, region_aware.py
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from magnetar.ids import BookieId
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.disk_weight import random_order
from magnetar.quorum.sizes import QuorumSizes
from magnetar.quorum.topology import Topology


class Adherence(enum.Enum):
    """How far an ensemble keeps the rules of a policy."""

    STRICT = "strict"
    SOFT = "soft"
    """What protects the entries is kept, something that is wished for is not."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Placement:
    ensemble: tuple[BookieId, ...]
    adherence: Adherence
    quarantined: tuple[BookieId, ...] = ()
    """Newly chosen ones that are in quarantine: there were too few others."""


@dataclass(frozen=True, slots=True)
class Vacancies:
    """An ensemble with open positions, and who may fill them."""

    sizes: QuorumSizes
    taken: tuple[BookieId | None, ...]
    """None: open."""
    left: tuple[BookieId | None, ...]
    """At an open position, who stood there before."""
    topology: Topology

    @property
    def open_positions(self) -> tuple[int, ...]:
        return tuple(position for position, bookie in enumerate(self.taken) if bookie is None)


class PlacementPolicy(ABC):
    """Has no state but its generator: what changes is passed in with every call."""

    def __init__(self, random: Random, *, disk_weight_max_multiple: int | None = None) -> None:
        """With `disk_weight_max_multiple` None, free disk does not matter."""
        self._random = random
        self._disk_weight_max_multiple = disk_weight_max_multiple

    def new_ensemble(
        self,
        sizes: QuorumSizes,
        candidates: Candidates,
        *,
        exclude: Collection[BookieId] = (),
        custom: Mapping[str, bytes] | None = None,
    ) -> Placement:
        """Raises NotEnoughBookiesError. `custom` is the ledger's own metadata, for policies that go by it."""
        del custom  # None of ours does.
        nobody = (None,) * sizes.ensemble
        return self._fill(Vacancies(sizes, nobody, nobody, candidates.topology), candidates, exclude)

    def replace(
        self,
        position: int,
        ensemble: Sequence[BookieId],
        sizes: QuorumSizes,
        candidates: Candidates,
        *,
        exclude: Collection[BookieId] = (),
    ) -> Placement:
        """The ensemble with another bookie at one position. Raises NotEnoughBookiesError."""
        return self.replace_all((position,), ensemble, sizes, candidates, exclude=exclude)

    def replace_all(
        self,
        positions: Collection[int],
        ensemble: Sequence[BookieId],
        sizes: QuorumSizes,
        candidates: Candidates,
        *,
        exclude: Collection[BookieId] = (),
    ) -> Placement:
        """Several at once: better than one by one, as racks of bookies that also go do not stand in the way."""
        assert len(ensemble) == sizes.ensemble
        taken = tuple(None if place in positions else bookie for place, bookie in enumerate(ensemble))
        left = tuple(bookie if place in positions else None for place, bookie in enumerate(ensemble))
        vacancies = Vacancies(sizes, taken, left, candidates.topology)
        return self._fill(vacancies, candidates, frozenset((*exclude, *ensemble)))

    @abstractmethod
    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        """How far an ensemble, whoever made it, keeps the rules."""

    @abstractmethod
    def _choose(self, vacancies: Vacancies, pool: Sequence[BookieId]) -> list[BookieId] | None:
        """Different bookies for the open positions, in their order; None if the rules that are enforced forbid it.

        The pool has at least as many, the preferred ones first.
        """

    def _may_use(self, bookie: BookieId, topology: Topology) -> bool:
        """Whether the rules that are enforced allow this bookie at all."""
        del bookie, topology
        return True

    def _rule(self, sizes: QuorumSizes) -> str:
        """What is enforced, for the error's message."""
        del sizes
        return ""

    # --- healthy ones first ---

    def _fill(self, vacancies: Vacancies, candidates: Candidates, exclude: Collection[BookieId]) -> Placement:
        needed = len(vacancies.open_positions)
        usable = [
            bookie
            for bookie in candidates.writable
            if bookie not in exclude and self._may_use(bookie, candidates.topology)
        ]
        healthy = self._shuffled([bookie for bookie in usable if bookie not in candidates.quarantined], candidates)
        aside = self._shuffled([bookie for bookie in usable if bookie in candidates.quarantined], candidates)
        missing = max(0, needed - len(healthy))
        for extra in dict.fromkeys((missing, len(aside))):  # As few as the number asks for; then, for a rule, all.
            pool = healthy + aside[:extra]
            chosen = self._choose(vacancies, pool) if len(pool) >= needed else None
            if chosen is not None:
                return self._placement(vacancies, chosen, candidates)
        raise candidates.not_enough(needed, exclude, self._rule(vacancies.sizes))

    def _placement(self, vacancies: Vacancies, chosen: list[BookieId], candidates: Candidates) -> Placement:
        fresh = iter(chosen)
        ensemble = tuple(next(fresh) if bookie is None else bookie for bookie in vacancies.taken)
        assert len(frozenset(ensemble)) == len(ensemble), f"a bookie twice in {ensemble}"
        return Placement(
            ensemble,
            self.adherence(ensemble, vacancies.sizes, candidates.topology),
            tuple(bookie for bookie in chosen if bookie in candidates.quarantined),
        )

    def _shuffled(self, bookies: Sequence[BookieId], candidates: Candidates) -> list[BookieId]:
        return random_order(bookies, candidates.free_bytes, self._random, self._disk_weight_max_multiple)
