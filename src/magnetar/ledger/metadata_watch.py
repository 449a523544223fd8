"""A reader's watch on the metadata of its ledger: one, however many tails come and go.

Why:       a watch cannot be taken back. It stays with the store until the metadata changes, and a ledger may stay as it
           is for very long.
Shared:    the one that is armed tells all who follow at that moment, and holds nobody else.
Read next: tailing.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.metadata.store import Watcher, WatchEvent


class MetadataWatch:
    def __init__(self, read: Callable[[Watcher | None], Awaitable[None]]) -> None:
        """`read` reads the metadata, with a watch if one is given."""
        self._read = read
        self._reading = asyncio.Lock()  # Two at a time would arm two.
        self._armed: _Arming | None = None
        self._followers: dict[Callable[[], object], None] = {}

    def follow(self, on_change: Callable[[], object]) -> None:
        """It is called when the metadata may have changed since the last `refresh`; until `leave`."""
        self._followers[on_change] = None

    def leave(self, on_change: Callable[[], object]) -> None:
        self._followers.pop(on_change, None)

    async def refresh(self) -> None:
        """Reads the metadata; of the change after that, those who follow are told."""
        async with self._reading:
            if self._armed is not None:  # It was armed before this read, so it hears of everything behind it.
                await self._read(None)
                return
            arming = _Arming(self._on_over)
            await self._read(arming.on_event)
            if not arming.is_over:  # Else the change was told before we heard of the read.
                self._armed = arming

    def _on_over(self, arming: _Arming) -> None:
        if self._armed is arming:
            self._armed = None
        for tell in list(self._followers):
            tell()


class _Arming:
    """One watch, which fires once."""

    __slots__ = ("_on_over", "is_over")

    def __init__(self, on_over: Callable[[_Arming], None]) -> None:
        self._on_over = on_over
        self.is_over = False

    def on_event(self, _event: WatchEvent) -> None:
        self.is_over = True
        self._on_over(self)
