"""Makes the placement policy that the settings name; random placement is for clusters without known racks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from magnetar.config.placement import PlacementConfig
from magnetar.ids import BookieId
from magnetar.quorum.candidates import Topology
from magnetar.quorum.placement import Adherence, PlacementPolicy, Vacancies
from magnetar.quorum.rack_aware import RackAwarePlacement, RegionAwarePlacement
from magnetar.quorum.sizes import QuorumSizes


class RandomPlacement(PlacementPolicy):
    def adherence(self, ensemble: Sequence[BookieId], sizes: QuorumSizes, topology: Topology) -> Adherence:
        del ensemble, sizes, topology  # There is no rule to break.
        return Adherence.STRICT

    def _choose(self, vacancies: Vacancies, pool: Sequence[BookieId]) -> list[BookieId] | None:
        return list(pool[: len(vacancies.open_positions)])


def placement_policy(config: PlacementConfig, random: Random) -> PlacementPolicy:
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
