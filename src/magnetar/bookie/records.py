"""The journal as requests use it: submit, or write and wait; and who is told when a group is durable.

Tokens:    a list of adds, or a future. One call per group: all answers of a group leave in one turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from magnetar.bookie.adds import Adds
from magnetar.runtime.disk import Buffer
from magnetar.storage.journal import Journal
from magnetar.storage.journal_format import RecordKind


class Records:
    def __init__(self, journal: Callable[[], Journal]) -> None:
        """The journal is opened after those who use it were made, because replay needs some of them."""
        self._journal = journal
        self.adds: Adds | None = None

    @property
    def has_room(self) -> bool:
        return self._journal().has_room

    async def wait_for_room(self) -> None:
        await self._journal().wait_for_room()

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        return self._journal().submit(kind, chunks, token)

    async def write(self, kind: RecordKind, chunks: Sequence[Buffer]) -> None:
        """Returns when the record is durable, and with it everything submitted before."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._journal().submit(kind, chunks, durable)
        await durable

    async def write_nothing(self) -> None:
        """Returns when everything submitted before is durable."""
        await self.wait_for_room()
        await self.write(RecordKind.ADDS, ())

    def on_durable(self, tokens: list[object]) -> None:
        adds = self.adds
        assert adds is not None
        for token in tokens:
            if isinstance(token, list):
                adds.on_durable(token)
            elif isinstance(token, asyncio.Future) and not token.done():
                token.set_result(None)
        adds.on_group_written()
