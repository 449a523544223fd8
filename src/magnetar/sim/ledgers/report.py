"""Report: what one seed did and what was found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from magnetar.sim.ledgers.watch import Violation

MUST_HAPPEN = (
    "acks",
    "fenced writers",
    "ensemble changes",
    "recoveries that wrote back",
    "torn tails cut",
    "sessions expired",
)
"""Counters that are above zero over any batch worth its name."""


@dataclass(slots=True)
class Report:
    seed: int
    options: str
    violations: list[Violation] = field(default_factory=list)
    failure: str | None = None
    """The run itself broke: an uncaught exception, an endless run."""
    events: int = 0
    virtual_s: float = 0.0
    digest: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.violations and self.failure is None

    @property
    def caught(self) -> list[str]:
        """Ids of the invariants that were violated, in the order of their first violation."""
        found = list(dict.fromkeys(violation.invariant for violation in self.violations))
        return found if self.failure is None else [*found, "run"]
