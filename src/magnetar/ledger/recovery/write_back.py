"""Writing back what recovery found: each entry again to its whole write set, with the flag that passes the fence.

Invariant: All of these entries carry the LAC with which recovery began. If they carried a later one, and this recovery
           ended before it closed the ledger, the next would believe that they are committed; but perhaps only bookies
           that no metadata names have them, since recovery's ensemble changes are kept in memory. Each carries the
           length with which it was found: every copy of an entry has the same.
Limits:    `ledger.adds_in_flight_max` and `ledger.add_bytes_in_flight_max`; the engine has the time-outs.
Read next: ledger/writing/engine.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from magnetar.errors import ClosedError, MagnetarError
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata.ensemble_change import ChangeInMemory
from magnetar.ledger.metadata.keys import LedgerKeys
from magnetar.ledger.writing.engine import WriteEngine
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.frames import Flag


class _Engine(WriteEngine[None]):
    def _advance_lac(self) -> None:
        """Keeps the LAC as it was when recovery began."""


class WriteBack:
    """Is made when the first entry was found; ended by `aclose`."""

    def __init__(self, metadata: LedgerMetadata, keys: LedgerKeys, context: LedgerContext, first: Entry) -> None:
        self.confirmed = 0
        self._moved = asyncio.Event()
        self._change = ChangeInMemory(metadata)
        self._engine = _Engine(
            keys,
            self._change,
            context.bookies,
            context.placement,
            context.config,
            context.entropy,
            self,
            first_entry_id=first.entry_id,
            length=first.length - len(first.payload),
            flags=Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY,
        )

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata with the bookies that had to be replaced."""
        return self._change.metadata

    async def open(self) -> None:
        await self._engine.open()

    async def add(self, entry: Entry) -> None:
        """Adds entries in order; returns when the entry is taken, not when it is stored."""
        engine = self._engine
        if engine.error is not None or not engine.has_room:
            await self._until(lambda: engine.has_room)
        assert entry.entry_id == engine.pending.next_entry_id
        self._set_length(entry.length - len(entry.payload))
        engine.submit(entry.payload, None)

    def _set_length(self, before: int) -> None:
        """Sets the length before the entry. For a writer that numbers its own entries this is the sum it has anyway."""
        pending = self._engine.pending
        difference = before - pending.length
        pending.length += difference
        pending.confirmed_length += difference

    async def wait_confirmed(self) -> None:
        """Returns when all that were added are on enough bookies."""
        await self._until(lambda: not len(self._engine.pending))

    async def aclose(self) -> None:
        await self._engine.aclose(ClosedError("recovery has ended"))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            if self._engine.error is not None:
                raise self._engine.error
            if condition():
                return
            self._moved.clear()
            await self._moved.wait()

    # --- called by the engine -----------------------------------------------------------------------------------------

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[None]) -> None:  # noqa: ARG002
        self.confirmed += len(tokens)
        self._moved.set()

    def on_failed(self, tokens: Sequence[None], error: MagnetarError) -> None:  # noqa: ARG002
        self._moved.set()

    def on_room(self) -> None:
        self._moved.set()
