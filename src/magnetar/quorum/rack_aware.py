"""Rack-aware and region-aware placement: the copies of an entry are in different racks, or also different regions.

Purpose:   an ensemble is a circle of positions, and every write set is a run of Qw neighbours on it. Some positions may
           be taken already (a bookie is being replaced), the others are open. `arrange` fills them.
Invariant: every write set spans at least min(Qw, `min_racks`) racks. If `enforced`, an ensemble that breaks the rule is
           refused, and bookies of unknown rack are not used, as all of them may be in one. Otherwise it is broken only
           if there is no other way. Regions are never enforced: a lost region must not stop all writing.
           A goal is the wanted number of different labels of each kind (racks, regions) in every run with an open
           position, with neighbours that differ in rack. A run whose taken positions make that impossible must come as
           near as it can, unless the goal is strict.
Order:     goals from the best to the barely allowed; the first that can be reached is taken. The best has as many racks
           (before that, regions) per write set as exist, neighbours in different racks, all used alike. A replacement
           comes from the rack of the failed bookie, otherwise from its region, if that is as good as any other.
           The search is depth first over racks, not bookies, with the racks tried in order of preference; a dead end is
           left as soon as a run cannot reach its number any more.
Limits:    at most NODES_MAX steps: then the goal counts as out of reach.
Read next: docs/quorum.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from magnetar.config.ledger import PlacementConfig
from magnetar.ids import BookieId
from magnetar.quorum.candidates import DEFAULT_RACK, Topology, region_of_rack
from magnetar.quorum.placement import Adherence, PlacementPolicy, RandomPlacement, Vacancies
from magnetar.quorum.sizes import QuorumSizes, write_set_bookies

# Ensembles of usual size are searched completely in far fewer: it bounds the time that odd ones hold the loop.
NODES_MAX = 1_000


_REGIONS_WANTED = 2  # With copies in two regions, one of them may be lost.


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to distinguish places: by rack, by region."""

    label_of: Callable[[str], str]
    """From a rack."""
    distinct: int
    """The number of different labels wanted in every run."""


@dataclass(frozen=True, slots=True)
class Goal:
    run: int
    """Length of a run: the write quorum."""
    kinds: tuple[Kind, ...]
    """From the coarsest to the finest: unused regions are preferred before unused racks."""
    neighbours_differ: bool
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Circle:
    """The input: racks of taken positions, and of bookies that left."""

    racks: tuple[str | None, ...]
    """None: open."""
    left: tuple[str | None, ...]
    """Rack of the former bookie of an open position: it is tried first there."""


class RackAwarePlacement(PlacementPolicy):
    def __init__(
        self,
        random: Random,
        *,
        min_racks: int = 2,
        enforced: bool = False,
        disk_weight_max_multiple: int | None = None,
    ) -> None:
        super().__init__(random, disk_weight_max_multiple=disk_weight_max_multiple)
        self._min_racks = min_racks
        self._enforced = enforced

    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        racks_enough = all(
            len({topology.rack_of(bookie) for bookie in bookies}) >= self._wanted(sizes)
            for bookies in write_set_bookies(ensemble, sizes.write)
        )
        all_known = not self._enforced or all(self._may_use(bookie, topology) for bookie in ensemble)
        return Adherence.STRICT if racks_enough and all_known else Adherence.FAIL

    def _may_use(self, bookie: BookieId, topology: Topology) -> bool:
        return not self._enforced or topology.rack_of(bookie) != DEFAULT_RACK

    def _rule(self, sizes: QuorumSizes) -> str:
        if not self._enforced:
            return ""
        return f"it is enforced that every write set spans {self._wanted(sizes)} known racks"

    def _wanted(self, sizes: QuorumSizes) -> int:
        return min(sizes.write, self._min_racks)

    # --- choosing ---

    def _choose(self, vacancies: Vacancies, pool: Sequence[BookieId]) -> list[BookieId] | None:
        if vacancies.left == (None,):  # A new ensemble of one has no neighbours: the preferred bookie is the best.
            return [pool[0]]
        rack_of = vacancies.topology.rack_of
        circle = Circle(
            tuple(bookie and rack_of(bookie) for bookie in vacancies.taken),
            tuple(bookie and rack_of(bookie) for bookie in vacancies.left),
        )
        places = [(bookie, rack_of(bookie)) for bookie in pool]
        racks = sorted({rack for _, rack in places} | {rack for rack in circle.racks if rack is not None})
        if len(racks) == 1 and not self._enforced:  # All places are alike, and there is nothing to search.
            return list(pool[: len(vacancies.open_positions)])
        for goal in self._goals(vacancies.sizes, racks):
            chosen = arrange(circle, places, goal)
            if chosen is not None:
                return [bookie for bookie in chosen if bookie is not None]
        return None

    def _goals(self, sizes: QuorumSizes, racks: Sequence[str]) -> Iterator[Goal]:
        for distinct, neighbours_differ in self._rack_goals(sizes, len(racks)):
            yield Goal(sizes.write, (Kind(str, distinct),), neighbours_differ, strict=self._enforced)

    def _rack_goals(self, sizes: QuorumSizes, racks: int) -> list[tuple[int, bool]]:
        """Returns (racks per write set, neighbours differ) from the best down; an enforced rule is the last."""
        best, wanted = min(sizes.write, racks), self._wanted(sizes)
        keeping = [(distinct, differ) for differ in (True, False) for distinct in range(best, wanted - 1, -1)]
        if self._enforced:
            return keeping
        below = min(best, wanted - 1)
        breaking = [(distinct, differ) for differ in (True, False) for distinct in range(below, 0, -1)]
        return keeping + (breaking or [(1, False)])


