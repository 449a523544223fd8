"""Delay: how long simulated work takes, in the loop's time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True)
class Delay:
    """Uniform between the two. Zero still takes a turn of the loop: no simulated call finishes before it is awaited."""

    min_s: float = 0.0
    max_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s:
            raise ValueError(f"delay: 0 <= {self.min_s} <= {self.max_s} does not hold")

    def draw(self, random: Random) -> float:
        return random.uniform(self.min_s, self.max_s) if self.max_s else 0.0


NO_DELAY: Final = Delay()
