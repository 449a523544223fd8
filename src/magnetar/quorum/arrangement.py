"""Arrangement: racks put around a circle so that neighbours differ. The search that rack-aware policies share.

Circle:    an ensemble is a circle of positions, and every write set is a run of Qw neighbours on it. Some positions may
           be taken already (a bookie is being replaced), the others are open.
Goal:      every run that contains an open position has at least so many different labels of each kind (racks, regions),
           and neighbours differ in rack. A run whose taken positions make that impossible must come as near as it can,
           unless the goal is strict.
Search:    depth first over racks, not bookies, with the racks tried in order of preference; a dead end is left as soon
           as a run cannot reach its number any more. At most NODES_MAX steps: then the goal counts as out of reach.
Read next: rack_aware.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from magnetar.ids import BookieId

# Whole ensembles of usual size are searched to the end with far fewer: it bounds the time that odd ones hold the loop.
NODES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to tell places apart: by rack, by region."""

    label_of: Callable[[str], str]
    """From a rack."""
    distinct: int
    """Different labels wanted in every run."""


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
    """What is given: racks of taken positions, and of bookies that left."""

    racks: tuple[str | None, ...]
    """None: open."""
    left: tuple[str | None, ...]
    """Rack of the bookie that stood at an open position before: it is tried first there."""


def arrange(circle: Circle, pool: Sequence[tuple[BookieId, str]], goal: Goal) -> list[BookieId | None] | None:
    """Bookies for the open positions (None at the others), from (bookie, rack) in order of preference.

    None if the goal is out of reach.
    """
    if not _is_conceivable(circle, pool, goal):
        return None
    search = _Search(circle, pool, goal)
    return search.chosen if search.fill(0) else None


# --- counting first ---------------------------------------------------------------------------------------------------


def _is_conceivable(circle: Circle, pool: Sequence[tuple[BookieId, str]], goal: Goal) -> bool:
    """A bound by counting, for circles that are open all around: most goals out of reach are seen here, at no cost.

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
    """Labels are bits here, one number per kind and position: the labels of a run are then an `or` over it."""

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
        starts = (
            range(size) if goal.run < size else range(1)
        )  # A run around the whole circle is one, wherever it starts.
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
        """Racks in stock: that of who left, then its region; no neighbour's; the least used; the best bookie's."""
        left = self._left[position]
        beside = [self._racks[neighbour] for neighbour in self._neighbours(position)]

        def key(rack: str) -> tuple[int, ...]:
            moved = [left is not None and bits[left] != bits[rack] for bits in self._bits]
            counts = [used[bits[rack]] for used, bits in zip(self._used, self._bits, strict=True)]
            return (*reversed(moved), beside.count(rack), *counts, self._stock[rack][-1])

        return sorted((rack for rack, places in self._stock.items() if places), key=key)

    # --- the goal ---

    def _is_possible(self, position: int) -> bool:
        """Whether the runs and neighbours of a position just filled can still be as wanted."""
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
        """Computed before anything is filled, when what is there cannot change."""
        distinct = self._goal.kinds[kind].distinct
        return distinct if self._goal.strict else min(distinct, _reachable(self._marks[kind], run))

    def _neighbours(self, position: int) -> tuple[int, ...]:
        size = len(self._racks)
        return ((position - 1) % size, (position + 1) % size) if size > 1 else ()


def _label_bits(kind: Kind, racks: Iterable[str]) -> dict[str, int]:
    labels: dict[str, int] = {}
    return {rack: 1 << labels.setdefault(kind.label_of(rack), len(labels)) for rack in racks}


def _reachable(marks: Sequence[int], run: tuple[int, ...]) -> int:
    """Different labels in a run if all that is still open gets new ones."""
    seen = still_open = 0
    for position in run:
        mark = marks[position]
        seen |= mark
        still_open += not mark
    return seen.bit_count() + still_open
