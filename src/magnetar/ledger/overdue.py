"""Whether something is waited for too long, from two totals that are looked at now and then.

Why:       a time for every entry would cost more than the entry. If of the n things begun by a certain moment fewer
           than n are done now, at least one of them is that old.
Exact to:  the distance between two looks, on the patient side.
"""

from __future__ import annotations

from collections import deque


class Overdue:
    __slots__ = ("_marks", "_patience_s")

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._marks: deque[tuple[float, int]] = deque()
        """When so many had been begun; both rise. Only marks that are not fulfilled are kept."""

    def look(self, now: float, begun: int, done: int) -> bool:
        """Both totals only rise. True if something begun `patience_s` ago or earlier is not done."""
        marks = self._marks
        while marks and marks[0][1] <= done:
            marks.popleft()
        if begun > done and (not marks or marks[-1][1] < begun):
            marks.append((now, begun))
        return bool(marks) and now - marks[0][0] >= self._patience_s

    def forget(self) -> None:
        """The totals begin anew."""
        self._marks.clear()
