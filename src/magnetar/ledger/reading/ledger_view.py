"""What one reader knows of a ledger: its metadata, how far it is committed, and when the metadata changes.

Invariant: Neither goes back. Metadata of an older version and a smaller LAC are ignored. The LAC of a closed ledger is
           its last entry, and never moves.
Limits:    There is one watch per reader, however many tails it has. A watch cannot be cancelled: it stays with the
           store until the metadata changes, which may take very long. It calls the tails that follow at that moment,
           and keeps no others alive.
Read next: reader.py, tailing.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.ids import EntryId
from magnetar.ledger.reading.lac import lac_floor
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.metadata.store import Watcher, WatchEvent


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
        """Ends the view: every waiting caller gets the error."""
        self._failure = error
        self._moved.set()

    async def wait_beyond(self, entry_id: int) -> None:
        """Returns when the LAC is beyond this entry, or the ledger is closed and it never will be."""
        while self.lac <= entry_id and not self.is_closed:
            if self._failure is not None:
                raise self._failure
            self._moved.clear()
            await self._moved.wait()


class MetadataWatch:
    def __init__(self, read: Callable[[Watcher | None], Awaitable[None]]) -> None:
        """`read` reads the metadata, with a watch if one is given."""
        self._read = read
        self._reading = asyncio.Lock()  # Two reads at a time would set two watches.
        self._armed: _Arming | None = None
        self._followers: dict[Callable[[], object], None] = {}

    def follow(self, on_change: Callable[[], object]) -> None:
        """Calls `on_change` when the metadata may have changed since the last `refresh`, until `leave`."""
        self._followers[on_change] = None

    def leave(self, on_change: Callable[[], object]) -> None:
        self._followers.pop(on_change, None)

    async def refresh(self) -> None:
        """Reads the metadata; the next change after that is reported to the followers."""
        async with self._reading:
            if self._armed is not None:  # It was set before this read, so it reports every later change.
                await self._read(None)
                return
            arming = _Arming(self._on_over)
            await self._read(arming.on_event)
            if not arming.is_over:  # Otherwise the change was reported before this read returned.
                self._armed = arming

    def _on_over(self, arming: _Arming) -> None:
        if self._armed is arming:
            self._armed = None
        for tell in list(self._followers):
            tell()


class _Arming:
    """Is one watch, which fires once."""

    __slots__ = ("_on_over", "is_over")

    def __init__(self, on_over: Callable[[_Arming], None]) -> None:
        self._on_over = on_over
        self.is_over = False

    def on_event(self, _event: WatchEvent) -> None:
        self.is_over = True
        self._on_over(self)
