"""Writing a compacted ledger: entries in order, a bounded number of them under way."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from magnetar.errors import MagnetarError
from magnetar.ledger.writer import LedgerWriter

_WRITES_MAX: Final = 500
_WRITE_BYTES_MAX: Final = 16 * 2**20


class CompactedOutput:
    """`put` waits for the oldest when there is too much; `flush` waits for all. The first error ends it."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.entries = 0
        self._writer = writer
        self._pending: deque[tuple[asyncio.Future[int], int]] = deque()
        self._bytes = 0

    async def put(self, data: bytes) -> None:
        self._pending.append((self._writer.enqueue(data), len(data)))
        self._bytes += len(data)
        self.entries += 1
        while len(self._pending) > _WRITES_MAX or self._bytes > _WRITE_BYTES_MAX:
            await self._oldest()

    async def flush(self) -> None:
        while self._pending:
            await self._oldest()

    async def _oldest(self) -> None:
        future, size = self._pending.popleft()
        self._bytes -= size
        try:
            await future
        except MagnetarError:
            for other, _ in self._pending:
                other.cancel()
            raise
