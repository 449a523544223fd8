"""Garbage: ledgers that this bookie has and that were deleted from the metadata.

Invariant: nothing is deleted that the metadata knows. A ledger's metadata is made before its first entry. A ledger that
           the metadata knows stays, even if this bookie is in none of its ensembles: a copy of it may be in progress.
           Apache does the same unless it is configured to look for over-replicated ledgers.
Order:     local ledgers listed → metadata brought up to date → its ledgers listed → each that is missing there is asked
           for once more, directly → deleted. A ledger that is made during this is not in the first list, and one
           that the second list missed is found by the direct look.
Failure:   any error while looking keeps the ledger. Without a usable metadata session nothing is done at all.
Read next: magnetar/bookie/housekeeping.py
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from magnetar.errors import MetadataError, StorageDamagedError, TombstonesFullError
from magnetar.storage.ledger_storage import LedgerStorage

_log = logging.getLogger(__name__)


class LedgerCatalogue(Protocol):
    """The cluster's metadata, as garbage collection sees it. A result that is in doubt is an error."""

    @property
    def is_usable(self) -> bool: ...

    async def refresh(self) -> None:
        """Brings the metadata up to date: later reads are not older than this call."""

    def list(self) -> AsyncIterator[int]: ...

    async def exists(self, ledger_id: int) -> bool: ...


@dataclass(slots=True)
class GarbageStatistics:
    rounds: int = 0
    rounds_given_up: int = 0
    """Rounds without a usable session, or in which the metadata could not be listed."""
    ledgers: int = 0
    """Here, at the last round."""
    deleted: int = 0
    spared: int = 0
    """Ledgers that were missing in the list, but found by the direct look."""
    doubtful: int = 0
    """Ledgers that were kept because the direct look, or the deletion, failed."""


class GarbageCollector:
    def __init__(
        self,
        storage: LedgerStorage,
        catalogue: LedgerCatalogue,
        forget: Callable[[int], None],
        ledgers_max: int,
    ) -> None:
        """`forget` is called in the turn of the loop in which the ledger is deleted."""
        self._storage = storage
        self._catalogue = catalogue
        self._forget = forget
        self._ledgers_max = ledgers_max
        self.statistics = GarbageStatistics()

    async def collect(self) -> int:
        """One round; returns how many ledgers were deleted. What is beyond the limit waits for the next one."""
        if not self._catalogue.is_usable:
            self.statistics.rounds_given_up += 1
            return 0
        here = await self._storage.list_remembered()
        self.statistics.ledgers = len(here)
        try:
            missing = await self._missing(here)
        except MetadataError as error:
            _log.warning("deleted ledgers cannot be found: %s", error)
            self.statistics.rounds_given_up += 1
            return 0
        deleted = await self._delete(missing)
        self.statistics.rounds += 1
        return deleted

    async def _missing(self, here: list[int]) -> list[int]:
        if not here:
            return []
        await self._catalogue.refresh()
        missing = dict.fromkeys(here)
        async for ledger_id in self._catalogue.list():
            missing.pop(ledger_id, None)
        return list(missing)

    async def _delete(self, missing: list[int]) -> int:
        deleted = 0
        for ledger_id in missing:
            if deleted >= self._ledgers_max or not self._catalogue.is_usable:
                break
            if not await self._is_gone(ledger_id):
                continue
            try:
                await self._storage.delete_ledger(ledger_id)
            except (TombstonesFullError, StorageDamagedError) as error:
                _log.warning("ledger %d is kept: %s", ledger_id, error)
                self.statistics.doubtful += 1
                continue  # The others can still go.
            self._forget(ledger_id)
            deleted += 1
            self.statistics.deleted += 1
        return deleted

    async def _is_gone(self, ledger_id: int) -> bool:
        try:
            exists = await self._catalogue.exists(ledger_id)
        except MetadataError as error:
            _log.warning("ledger %d is kept, its metadata cannot be read: %s", ledger_id, error)
            self.statistics.doubtful += 1
            return False
        if exists:
            self.statistics.spared += 1
        return not exists
