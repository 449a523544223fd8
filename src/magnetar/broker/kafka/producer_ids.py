"""Ids of idempotent producers, which are never given twice in a cluster: each broker takes blocks of them.

Format:    /magnetar/kafka/producer-ids is `{"next": n}`. A block that was taken with an unknown outcome is skipped.
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.broker.resources.documents import Document, Documents

_PATH: Final = "/magnetar/kafka/producer-ids"
_BLOCK: Final = 1_000
_NEXT: Final = "next"


class ProducerIds:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._next = 0
        self._end = 0
        self._turn = asyncio.Lock()

    async def take(self) -> int:
        async with self._turn:
            if self._next == self._end:
                taken = await self._documents.update_or_create(_PATH, _advanced)
                self._end = int(taken[_NEXT])
                self._next = self._end - _BLOCK
            self._next += 1
            return self._next - 1


def _advanced(found: Document | None) -> Document:
    return {_NEXT: int((found or {}).get(_NEXT, 0)) + _BLOCK}
