"""Publisher: how a driver, or a sweeper, has a topic's broker publish what an intent names.

Made by:   broker/staged_publishing.py (inside a broker), whoever speaks HTTP to one (admin/staging.py answers)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Reached = Callable[[str, int], None]
"""Called with the name of a point of the protocol, and the epoch: tests end the process there."""


def nothing_reached(point: str, epoch: int) -> None:
    """Of production."""


class Publisher(Protocol):
    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        """Returns when all that the owner's intent of this epoch names for this topic is in it, durably, once.

        Asking again is harmless, also for an epoch that is long done. An error that is `retryable` is worth asking
        again; any other will be the same until somebody changes the topic.
        """

    async def forget(self, topic: str, owner: str) -> None:
        """The topic need not remember this owner any more. Only after its last epoch is done everywhere."""
