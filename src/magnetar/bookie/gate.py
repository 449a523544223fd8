"""A gate: connections wait at it while something has no room, and go on when there is some again.

A connection that waits is not read, so its client is slowed down by TCP; what it brought stays in its buffer.
Patience:  a gate may be given some: when it stayed shut for longer, whoever waits goes on and is refused instead
           (`refuses`), until it opens.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

REOPEN_SHARE: Final = 0.8  # A gate opens when this much of its limit is left in use, so that it does not flutter.


class Holdable(Protocol):
    def hold(self) -> None: ...
    def release(self) -> None: ...


class Gate:
    def __init__(self, patience_s: float | None = None) -> None:
        self.is_shut = False
        self.refuses = False
        self.shut_times = 0
        self._patience_s = patience_s
        self._impatient: asyncio.TimerHandle | None = None
        self._waiting: list[Holdable] = []
        self._was_shut = asyncio.Event()

    async def wait_shut(self) -> None:
        """For whoever opens it again."""
        await self._was_shut.wait()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def shut(self) -> None:
        if self.is_shut:
            return
        self.is_shut = True
        self._was_shut.set()
        self.shut_times += 1
        if self._patience_s is not None:
            self._impatient = asyncio.get_running_loop().call_later(self._patience_s, self._lose_patience)

    def wait(self, connection: Holdable) -> None:
        """Once per time that the gate is shut, however often a connection comes."""
        if self.is_shut and not self.refuses and connection not in self._waiting:
            self._waiting.append(connection)
            connection.hold()

    def open(self) -> None:
        if not self.is_shut:
            return
        self.is_shut = self.refuses = False
        self._was_shut.clear()
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None
        self._let_go()

    def close(self) -> None:
        """Nobody will open it; its patience ends with it."""
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None

    def forget(self, connection: Holdable) -> None:
        """It is closed."""
        if connection in self._waiting:
            self._waiting.remove(connection)

    def _lose_patience(self) -> None:
        self.refuses = True
        self._let_go()

    def _let_go(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.release()
