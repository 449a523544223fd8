"""Checks of ledgers that no bookie's loss has caused: each bookie is asked whether it has what it should have.

Order:     one ledger at a time is looked at as far as it may be repaired (fragments.py). Positions of bookies that are
           not registered are left to the watch for losses; bookies that do not answer are left to the next check.
Read next: auditor.py, examine.py
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from magnetar.autorecovery.examine import Examiner, entry_bytes, requests_share
from magnetar.autorecovery.fragments import Fault, settled_fragments
from magnetar.autorecovery.marking import Marker, in_batches, metadata_if_exists
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair import RepairTools
from magnetar.errors import LacUnknownError
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.metadata import stored_keys
from magnetar.ledger.reading.lac import reported_lac, sizes_of
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata
from magnetar.quorum.candidates import Topology
from magnetar.quorum.placement import Adherence
from magnetar.runtime.gather import gather_bounded

log = logging.getLogger(__name__)

_LEDGERS_AT_ONCE: Final = 8


@dataclass(slots=True)
class CheckTotals:
    ledgers: int = 0
    entries: int = 0
    """Copies that were verified."""
    faulty: int = 0
    """Ledgers with a copy that is missing or damaged."""
    marked: int = 0


class LedgerChecks:
    def __init__(self, tools: RepairTools, marker: Marker) -> None:
        self._tools = tools
        self._context = tools.context
        self._marker = marker

    async def check(
        self,
        ids: AsyncIterator[LedgerId],
        *,
        every_entry: bool,
        rate: ByteRate,
        on_progress: Callable[[CheckTotals], None] = lambda _: None,
    ) -> CheckTotals:
        """Examines ledgers, and marks those with faults."""
        totals = CheckTotals()
        async for batch in in_batches(ids, _LEDGERS_AT_ONCE):
            works = [partial(self._check, ledger_id, totals, every_entry, rate) for ledger_id in batch]
            await gather_bounded(works, _LEDGERS_AT_ONCE)
            on_progress(totals)
        return totals

    async def _check(self, ledger_id: LedgerId, totals: CheckTotals, every_entry: bool, rate: ByteRate) -> None:
        metadata = await metadata_if_exists(self._context.ledgers, ledger_id)
        if metadata is None:
            return
        reasons = await self.faults(metadata, totals, every_entry=every_entry, rate=rate)
        totals.ledgers += 1
        if reasons:
            totals.faulty += 1
            totals.marked += await self._marker.mark(ledger_id, reasons)

    async def faults(
        self, metadata: LedgerMetadata, totals: CheckTotals, *, every_entry: bool, rate: ByteRate
    ) -> dict[BookieId, str]:
        keys = stored_keys(metadata)
        if keys is None:
            return {}
        try:
            lac = await reported_lac(metadata, keys, self._context) if not metadata.is_closed else NO_ENTRY
        except LacUnknownError:
            lac = NO_ENTRY
        roster = self._tools.roster
        examiner = Examiner(
            keys,
            self._context,
            rate,
            is_serving=roster.is_serving,
            is_draining=lambda _: False,
            run_bytes_max=self._tools.config.chunk_bytes_max,
            run_entries_max=requests_share(self._context, _LEDGERS_AT_ONCE),
            entry_bytes=entry_bytes(metadata),
        )
        reasons: dict[BookieId, str] = {}
        for fragment in settled_fragments(metadata, lac):
            for defect in await examiner.defects(fragment, lambda _: every_entry):
                if defect.fault is Fault.MISSING:
                    reasons[fragment.ensemble[defect.position]] = f"a check found: {defect.fault.value}"
        totals.entries += examiner.entries_verified
        return reasons

    async def misplaced(self, ids: AsyncIterator[LedgerId]) -> list[LedgerId]:
        """Returns the closed ledgers whose bookies break the rules of placement that protect their entries."""
        found: list[LedgerId] = []
        topology = self._context.bookies.candidates().topology
        async for batch in in_batches(ids, _LEDGERS_AT_ONCE):
            works = [partial(metadata_if_exists, self._context.ledgers, ledger_id) for ledger_id in batch]
            known = [metadata for metadata in await gather_bounded(works, _LEDGERS_AT_ONCE) if metadata is not None]
            closed = [metadata for metadata in known if metadata.is_closed]
            found += [metadata.ledger_id for metadata in closed if self._is_misplaced(metadata, topology)]
        return found

    def _is_misplaced(self, metadata: LedgerMetadata, topology: Topology) -> bool:
        sizes = sizes_of(metadata)
        adherence = self._context.placement.adherence
        return any(adherence(fragment.ensemble, sizes, topology) is Adherence.FAIL for fragment in metadata.fragments)
