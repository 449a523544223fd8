"""The journal as requests use it: submit, or write and wait; and who is told when a group is durable.

Tokens:    a list of adds, or a future. One call per group: all answers of a group leave in one turn of the loop.
Failure:   whatever ends the bookie, of the journal or of another part, ends this: nobody is told any more that anything
           is durable, and nothing more is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.bookie.adds import Adds
from magnetar.bookie.journals import Front, Journals
from magnetar.errors import MagnetarError
from magnetar.runtime.disk import Buffer
from magnetar.storage.journal_format import RecordKind


class Records:
    def __init__(self) -> None:
        """`open_with` follows when the journals are open; nothing is written before."""
        self._journals: Journals | None = None
        self._front: Front | None = None
        self._failure: MagnetarError | None = None
        self.adds: Adds | None = None

    def open_with(self, journals: Journals) -> None:
        self._journals = journals
        self._front = journals.front

    def fail(self, error: MagnetarError) -> None:
        """Behind this, nobody is told that anything is durable."""
        self._failure = self._failure or error

    @property
    def has_room(self) -> bool:
        return self._open_front().has_room

    async def wait_for_room(self) -> None:
        await self._open_front().wait_for_room()

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        return self._open_front().submit(kind, chunks, token)

    async def write(self, kind: RecordKind, chunks: Sequence[Buffer]) -> None:
        """Returns when the record is durable, and with it everything submitted before of the same ledger."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open_front().submit(kind, chunks, durable)
        await durable

    async def write_nothing(self) -> None:
        """Returns when everything submitted before is durable, in all journals."""
        await self.wait_for_room()
        assert self._journals is not None
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        for journal in self._journals.all:
            waiting.append(loop.create_future())
            journal.submit(RecordKind.ADDS, (), waiting[-1])
        for durable in waiting:
            await durable

    def _open_front(self) -> Front:
        assert self._front is not None, "nothing is served before the journals are open"
        if self._failure is not None:
            raise self._failure
        return self._front

    def on_durable(self, tokens: list[object]) -> None:
        if self._failure is not None:
            return
        adds = self.adds
        assert adds is not None
        for token in tokens:
            if isinstance(token, list):
                adds.on_durable(token)
            elif isinstance(token, asyncio.Future) and not token.done():
                token.set_result(None)
        adds.on_group_written()
