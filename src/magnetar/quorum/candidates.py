"""Candidates: the bookies of a cluster as one client knows them at one moment. What a placement is made from.

A bookie that is registered as writable and as read-only is on its way to read-only, so it is not written to.
Order:     bookies are kept sorted; a placement then depends on the random numbers alone.
Read next: placement.py
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from magnetar.errors import NotEnoughBookiesError
from magnetar.ids import BookieId
from magnetar.quorum.topology import Topology


class Standing(enum.Enum):
    WRITABLE = "writable"
    QUARANTINED = "quarantined"
    """Writable, but it failed too often: the last choice."""
    READ_ONLY = "read-only"
    UNKNOWN = "unknown"
    """Not registered: gone, or not heard of yet."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Make it with `of`."""

    writable: tuple[BookieId, ...]
    """Sorted; those in quarantine are among them."""
    read_only: tuple[BookieId, ...] = ()
    quarantined: frozenset[BookieId] = frozenset()
    free_bytes: Mapping[BookieId, int] = field(default_factory=dict)
    """Of bookies that have told it."""
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

    def standing_of(self, bookie: BookieId) -> Standing:
        if bookie in self.quarantined:
            return Standing.QUARANTINED
        if bookie in self.writable:
            return Standing.WRITABLE
        return Standing.READ_ONLY if bookie in self.read_only else Standing.UNKNOWN

    def not_enough(self, needed: int, exclude: Collection[BookieId], rule: str = "") -> NotEnoughBookiesError:
        """`needed` bookies cannot be found outside `exclude`."""
        return NotEnoughBookiesError(
            needed=needed,
            known=len(self.writable) + len(self.read_only),
            writable=len(self.writable),
            quarantined=len(self.quarantined),
            excluded=sum(bookie in exclude for bookie in self.writable),
            rule=rule,
        )
