"""Finds the ledgers of a bookie, and marks ledgers with the reason and the time.

Order:     the mark first, then its note: a ledger without a note is repaired all the same.
Limits:    a number of ledgers whose metadata is read at a time, and of marks that are written.
Read next: metadata/bookkeeper/underreplication.py, metadata/bookkeeper/recovery_nodes.py
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Final

from magnetar.autorecovery.fragments import bookies_with_entries
from magnetar.errors import MalformedMetadataError, MetadataError, NoSuchLedgerError, OutcomeUnknownError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.recovery_nodes import RecoveryNotes
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.runtime.gather import gather_bounded

log = logging.getLogger(__name__)

READS_AT_ONCE: Final = 64
_MARKS_AT_ONCE: Final = 16
_MARK_TRIES_MAX: Final = 3


async def in_batches(ids: AsyncIterator[LedgerId], size: int) -> AsyncIterator[list[LedgerId]]:
    batch: list[LedgerId] = []
    async for each in ids:
        batch.append(each)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def metadata_if_exists(ledgers: LedgerMetadataStore, ledger_id: LedgerId) -> LedgerMetadata | None:
    """Returns None for a ledger that was deleted, or whose metadata cannot be understood, which is logged."""
    try:
        return (await ledgers.read(ledger_id)).value
    except NoSuchLedgerError:
        return None
    except MalformedMetadataError as error:
        log.warning("a ledger is left out: %s", error, extra={"ledger_id": ledger_id})
        return None


async def ledgers_by_bookie(
    ledgers: LedgerMetadataStore, is_wanted: Callable[[BookieId], bool]
) -> dict[BookieId, list[LedgerId]]:
    """Reads the metadata of all ledgers. Returns, for each wanted bookie, those of which it has entries, or may get
    some."""
    found: dict[BookieId, list[LedgerId]] = {}
    async for batch in in_batches(ledgers.list(), READS_AT_ONCE):
        works = [partial(metadata_if_exists, ledgers, ledger_id) for ledger_id in batch]
        for metadata in await gather_bounded(works, READS_AT_ONCE):
            if metadata is None:
                continue
            for bookie in sorted(bookies_with_entries(metadata)):
                if is_wanted(bookie):
                    found.setdefault(bookie, []).append(metadata.ledger_id)
    return found


class Marker:
    def __init__(self, marks: UnderreplicationMarks, notes: RecoveryNotes, wall_ms: Callable[[], int]) -> None:
        self._marks = marks
        self._notes = notes
        self._wall_ms = wall_ms
        self.marked = 0
        """How often a mark was new, or named a bookie that it had not named."""

    async def mark(self, ledger_id: LedgerId, reasons: Mapping[BookieId, str]) -> bool:
        """Reports whether anything was new. `reasons`: bookie → why its copies are missing or of no use."""
        now_ms = self._wall_ms()
        try:
            if not await self._try_mark(ledger_id, list(reasons), now_ms):
                return False
        except MalformedMetadataError as error:  # One such mark must not keep all other ledgers from theirs.
            log.error("a ledger cannot be marked: delete its mark: %s", error, extra={"ledger_id": ledger_id})
            return False
        self.marked += 1
        try:
            await self._notes.change(ledger_id, lambda note: note.with_reasons(reasons, now_ms))
        except MetadataError as error:
            log.info("a mark has no note", extra={"ledger_id": ledger_id, "why": str(error)})
        return True

    async def _try_mark(self, ledger_id: LedgerId, bookies: list[BookieId], now_ms: int) -> bool:
        for _ in range(_MARK_TRIES_MAX - 1):
            try:
                return await self._marks.mark(ledger_id, bookies, now_ms)
            except OutcomeUnknownError:  # Marking once more does no harm.
                continue
        return await self._marks.mark(ledger_id, bookies, now_ms)

    async def mark_ledgers_of(self, index: Mapping[BookieId, list[LedgerId]], reasons: Mapping[BookieId, str]) -> int:
        """Marks all ledgers of these bookies; each ledger once, with all of its reasons. Returns how many were new."""
        by_ledger: dict[LedgerId, dict[BookieId, str]] = {}
        for bookie, why in reasons.items():
            for ledger_id in index.get(bookie, []):
                by_ledger.setdefault(ledger_id, {})[bookie] = why
        works = [partial(self.mark, ledger_id, each) for ledger_id, each in by_ledger.items()]
        return sum(await gather_bounded(works, _MARKS_AT_ONCE))
