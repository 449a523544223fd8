"""When to ask a second bookie: after a time in which most reads of late were answered.

Delay:     the given percentile of the last reads, within bounds. Until enough were seen: the upper bound.
Cost:      the samples are sorted once in `_REFRESH_EVERY` reads, not for each.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_SAMPLES_MAX: Final = 256
_SAMPLES_MIN: Final = 16
_REFRESH_EVERY: Final = 16


class Speculation:
    def __init__(self, *, percentile: int, min_s: float, max_s: float) -> None:
        assert 0 < percentile <= 100
        assert 0 <= min_s <= max_s
        self._percentile = percentile
        self._min_s = min_s
        self._max_s = max_s
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._since_refresh = 0
        self.delay_s = max_s

    def on_answer(self, seconds: float) -> None:
        """A read was answered after this time, by whichever bookie was the first."""
        self._samples.append(seconds)
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH_EVERY and len(self._samples) >= _SAMPLES_MIN:
            self._since_refresh = 0
            ordered = sorted(self._samples)
            at = min(len(ordered) - 1, len(ordered) * self._percentile // 100)
            self.delay_s = min(self._max_s, max(self._min_s, ordered[at]))
