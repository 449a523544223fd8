"""Region-aware placement: the copies of an entry stand in different regions, and within that in different racks.

Rule:      that of racks, as rack_aware.py has it; it alone can be enforced: a lost region must not stop all writing.
Wished:    every write set spans as many regions as there are, all regions used alike, within each the racks used alike.
           A replacement comes from the same rack, else from the same region, if that is as good as any other.
Read next: docs/quorum.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from magnetar.ids import BookieId
from magnetar.quorum.arrangement import Goal, Kind
from magnetar.quorum.placement import Adherence
from magnetar.quorum.rack_aware import RackAwarePlacement
from magnetar.quorum.sizes import QuorumSizes
from magnetar.quorum.topology import Topology, region_of_rack
from magnetar.quorum.write_sets import write_set_bookies

_REGIONS_WANTED = 2  # With copies in two regions, one of them may be lost.


class RegionAwarePlacement(RackAwarePlacement):
    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        """SOFT where the racks are as they must be, but some write set lies in one region."""
        by_racks = super().adherence(ensemble, sizes, topology)
        regions_enough = all(
            len({topology.region_of(bookie) for bookie in bookies}) >= min(sizes.write, _REGIONS_WANTED)
            for bookies in write_set_bookies(ensemble, sizes.write)
        )
        return by_racks if regions_enough or by_racks is Adherence.FAIL else Adherence.SOFT

    def _goals(self, sizes: QuorumSizes, racks: Sequence[str]) -> Iterator[Goal]:
        """The rule of racks goes first, then regions, then neighbours, then more racks than the rule asks for."""
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
