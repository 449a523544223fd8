"""A mutant: production code with one bug planted on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from magnetar.sim.mutants.planting import Edit, planted


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    number: int
    """As in docs/simulation.md."""
    sentence: str
    caught_by: tuple[str, ...]
    """The invariants that are there for it. Another one that catches it is as good, and is told as another one."""
    budget: int
    """So many seeds may pass before it is caught."""
    edits: Sequence[Edit]
    kind: str = "ledgers"
    """Of the seeds that look for it (sim/kinds.py)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Replaced in what a seed draws, where the bug is out of reach of most worlds."""

    def plant(self) -> AbstractContextManager[None]:
        return planted(self.edits)
