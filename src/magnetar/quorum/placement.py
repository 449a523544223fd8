"""Placement: which bookies an ensemble consists of, and which one replaces a failed one.

Invariant: E different bookies, all writable, none excluded; a replacement was not in the ensemble before. Bookies in
           quarantine are used only if it is impossible without them: for a number, as few as are missing; the result
           names them. Further rules of a policy are kept as far as the bookies allow; the result says how far.
Order:     every choice comes from the generator that is passed in. Bookies with more free disk tend to come first: each
           draws an exponential random number and divides it by its weight; ascending. The first of any part of the
           bookies is then a weighted choice from that part, so one draw serves a whole search.
Limits:    a weight is the free bytes, but at most a multiple of the median: otherwise a new, empty bookie would get
           everything. Unknown and zero count as the least that is known: such a bookie is used, but seldom.
Read next: rack_aware.py
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from magnetar.ids import BookieId
from magnetar.quorum.candidates import Candidates, Topology
from magnetar.quorum.sizes import QuorumSizes


class Adherence(enum.Enum):
    """How far an ensemble keeps the rules of a policy."""

    STRICT = "strict"
    SOFT = "soft"
    """The rules that protect the entries are kept, a wish is not."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Placement:
    ensemble: tuple[BookieId, ...]
    adherence: Adherence
    quarantined: tuple[BookieId, ...] = ()
    """Newly chosen bookies that are in quarantine: there were too few others."""


@dataclass(frozen=True, slots=True)
class Vacancies:
    """An ensemble with open positions, and the bookies that may fill them."""

    sizes: QuorumSizes
    taken: tuple[BookieId | None, ...]
    """None: open."""
    left: tuple[BookieId | None, ...]
    """The former bookies of the open positions."""
    topology: Topology

    @property
    def open_positions(self) -> tuple[int, ...]:
        return tuple(position for position, bookie in enumerate(self.taken) if bookie is None)


class PlacementPolicy(ABC):
    """Chooses bookies. Its only state is its generator: everything that changes is passed in with every call."""

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
    ) -> Placement:
        """Raises NotEnoughBookiesError."""
        nobody = (None,) * sizes.ensemble
        return self._fill(Vacancies(sizes, nobody, nobody, candidates.topology), candidates, exclude)

    def replace(
        self,
        positions: Collection[int],
        ensemble: Sequence[BookieId],
        sizes: QuorumSizes,
        candidates: Candidates,
        *,
        exclude: Collection[BookieId] = (),
    ) -> Placement:
        """Returns the ensemble with other bookies at these positions. Raises NotEnoughBookiesError.

        To replace several at once is better than one by one: racks of bookies that also leave do not matter.
        """
        assert len(ensemble) == sizes.ensemble
        taken = tuple(None if place in positions else bookie for place, bookie in enumerate(ensemble))
        left = tuple(bookie if place in positions else None for place, bookie in enumerate(ensemble))
        vacancies = Vacancies(sizes, taken, left, candidates.topology)
        return self._fill(vacancies, candidates, frozenset((*exclude, *ensemble)))

    @abstractmethod
    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        """Reports how far any ensemble keeps the rules."""

    @abstractmethod
    def _choose(self, vacancies: Vacancies, pool: Sequence[BookieId]) -> list[BookieId] | None:
        """Returns different bookies for the open positions, in their order; None if the enforced rules forbid it.

        The pool has at least as many, the preferred ones first.
        """

    def _may_use(self, bookie: BookieId, topology: Topology) -> bool:
        """Reports whether the enforced rules allow this bookie at all."""
        del bookie, topology
        return True

    def _rule(self, sizes: QuorumSizes) -> str:
        """Returns the enforced rule, for the error's message."""
        del sizes
        return ""

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
        for extra in dict.fromkeys((missing, len(aside))):  # As few as the number needs; then, for a rule, all.
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


def random_order(
    bookies: Sequence[BookieId], free_bytes: Mapping[BookieId, int], random: Random, max_multiple: int | None
) -> list[BookieId]:
    """Returns the bookies in random order. With `max_multiple` None every order is equally likely."""
    if len(bookies) < 2:
        return list(bookies)
    weights = disk_weights(bookies, free_bytes, max_multiple)
    draws = [-math.log(1.0 - random.random()) / weight for weight in weights]
    return [bookie for _, bookie in sorted(zip(draws, bookies, strict=True))]


def disk_weights(
    bookies: Sequence[BookieId], free_bytes: Mapping[BookieId, int], max_multiple: int | None
) -> list[float]:
    """Returns one weight per bookie, above zero."""
    known = [free_bytes[bookie] for bookie in bookies if free_bytes.get(bookie, 0) > 0]
    if max_multiple is None or not known:
        return [1.0] * len(bookies)
    least, most = min(known), max_multiple * median(known)
    return [min(float(max(free_bytes.get(bookie, 0), least)), most) for bookie in bookies]


class RandomPlacement(PlacementPolicy):
    """For clusters without known racks."""

    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        del ensemble, sizes, topology  # There is no rule to break.
        return Adherence.STRICT

    def _choose(self, vacancies: Vacancies, pool: Sequence[BookieId]) -> list[BookieId] | None:
        return list(pool[: len(vacancies.open_positions)])
