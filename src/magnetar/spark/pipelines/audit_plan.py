"""The parts of an audit that are plain arithmetic: severities, steps of time, bins of latency.

Decides, does nothing: no Spark in here, so each rule has a test that takes no time.
Bins:      latency is shown on a logarithmic scale. Bin b holds [10^(b/8), 10^((b+1)/8)) milliseconds; what is below a
           hundredth of a millisecond goes to the lowest one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

BINS_PER_DECADE: Final = 8
LOWEST_MS: Final = 0.01
LOWEST_BIN: Final = -2 * BINS_PER_DECADE
STEPS_MAX: Final = 120  # Points of a plot: more cannot be told apart on a screen.
QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
QUANTILE_ACCURACY: Final = 10_000  # Of percentile_approx: an error in rank of 1 / 10,000.
_NICE_US: Final = tuple(
    factor * unit
    for unit, factors in ((10_000, (1, 2, 5, 10, 20, 50)), (1_000_000, (1, 2, 5, 10, 15, 30)))
    for factor in factors
) + tuple(minutes * 60_000_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 720, 1_440))


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that may be wrong with a message."""

    name: str
    """The column of the verdicts, a boolean."""
    title: str
    meaning: str


# The worst first: a message with several faults is called by the first of them.
FAULTS: Final = (
    Kind("lost", "lost", "acknowledged, and it is not there"),
    Kind("damaged", "damaged", "other bytes than were sent"),
    Kind("duplicated", "duplicated", "there more than once, under different message ids"),
    Kind("misplaced", "misplaced", "not where its acknowledgement said it is"),
    Kind("out_of_order", "out of order", "behind a later message of the same producer"),
    Kind("unexpected", "unexpected", "no log says that it was sent"),
    Kind("missed", "missed", "there, but a subscription did not receive it"),
)
# Not wrong, but worth a name.
IN_DOUBT: Final = Kind("in_doubt", "in doubt", "sent, but never acknowledged: it may be there or not")
EXPIRED: Final = Kind("expired", "expired", "acknowledged, and deleted by retention before the topic was read")
GOOD: Final = "good"
VERDICTS: Final = (*(fault.name for fault in FAULTS), EXPIRED.name, IN_DOUBT.name, GOOD)
"""What the column `verdict` may say, the worst first."""


def step_us(first_us: int, last_us: int) -> int:
    """A round step of time that cuts the run into at most STEPS_MAX pieces."""
    shortest = max(last_us - first_us, 0) / (STEPS_MAX - 1)
    for step in _NICE_US:
        if step >= shortest:
            return step
    day = _NICE_US[-1]
    return math.ceil(shortest / day) * day


def bin_of(milliseconds: float) -> int:
    """The same as the expression in audit_figures.py; a test holds one against the other."""
    return math.floor(math.log10(max(milliseconds, LOWEST_MS)) * BINS_PER_DECADE)


def bin_edges_ms(number: int) -> tuple[float, float]:
    return 10 ** (number / BINS_PER_DECADE), 10 ** ((number + 1) / BINS_PER_DECADE)
