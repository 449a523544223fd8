"""Every planted bug, by its number in docs/simulation.md."""

from __future__ import annotations

from typing import Final

from magnetar.sim.mutants import disks, ledgers, serving, staging, topics
from magnetar.sim.mutants.planting import Mutant

_ALL: Final = [*ledgers.MUTANTS, *serving.MUTANTS, *disks.MUTANTS, *topics.MUTANTS, *staging.MUTANTS]
MUTANTS: Final[dict[int, Mutant]] = {mutant.number: mutant for mutant in sorted(_ALL, key=lambda known: known.number)}
assert len(MUTANTS) == len(_ALL), "a number is given twice"
