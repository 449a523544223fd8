"""Seeds: where every generator of the simulator is made, and how long simulated work takes.

A generator is made from a text that names the run and the purpose. A `Delay` is drawn from one, in the loop's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final


def seeded(seed: str) -> Random:
    """Equal texts give equal choices, on every machine and in every process."""
    return Random(seed)


@dataclass(frozen=True, slots=True)
class Delay:
    """Uniform between the two. Zero still takes a turn of the loop: no simulated call finishes before it is awaited."""

    min_s: float = 0.0
    max_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s:
            raise ValueError(f"delay: 0 <= {self.min_s} <= {self.max_s} does not hold")

    def draw(self, random: Random) -> float:
        return self.min_s + (self.max_s - self.min_s) * random.random() if self.max_s else 0.0


NO_DELAY: Final = Delay()
