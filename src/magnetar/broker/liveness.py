"""Who has a place that another one wants, a producer's name or an Exclusive subscription, gives way if he is dead.

Why:       a client whose network broke comes back at once, and the keep-alive takes a minute to find its old connection
           dead. So that one is pinged when somebody wants its place, and has `pulsar.liveness_check_timeout_ms`.
Race:      whoever asks waits meanwhile, and others come: after it, it is seen anew whether the place is free.
"""

from __future__ import annotations

from typing import Protocol


class Client(Protocol):
    """A connection that producers and consumers are on."""

    async def check_alive(self) -> bool:
        """False when the client is gone; its connection is closed by then."""


async def gives_way(holder: Client, newcomer: Client) -> bool:
    """Never to itself: a connection that asks for something is not dead."""
    return holder is not newcomer and not await holder.check_alive()
