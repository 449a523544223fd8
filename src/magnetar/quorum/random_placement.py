"""Random placement: any bookies, wherever they stand. For clusters of which nobody has said where their bookies are."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.ids import BookieId
from magnetar.quorum.placement import Adherence, PlacementPolicy, Vacancies
from magnetar.quorum.sizes import QuorumSizes
from magnetar.quorum.topology import Topology


class RandomPlacement(PlacementPolicy):
    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        del ensemble, sizes, topology  # There is no rule to break.
        return Adherence.STRICT

    def _choose(self, vacancies: Vacancies, pool: Sequence[BookieId]) -> list[BookieId] | None:
        return list(pool[: len(vacancies.open_positions)])
