"""From values to pixels, and which values get a tick. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_NICE_SECONDS: Final = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1_800,
    3_600,
    7_200,
    14_400,
    21_600,
    43_200,
    86_400,
)


@dataclass(frozen=True, slots=True)
class Linear:
    """`low` is drawn at `begin`, `high` at `end`; end may be the smaller one, as for upward axes."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.begin + (min(max(value, self.low), self.high) - self.low) / span * (self.end - self.begin)

    def ticks(self, about: int = 5) -> list[float]:
        step = nice_step((self.high - self.low) / max(about, 1))
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """For latencies: powers of ten are equally far apart. `low` must be above zero."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = math.log10(self.high / self.low) or 1.0
        part = math.log10(min(max(value, self.low), self.high) / self.low) / span
        return self.begin + part * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """The powers of ten; with the values between them where there are few."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        factors = (1, 2, 5) if last - first < 2 else (1,)
        values = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in factors]
        return [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]


def nice_step(shortest: float) -> float:
    """The smallest round step that is not below `shortest`."""
    if shortest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(shortest))
    return next(factor * power for factor in _NICE if factor * power >= shortest * (1 - 1e-9))


def nice_top(highest: float, about: int = 5) -> float:
    """Where an axis that begins at zero ends."""
    if highest <= 0:
        return 1.0
    step = nice_step(highest / about)
    return math.ceil(highest / step - 1e-9) * step


def time_ticks(seconds: float, about: int = 8) -> list[float]:
    """Of an axis from zero to so many seconds: round on a clock."""
    shortest = seconds / max(about, 1)
    if shortest < _NICE_SECONDS[0]:
        return Linear(0.0, seconds, 0.0, 1.0).ticks(about)
    step = next((step for step in _NICE_SECONDS if step >= shortest), math.ceil(shortest / 86_400) * 86_400)
    return [float(number * step) for number in range(math.floor(seconds / step) + 1)]


def decades(lowest: float, highest: float) -> tuple[float, float]:
    """The limits of a logarithmic axis that holds both, at round places."""
    low = 10.0 ** math.floor(math.log10(lowest))
    high = 10.0 ** math.ceil(math.log10(highest * (1 + 1e-9)))
    return low, max(high, low * 10)
