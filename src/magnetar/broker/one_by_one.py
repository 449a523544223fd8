"""OneByOne: those who change the same thing wait for each other; others do not wait.

Not needed for safety, which compare-and-set has, but for peace: a hundred producers that bring the same new schema at
once would otherwise write a hundred ledgers, and throw away ninety-nine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.errors import MagnetarError


class OneByOne:
    def __init__(self) -> None:
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, key: str, timeout: float, late: MagnetarError) -> AsyncIterator[None]:
        """Waits for its turn, and raises `late` if that takes too long; what is done in it is not limited by it."""
        lock, users = self._turns.get(key, (asyncio.Lock(), 0))
        self._turns[key] = (lock, users + 1)
        try:
            try:
                async with asyncio.timeout(timeout):
                    await lock.acquire()
            except TimeoutError:
                raise late from None
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._turns[key]
            if users == 1:
                del self._turns[key]
            else:
                self._turns[key] = (lock, users - 1)

    def __len__(self) -> int:
        return len(self._turns)
