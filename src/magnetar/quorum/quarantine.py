"""Quarantine: a bookie that failed too often within a time gets no new ledgers for a time.

Invariant: failed requests of the last `interval_s` seconds count. While a bookie is set aside nothing is counted, and
           it returns with a count of zero: if it still fails, it is set aside again.
Limits:    `errors` moments per bookie, and TRACKED_MAX bookies; beyond that the one noted first is forgotten.
Threads:   times are seconds on any clock that does not go back, passed in with every call.
Read next: candidates.py
"""

from __future__ import annotations

from collections import deque

from magnetar.ids import BookieId

TRACKED_MAX = 10_000  # More bookies than any cluster has; ids that come and go must not fill the memory.


class Quarantine:
    def __init__(self, *, errors: int, interval_s: float, quarantine_s: float) -> None:
        """With `quarantine_s` 0 no bookie is ever set aside."""
        assert errors >= 1
        self._errors = errors
        self._interval_s = interval_s
        self._quarantine_s = quarantine_s
        self._failures: dict[BookieId, deque[float]] = {}
        self._until: dict[BookieId, float] = {}

    def on_error(self, bookie: BookieId, now: float) -> bool:
        """Notes a failed request. Returns whether this was the one that sets the bookie aside."""
        self._release_expired(now)
        if self._quarantine_s == 0 or bookie in self._until:
            return False
        failures = self._failures.setdefault(bookie, deque(maxlen=self._errors))
        failures.append(now)
        if len(failures) == self._errors and now - failures[0] <= self._interval_s:
            del self._failures[bookie]
            self._until[bookie] = now + self._quarantine_s
            _bound(self._until)
            return True
        _bound(self._failures)
        return False

    def quarantined(self, now: float) -> tuple[BookieId, ...]:
        """Returns the bookies that are set aside now, sorted."""
        self._release_expired(now)
        return tuple(sorted(self._until))

    def _release_expired(self, now: float) -> None:
        # Insertion order is order of expiry, as the time is the same for all: the first that stays ends the search.
        while self._until:
            bookie = next(iter(self._until))
            if self._until[bookie] > now:
                return
            del self._until[bookie]


def _bound(tracked: dict[BookieId, deque[float]] | dict[BookieId, float]) -> None:
    if len(tracked) > TRACKED_MAX:
        del tracked[next(iter(tracked))]
