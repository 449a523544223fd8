"""Takeover: a producer's name, or an Exclusive subscription, passes on from a connection that is dead.

A client whose network broke comes back at once, and the keep-alive takes a minute to find that its old connection is
dead. So the holder is pinged when another connection wants its place, and has `pulsar.liveness_check_timeout_ms` to
answer.

Order:     Other clients come while the newcomer waits: afterwards it checks again whether the place is free.
"""

from __future__ import annotations

from typing import Protocol


class Client(Protocol):
    """A connection that producers and consumers are on."""

    async def check_alive(self) -> bool:
        """Returns False when the client is dead; its connection is closed by then."""


async def is_dead(holder: Client, newcomer: Client) -> bool:
    """Asks the holder of a place that the newcomer wants. A connection that asks for its own place is not dead."""
    return holder is not newcomer and not await holder.check_alive()
