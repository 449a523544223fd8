"""Recovery: takes a ledger from its writer, finds out where it ends, and closes it there.

Steps:     1. IN_RECOVERY by compare-and-set: from now on the old writer cannot change the ensemble.
           2. Fence every bookie of the last ensemble, until no write set has Qa that did not answer: from now on the
              old writer cannot get an entry acknowledged. The answers tell the highest LAC.
           3. Read on behind the LAC, fencing, from the ensemble as it was in 1. Found on one bookie: it may have been
              acknowledged, so it is kept, and written again to its whole write set. Missing on Qw − Qa + 1: certainly
              not acknowledged, so the ledger ends before it. Neither: give up; nothing was decided, nothing changes.
           4. CLOSED with last entry, length and the bookies that had to be replaced meanwhile: one compare-and-set.
Safe:      a recovery may end at any point, and any number may run side by side. What they write is what they found, and
           only the close makes a decision true. Who loses it takes what is there.
Bound:     `ledger.recovery_timeout_ms` for 2 and 3; a limited number of tries, with pauses, for 1 and 4.
Read next: recovery_decisions.py, fence.py, recovery_reads.py, write_back.py, docs/ledger-protocol.md
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.errors import LedgerRecoveryError, MagnetarError, WrongPasswordError
from magnetar.ids import EntryId
from magnetar.ledger.compare_and_set import compare_and_set
from magnetar.ledger.fence import Fenced, fence
from magnetar.ledger.keys import LedgerKeys
from magnetar.ledger.parts import Parts
from magnetar.ledger.reads import EntryReads
from magnetar.ledger.recovery_decisions import Lost, closed, first_to_read, in_recovery, merge, resolve
from magnetar.ledger.recovery_reads import RecoveryReads
from magnetar.ledger.write_back import WriteBack
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.wire.bookkeeper.digests import Entry

log = logging.getLogger(__name__)

_ROUNDS_MAX: Final = 3  # Whole recoveries, because the end of the ledger changed under our hands. One is normal.


class RecoveryProgress(NamedTuple):
    entry_id: int
    """The last entry that was found, or the LAC."""
    entries_found: int
    entries_confirmed: int


class _End(NamedTuple):
    last_entry_id: int
    length: int
    metadata: LedgerMetadata
    """As recovery began, with the replacements that it made."""


async def recover(
    known: Versioned[LedgerMetadata],
    keys: LedgerKeys,
    parts: Parts,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
) -> Versioned[LedgerMetadata]:
    """The metadata of the closed ledger, whoever closed it. `known` may be out of date.

    LedgerRecoveryError: it stays in recovery, and another try may succeed. WrongPasswordError: it will not.
    """
    return await Recovery(keys, parts, on_progress).run(known)


class Recovery:
    def __init__(
        self, keys: LedgerKeys, parts: Parts, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> None:
        self._keys = keys
        self._parts = parts
        self._on_progress = on_progress
        self._found = 0

    async def run(self, known: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
        for _ in range(_ROUNDS_MAX):
            began = await self._begin(known)
            if began.value.is_closed:
                return began
            end = await self._find_end_in_time(began.value)
            known = await self._close(began, end)
            if known.value.is_closed:
                return known
        raise self._undecided("its end was changed by others again and again")

    # --- 1: take it ---------------------------------------------------------------------------------------------------

    async def _begin(self, known: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
        """Marked as in recovery, by us or by another; or closed."""

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            return in_recovery(found) if found.state is LedgerState.OPEN else None

        return await compare_and_set(known, decide, self._parts.metadata)

    # --- 2 and 3: where does it end -----------------------------------------------------------------------------------

    async def _find_end_in_time(self, metadata: LedgerMetadata) -> _End:
        timeout_s = self._parts.config.recovery_timeout_ms / 1000
        until = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(until):
                return await self._find_end(metadata, until)
        except TimeoutError:
            raise self._undecided(f"it took longer than {timeout_s:g} s (ledger.recovery_timeout_ms)") from None
        except (LedgerRecoveryError, WrongPasswordError):
            raise
        except MagnetarError as error:
            raise self._undecided(str(error)) from error

    async def _find_end(self, metadata: LedgerMetadata, until: float) -> _End:
        fenced = await fence(metadata, self._keys, self._parts, until)
        first = first_to_read(metadata, fenced.lac)
        self._found = 0
        self._tell(first - 1, None)
        reads = RecoveryReads(metadata, first, self._keys, self._parts, until, fenced)
        last: Entry | None = None
        writes: WriteBack | None = None
        try:
            while (entry := await reads.next()) is not None:
                if writes is None:
                    writes = WriteBack(metadata, self._keys, self._parts, entry)
                    await writes.open()
                await writes.add(entry)
                last = entry
                self._found += 1
                self._tell(entry.entry_id, writes)
            if writes is None or last is None:
                return await self._end_at_lac(metadata, EntryId(first - 1), fenced)
            await writes.wait_confirmed()
            self._tell(last.entry_id, writes)
            return _End(last.entry_id, last.length, writes.metadata)
        finally:
            try:
                if writes is not None:
                    await writes.aclose()
            finally:
                await reads.aclose()

    async def _end_at_lac(self, metadata: LedgerMetadata, last: EntryId, fenced: Fenced) -> _End:
        """Nothing was found behind the LAC. The length is in the last entry, wherever that is."""
        if last == NO_ENTRY:
            return _End(last, 0, metadata)
        known = fenced.length_at(last)
        if known is None:
            parts = self._parts
            reads = EntryReads(self._keys, parts.bookies, parts.config, parts.entropy)
            known = (await reads.read_chunk(metadata, last, last))[0].length
        return _End(last, known, metadata)

    def _tell(self, entry_id: int, writes: WriteBack | None) -> None:
        if self._on_progress is not None:
            self._on_progress(RecoveryProgress(entry_id, self._found, writes.confirmed if writes else 0))

    # --- 4: make it true ----------------------------------------------------------------------------------------------

    async def _close(self, began: Versioned[LedgerMetadata], end: _End) -> Versioned[LedgerMetadata]:
        """What is stored then: not closed if the end of the ledger is another, and what we found does not count."""

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            match resolve(began.value, found):
                case Lost.MERGE:
                    return closed(merge(began.value, end.metadata, found), end.last_entry_id, end.length)
                case Lost.OTHERS_CLOSED | Lost.BEGIN_AGAIN:
                    return None

        stored = await compare_and_set(began, decide, self._parts.metadata)
        log.info(
            "a recovery ended",
            extra={
                "ledger_id": self._keys.ledger_id,
                "found": end.last_entry_id,
                "state": stored.value.state.name,
                "last_entry": stored.value.last_entry_id,
            },
        )
        return stored

    def _undecided(self, why: str) -> LedgerRecoveryError:
        return LedgerRecoveryError(
            f"ledger {self._keys.ledger_id} was not recovered: {why}. It is not closed, and its entries are as they "
            "were: try again"
        )
