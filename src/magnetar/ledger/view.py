"""What one reader knows of a ledger: its metadata, and how far it is committed.

Invariant: neither goes back. Metadata of an older version and a smaller LAC are ignored, whoever brings them late.
           The LAC of a closed ledger is its last entry, and nothing moves it any more.
"""

from __future__ import annotations

import asyncio

from magnetar.ids import EntryId
from magnetar.ledger.lac import lac_floor
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.versioned import Versioned


class LedgerView:
    def __init__(self, stored: Versioned[LedgerMetadata]) -> None:
        self.metadata = stored.value
        self.version = stored.version
        self.lac = lac_floor(stored.value)
        self._failure: BaseException | None = None
        self._moved = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.metadata.is_closed

    def on_metadata(self, stored: Versioned[LedgerMetadata]) -> None:
        if stored.version <= self.version:
            return
        self.metadata, self.version = stored.value, stored.version
        if stored.value.is_closed:
            assert stored.value.last_entry_id >= self.lac, "a ledger was closed before an entry known to be committed"
            self.lac = stored.value.last_entry_id
            self._moved.set()
        else:
            self.on_lac(lac_floor(stored.value))

    def on_lac(self, lac: int) -> None:
        if lac > self.lac and not self.is_closed:
            self.lac = EntryId(lac)
            self._moved.set()

    def on_failure(self, error: BaseException) -> None:
        """Nothing more will be heard; whoever waits is told why."""
        self._failure = error
        self._moved.set()

    async def wait_beyond(self, entry_id: int) -> None:
        """Returns when the LAC is beyond this entry, or the ledger is closed and it never will be."""
        while self.lac <= entry_id and not self.is_closed:
            if self._failure is not None:
                raise self._failure
            self._moved.clear()
            await self._moved.wait()
