"""KeyedLock: a lock for each key. Tasks that want the same key wait for each other; others do not wait.

    async with locks.hold(name, timeout_s, late=SchemaUnavailableError("…")):
        ...

Purpose:   it saves work; safety comes from compare-and-set: a hundred producers that bring the same new schema at once
           would otherwise write a hundred ledgers, and delete ninety-nine of them.
Order:     first come, first served.
Limits:    the wait has a timeout; the work under the lock has none. A key that no task holds or waits for takes no
           memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.errors import MagnetarError


class KeyedLock:
    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """Key → its lock, and how many hold it or wait for it."""

    @asynccontextmanager
    async def hold(self, key: str, timeout_s: float, late: MagnetarError) -> AsyncIterator[None]:
        """Raises `late` if the lock cannot be taken within the timeout."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await lock.acquire()
            except TimeoutError:
                raise late from None
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    def __len__(self) -> int:
        """Returns the number of keys that are held or waited for."""
        return len(self._locks)