class RegionAwarePlacement(RackAwarePlacement):
    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        """Returns SOFT if the racks are as they must be, but some write set lies in one region."""
        by_racks = super().adherence(ensemble, sizes, topology)
        regions_enough = all(
            len({topology.region_of(bookie) for bookie in bookies}) >= min(sizes.write, _REGIONS_WANTED)
            for bookies in write_set_bookies(ensemble, sizes.write)
        )
        return by_racks if regions_enough or by_racks is Adherence.FAIL else Adherence.SOFT

    def _goals(self, sizes: QuorumSizes, racks: Sequence[str]) -> Iterator[Goal]:
        """Puts the rule of racks first, then regions, then neighbours, then more racks than the rule asks for."""
        regions = min(sizes.write, len({region_of_rack(rack) for rack in racks}))
        wanted = self._wanted(sizes)
        rack_goals = self._rack_goals(sizes, len(racks))
        keeping = [goal for goal in rack_goals if goal[0] >= wanted]
        breaking = [goal for goal in rack_goals if goal[0] < wanted]
        for part in (keeping, breaking):
            for region_count in range(regions, 0, -1):
                for distinct, neighbours_differ in part:
                    kinds = (Kind(region_of_rack, region_count), Kind(str, distinct))
                    yield Goal(sizes.write, kinds, neighbours_differ, strict=self._enforced)


def placement_policy(config: PlacementConfig, random: Random) -> PlacementPolicy:
    """Makes the policy that the settings name."""
    multiple = config.disk_weight_max_multiple if config.disk_weight_enabled else None
    if config.policy == "random":
        return RandomPlacement(random, disk_weight_max_multiple=multiple)
    policy = RegionAwarePlacement if config.policy == "region" else RackAwarePlacement
    return policy(
        random,
        min_racks=config.min_racks_per_write_quorum,
        enforced=config.enforce_min_racks,
        disk_weight_max_multiple=multiple,
    )


def arrange(circle: Circle, pool: Sequence[tuple[BookieId, str]], goal: Goal) -> list[BookieId | None] | None:
    """Returns bookies for the open positions (None at the others), from (bookie, rack) in order of preference.

    Returns None if the goal is out of reach.
    """
    if not _is_conceivable(circle, pool, goal):
        return None
    search = _Search(circle, pool, goal)
    return search.chosen if search.fill(0) else None


# --- counting first ---------------------------------------------------------------------------------------------------


def _is_conceivable(circle: Circle, pool: Sequence[tuple[BookieId, str]], goal: Goal) -> bool:
    """Counts, for circles that are open all around: this finds most goals that are out of reach, at no cost.

    With d different labels in every run of w, a label is at most w − d + 1 times in each; every position is in w runs.
    """
    size = len(circle.racks)
    if any(rack is not None for rack in circle.racks):
        return True  # Few positions are open: searching is as quick.
    for kind in goal.kinds:
        most = size * (goal.run - kind.distinct + 1) // goal.run
        if _placeable(Counter(kind.label_of(rack) for _, rack in pool), most) < size:
            return False
    neighbours_need = size // 2 if goal.neighbours_differ and size > 1 else size
    return _placeable(Counter(rack for _, rack in pool), neighbours_need) >= size


def _placeable(counts: Counter[str], most: int) -> int:
    return sum(min(count, most) for count in counts.values())


# --- then searching ---------------------------------------------------------------------------------------------------


