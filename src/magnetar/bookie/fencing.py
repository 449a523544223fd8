"""Fencing: a ledger is taken from its writer, for ever.

Invariant: nobody who asked for the fence gets any answer, "no such entry" and "no such ledger" included, before the
           fence is durable; also the second one who asks while the first fence is being written. From the moment of the
           request on, no plain add is accepted. A ledger never seen here is fenced all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from magnetar.bookie.ledgers import Ledger, LedgerTable
from magnetar.runtime.disk import Buffer
from magnetar.storage.journal_format import Fence, RecordKind, encode_fence
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.packet import MASTER_KEY_BYTES


class RecordSink(Protocol):
    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int: ...
    async def wait_for_room(self) -> None: ...


class Fencing:
    def __init__(self, table: LedgerTable, journal: RecordSink) -> None:
        self._table = table
        self._journal = journal
        self.fenced = 0

    async def fence(self, ledger_id: int, master_key: bytes) -> Code:
        """Returns when the fence is durable, or with EUA when the key is not the ledger's."""
        ledger = await self._table.load(ledger_id)
        await self._journal.wait_for_room()
        code = ledger.check_key(master_key)
        if code is not Code.EOK:
            return code
        if not ledger.flags.fenced:
            self._begin(ledger, master_key)
        if ledger.fencing is not None:
            await asyncio.shield(ledger.fencing)
        return Code.EOK

    def _begin(self, ledger: Ledger, master_key: bytes) -> None:
        """In one turn of the loop: no add is accepted, and no flush begins, between these lines."""
        assert len(master_key) == MASTER_KEY_BYTES, "refused by the decoder: nothing may change for its sake"
        self.fenced += 1
        ledger.fencing = asyncio.get_running_loop().create_future()
        self._table.fence(ledger, master_key)
        self._journal.submit(RecordKind.FENCE, (encode_fence(Fence(ledger.id, master_key)),), ledger.fencing)
