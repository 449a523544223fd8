"""Offload: a lane for calls that would block the loop, such as a blocking library or heavy CPU work.

Order:     calls of one lane run one after the other, in the order they were made.
Sharing:   the function and the loop share nothing but its arguments and its result.
Cancel:    what was handed over runs, in its turn and to its end, whether or not its caller still waits. A cancelled
           caller does not know the outcome.
Ending:    `aclose` waits for what was handed over; a call made after it raises ClosedError.
Read next: system_offload.py, and magnetar/testing/contracts/offload.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Offload(ABC):
    @abstractmethod
    async def __call__(self, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Runs the function off the loop and returns or raises what it does."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the lane when everything handed over has run. Again is harmless. The caller brings the timeout."""
