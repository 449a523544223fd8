"""Topology: in which rack and region every bookie stands, also those of which nobody said it.

Location:  `/rack` or `/region/rack` (or longer). The whole of it names the rack, its first part the region.
Unknown:   all bookies of unknown place share one rack and one region of their own: they may well stand side by side.
Read next: rack_aware.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.ids import BookieId
from magnetar.quorum.rack_table import RackTable

DEFAULT_RACK = "/default-rack"
DEFAULT_REGION = "default-region"


@dataclass(frozen=True, slots=True)
class Topology:
    """Immutable, as the table is."""

    table: RackTable = field(default_factory=RackTable)
    hosts: Mapping[BookieId, str] = field(default_factory=dict)
    """Where bookies are reached, as far as they have published it."""

    def rack_of(self, bookie: BookieId) -> str:
        return self.table.location_of(bookie, self.hosts.get(bookie, "")) or DEFAULT_RACK

    def region_of(self, bookie: BookieId) -> str:
        return region_of_rack(self.rack_of(bookie))


def region_of_rack(rack: str) -> str:
    return DEFAULT_REGION if rack == DEFAULT_RACK else rack.split("/", 2)[1]
