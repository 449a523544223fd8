"""Runtime: the disks, lanes and entropy that a process hands to its components.

Invariant: `loop.time()` is the clock for durations and deadlines; the wall clock of `Entropy` is only for timestamps
           that people or other machines read, and it may jump. A replay must be able to repeat both.
Order:     the calls of one lane (`Offload`) run one after the other, in the order in which they were made.
Failure:   a call that was handed to a lane runs, in its turn and to its end, whether or not its caller still waits. A
           cancelled caller does not know the outcome. `aclose` waits for these calls; a later call raises ClosedError.
Threads:   a function on a lane and the loop share nothing but its arguments and its result.
Read next: disk.py, system.py; tests/contracts/offload.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack
from uuid import UUID

from magnetar.runtime.disk import Disk


class Entropy(ABC):
    random: Random
    """For choices and jitter. In production it is the system's own generator and cannot be seeded."""

    @abstractmethod
    def uuid(self) -> UUID:
        """Returns a random (version 4) identifier."""

    @abstractmethod
    def wall_ms(self) -> int:
        """Returns milliseconds since 1970-01-01 UTC."""


T = TypeVar("T")
Args = TypeVarTuple("Args")


class Offload(ABC):
    @abstractmethod
    async def __call__(self, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Runs the function off the loop and returns or raises what it does."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the lane when all its calls have run. Repeated calls are harmless. The caller brings the timeout."""


class Runtime(ABC):
    entropy: Entropy
    ordered_store: Callable[[str], Any] | None = None
    """Opens the simulated counterpart of the library that keeps sorted keys (storage/index/ordered_store.py). None: the
    real one, which has threads and files of its own that cannot be simulated."""

    @abstractmethod
    def disk(self, root: str, *, name: str) -> Disk:
        """Returns a disk with a thread of its own; the caller owns and closes it. `name` is the thread's name."""

    @abstractmethod
    def offload(self, *, name: str) -> Offload:
        """Returns a lane with a thread of its own; the caller owns and closes it."""