class _Search:
    """Searches with labels as bits, one number per kind and position: the labels of a run are then an `or` over it."""

    def __init__(self, circle: Circle, pool: Sequence[tuple[BookieId, str]], goal: Goal) -> None:
        size = len(circle.racks)
        self.chosen: list[BookieId | None] = [None] * size
        self._pool = pool
        self._goal = goal
        self._left = circle.left
        self._racks = list(circle.racks)
        self._open = [position for position, rack in enumerate(circle.racks) if rack is None]
        self._stock: dict[str, list[int]] = {}  # Rack → places in the pool of its bookies, the best last.
        for place in range(len(pool) - 1, -1, -1):
            self._stock.setdefault(pool[place][1], []).append(place)
        known = dict.fromkeys((*self._stock, *(rack for rack in (*circle.racks, *circle.left) if rack is not None)))
        self._bits = [_label_bits(kind, known) for kind in goal.kinds]
        self._marks = [[bits[rack] if rack is not None else 0 for rack in circle.racks] for bits in self._bits]
        self._used = [Counter(mark for mark in marks if mark) for marks in self._marks]
        self._nodes_left = NODES_MAX
        starts = range(size if goal.run < size else 1)  # A run around the whole circle is one, wherever it starts.
        self._runs = [tuple((start + step) % size for step in range(goal.run)) for start in starts]
        self._runs_at = [[run for run in range(len(self._runs)) if place in self._runs[run]] for place in range(size)]
        self._wanted = [[self._wanted_in(run, kind) for run in self._runs] for kind in range(len(goal.kinds))]

    # --- depth first ---

    def fill(self, depth: int) -> bool:
        if depth == len(self._open):
            return True
        position = self._open[depth]
        for rack in self._by_preference(position):
            if self._nodes_left == 0:
                return False
            self._nodes_left -= 1
            place = self._put(position, rack)
            if self._is_possible(position) and self.fill(depth + 1):
                self.chosen[position] = self._pool[place][0]
                return True
            self._take_back(position, rack, place)
        return False

    def _put(self, position: int, rack: str) -> int:
        self._racks[position] = rack
        for bits, marks, used in zip(self._bits, self._marks, self._used, strict=True):
            marks[position] = bits[rack]
            used[bits[rack]] += 1
        return self._stock[rack].pop()

    def _take_back(self, position: int, rack: str, place: int) -> None:
        self._stock[rack].append(place)
        self._racks[position] = None
        for bits, marks, used in zip(self._bits, self._marks, self._used, strict=True):
            marks[position] = 0
            used[bits[rack]] -= 1

    def _by_preference(self, position: int) -> list[str]:
        """Returns racks in stock: the former bookie's, then its region; no neighbour's; the least used; the best
        bookie's."""
        left = self._left[position]
        beside = [self._racks[neighbour] for neighbour in self._neighbours(position)]

        def key(rack: str) -> tuple[int, ...]:
            moved = [left is not None and bits[left] != bits[rack] for bits in self._bits]
            counts = [used[bits[rack]] for used, bits in zip(self._used, self._bits, strict=True)]
            return (*reversed(moved), beside.count(rack), *counts, self._stock[rack][-1])

        return sorted((rack for rack, places in self._stock.items() if places), key=key)

    # --- the goal ---

    def _is_possible(self, position: int) -> bool:
        """Reports whether the runs and neighbours of a position just filled can still be as wanted."""
        if self._goal.neighbours_differ:
            rack = self._racks[position]
            if any(self._racks[neighbour] == rack for neighbour in self._neighbours(position)):
                return False
        return all(
            _reachable(marks, self._runs[run]) >= wanted[run]
            for marks, wanted in zip(self._marks, self._wanted, strict=True)
            for run in self._runs_at[position]
        )

    def _wanted_in(self, run: tuple[int, ...], kind: int) -> int:
        """Returns the number for a run, computed before anything is filled, when the taken positions cannot change."""
        distinct = self._goal.kinds[kind].distinct
        return distinct if self._goal.strict else min(distinct, _reachable(self._marks[kind], run))

    def _neighbours(self, position: int) -> tuple[int, ...]:
        size = len(self._racks)
        return ((position - 1) % size, (position + 1) % size) if size > 1 else ()


def _label_bits(kind: Kind, racks: Iterable[str]) -> dict[str, int]:
    labels: dict[str, int] = {}
    return {rack: 1 << labels.setdefault(kind.label_of(rack), len(labels)) for rack in racks}


def _reachable(marks: Sequence[int], run: tuple[int, ...]) -> int:
    """Returns the number of different labels in a run if all open positions get new ones."""
    seen = still_open = 0
    for position in run:
        mark = marks[position]
        seen |= mark
        still_open += not mark
    return seen.bit_count() + still_open
