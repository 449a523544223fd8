"""Rack-aware placement: the copies of an entry stand in different racks.

Rule:      every write set spans at least min(Qw, `min_racks`) racks. If `enforced`, an ensemble that breaks it is
           refused, and bookies of unknown rack are not used, as all of them may stand in one. Else it is broken only if
           there is no other way.
Wished:    as many racks per write set as there are, neighbours in different racks, all racks used alike. A replacement
           comes from the rack of the one that failed, if that is as good as any other.
How:       goals from the best to the barely allowed; the first that can be reached is taken.
Read next: arrangement.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from magnetar.ids import BookieId
from magnetar.quorum.arrangement import Circle, Goal, Kind, arrange
from magnetar.quorum.placement import Adherence, PlacementPolicy, Vacancies
from magnetar.quorum.sizes import QuorumSizes
from magnetar.quorum.topology import DEFAULT_RACK, Topology
from magnetar.quorum.write_sets import write_set_bookies


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
        for goal in self._goals(vacancies.sizes, racks):
            chosen = arrange(circle, places, goal)
            if chosen is not None:
                return [bookie for bookie in chosen if bookie is not None]
        return None

    def _goals(self, sizes: QuorumSizes, racks: Sequence[str]) -> Iterator[Goal]:
        for distinct, neighbours_differ in self._rack_goals(sizes, len(racks)):
            yield Goal(sizes.write, (Kind(str, distinct),), neighbours_differ, strict=self._enforced)

    def _rack_goals(self, sizes: QuorumSizes, racks: int) -> list[tuple[int, bool]]:
        """(racks per write set, neighbours differ) from the best down; an enforced rule is where it ends."""
        best, wanted = min(sizes.write, racks), self._wanted(sizes)
        keeping = [(distinct, differ) for differ in (True, False) for distinct in range(best, wanted - 1, -1)]
        if self._enforced:
            return keeping
        below = min(best, wanted - 1)
        breaking = [(distinct, differ) for differ in (True, False) for distinct in range(below, 0, -1)]
        return keeping + (breaking or [(1, False)])
