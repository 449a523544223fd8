"""Candidates: the bookies of a cluster as one client knows them at one moment, and their racks and regions.

Format:    a location is `/rack` or `/region/rack` (or longer). The whole of it names the rack, its first part the
           region. All bookies of unknown place share one rack and one region of their own: they may be neighbours.
Invariant: a bookie that is registered as writable and as read-only is becoming read-only, so it is not written to.
Order:     bookies are kept sorted; a placement then depends on the random numbers alone.
Read next: placement.py, rack_aware.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from magnetar.errors import NotEnoughBookiesError
from magnetar.ids import BookieId
from magnetar.quorum.rack_table import RackTable

DEFAULT_RACK = "/default-rack"
DEFAULT_REGION = "default-region"


@dataclass(frozen=True, slots=True)
class Topology:
    """The rack and the region of every bookie, also of those of unknown place. Immutable, as the table is."""

    table: RackTable = field(default_factory=RackTable)
    hosts: Mapping[BookieId, str] = field(default_factory=dict)
    """The hosts of bookies, as far as they have published them."""

    def rack_of(self, bookie: BookieId) -> str:
        return self.table.location_of(bookie, self.hosts.get(bookie, "")) or DEFAULT_RACK

    def region_of(self, bookie: BookieId) -> str:
        return region_of_rack(self.rack_of(bookie))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The bookies that a placement chooses from. Made by `of`."""

    writable: tuple[BookieId, ...]
    """Sorted; those in quarantine are among them."""
    read_only: tuple[BookieId, ...] = ()
    quarantined: frozenset[BookieId] = frozenset()
    free_bytes: Mapping[BookieId, int] = field(default_factory=dict)
    """Free disk of the bookies that have published it."""
    topology: Topology = field(default_factory=Topology)

    @classmethod
    def of(
        cls,
        writable: Iterable[BookieId],
        *,
        read_only: Iterable[BookieId] = (),
        quarantined: Iterable[BookieId] = (),
        free_bytes: Mapping[BookieId, int] | None = None,
        topology: Topology | None = None,
    ) -> Candidates:
        closed = frozenset(read_only)
        is_open = frozenset(writable) - closed
        return cls(
            tuple(sorted(is_open)),
            tuple(sorted(closed)),
            is_open.intersection(quarantined),
            free_bytes or {},
            topology or Topology(),
        )

    def not_enough(self, needed: int, exclude: Collection[BookieId], rule: str = "") -> NotEnoughBookiesError:
        """Returns the error that `needed` bookies cannot be found outside `exclude`."""
        return NotEnoughBookiesError(
            needed=needed,
            known=len(self.writable) + len(self.read_only),
            writable=len(self.writable),
            quarantined=len(self.quarantined),
            excluded=sum(bookie in exclude for bookie in self.writable),
            rule=rule,
        )


def region_of_rack(rack: str) -> str:
    return DEFAULT_REGION if rack == DEFAULT_RACK else rack.split("/", 2)[1]
