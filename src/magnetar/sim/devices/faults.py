"""DiskFaults: what goes wrong on a simulated device while it runs, by chance or on order, each counted.

By chance: `rates[fault]` is the probability per operation that the fault can strike. Each fault draws from a generator
           of its own: switching one off does not move the others.
On order:  `strike_next(fault, path)` makes the next operation that it can strike, on that file or on any, meet it.
"""

from __future__ import annotations

import enum
from random import Random
from typing import Final

from magnetar.sim.seeds import seeded


class Fault(enum.Enum):
    STALL = "stall"  # Any operation: takes `stall_s` longer.
    READ_ERROR = "read error"  # A read: EIO, once.
    WRITE_ERROR = "write error"  # An append: a part is written, then EIO.
    FULL = "full"  # An append: a part is written, then ENOSPC. Also counts appends that met the device's real end.
    CUT_ERROR = "cut error"  # A truncate, or the cut after a failed append: EIO.
    SYNC_ERROR = "sync error"  # A sync of a file or a directory: EIO, and what was unsynced is lost.
    LATENT_SECTOR = "latent sector"  # A read: one of its sectors is unreadable from now on.
    BIT_FLIP = "bit flip"  # A read: one durable bit in its range is the other way round from now on.
    MISDIRECTED_WRITE = "misdirected write"  # A sync: one of its writes goes somewhere else; the old data stays.
    EMPTIED = "emptied"  # Not drawn: counts `SimDevice.empty`.

    __hash__ = object.__hash__  # Several look-ups per operation; an enumeration's own hash is a call of Python code.


STALL_S: Final = 0.3
LIES: Final = (Fault.LATENT_SECTOR, Fault.BIT_FLIP, Fault.MISDIRECTED_WRITE, Fault.EMPTIED)
"""Faults that destroy what was durable, whatever the process did right."""


class DiskFaults:
    def __init__(self, seed: str) -> None:
        self.rates: dict[Fault, float] = {}
        self.counts: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self.stall_s = STALL_S
        self.has_lied = False
        self._seed = seed
        self._randoms: dict[Fault, Random] = {}  # Made when they are needed: most devices never fail.
        self._ordered: list[tuple[Fault, str | None]] = []

    def strike_next(self, fault: Fault, path: str | None = None) -> None:
        """`path` is the device's; a directory's for SYNC_ERROR of a directory."""
        self._ordered.append((fault, path))

    def strikes(self, fault: Fault, path: str) -> bool:
        """Asked once per operation that the fault can strike; counts the strike."""
        if not (self._ordered or self.rates):
            return False
        struck = self._take_order(fault, path) or self._draw(fault)
        if struck:
            self.count(fault)
        return struck

    def count(self, fault: Fault) -> None:
        self.counts[fault] += 1
        if fault in LIES:
            self.has_lied = True

    def random(self, fault: Fault) -> Random:
        """For the details of a strike."""
        if fault not in self._randoms:
            self._randoms[fault] = seeded(f"{self._seed}/{fault.value}")
        return self._randoms[fault]

    def _take_order(self, fault: Fault, path: str) -> bool:
        if not self._ordered:
            return False
        for order in ((fault, path), (fault, None)):
            if order in self._ordered:
                self._ordered.remove(order)
                return True
        return False

    def _draw(self, fault: Fault) -> bool:
        rate = self.rates.get(fault, 0.0)
        return rate > 0 and self.random(fault).random() < rate
