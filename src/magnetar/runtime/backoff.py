"""Pauses between tries: they double up to a bound, and are random, so clients that failed together retry apart."""

from __future__ import annotations

from random import Random


class Backoff:
    __slots__ = ("_first_s", "_longest_s", "_next_s", "_random")

    def __init__(self, random: Random, first_s: float = 0.02, longest_s: float = 5.0) -> None:
        self._random = random
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    def next_s(self) -> float:
        """Returns between half of the pause and all of it."""
        pause, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return pause * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        self._next_s = self._first_s
