"""Entropy: randomness and wall clock, the two things a replay must be able to repeat.

`loop.time()` is the clock for durations and deadlines; the wall clock here is only for timestamps that people or other
machines read, and it may jump.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from uuid import UUID


class Entropy(ABC):
    random: Random
    """For choices and jitter. In production it is the system's own generator and cannot be seeded."""

    @abstractmethod
    def uuid(self) -> UUID:
        """A random (version 4) identifier."""

    @abstractmethod
    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
