"""From settings to a policy and a quarantine."""

from __future__ import annotations

from random import Random

from magnetar.config.placement import PlacementConfig, rack_pairs
from magnetar.quorum.placement import PlacementPolicy
from magnetar.quorum.quarantine import Quarantine
from magnetar.quorum.rack_aware import RackAwarePlacement
from magnetar.quorum.rack_table import RackTable
from magnetar.quorum.random_placement import RandomPlacement
from magnetar.quorum.region_aware import RegionAwarePlacement


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


def quarantine(config: PlacementConfig) -> Quarantine:
    return Quarantine(
        errors=config.quarantine_errors,
        interval_s=config.quarantine_interval_s,
        quarantine_s=config.quarantine_s,
    )


def configured_racks(config: PlacementConfig) -> RackTable:
    """The table to put over that of the node: `configured_racks(config).over(parse_bookies_node(value))`."""
    return RackTable.of(rack_pairs(config.racks))
