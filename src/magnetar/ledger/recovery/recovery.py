"""Recovery: takes a ledger from its writer, finds out where it ends, and closes it there.

Order:     1. IN_RECOVERY by compare-and-set: from now on the old writer cannot change the ensemble.
           2. Fence every bookie of the last ensemble, until no write set has Qa that did not answer: from now on the
              old writer cannot get an entry acknowledged. The answers give the highest LAC.
           3. Read on after the LAC, fencing, from the ensemble as it was in 1. Found on one bookie: it may have been
              acknowledged, so it is kept, and written again to its whole write set. Missing on Qw − Qa + 1: certainly
              not acknowledged, so the ledger ends before it. Neither: give up; nothing was decided, nothing changes.
           4. CLOSED with last entry, length and the bookies that had to be replaced: one compare-and-set.
Invariant: A ledger is closed once. A recovery may end at any point, and any number may run side by side. They write
           what they found, and only the close decides; a recovery that loses it accepts what is stored.
Limits:    `ledger.recovery_timeout_ms` for 2 and 3; a limited number of tries, with pauses, for 1 and 4.
           `WriteBack` has the limits of a writer: `ledger.adds_in_flight_max` and `ledger.add_bytes_in_flight_max`; the
           engine has the time-outs.
Read next: fence.py, reads.py, ledger/writing/engine.py, quorum/coverage.py (which entries are kept)
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from magnetar.errors import ClosedError, LedgerRecoveryError, MagnetarError, WrongPasswordError
from magnetar.ids import EntryId
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import ChangeInMemory, LedgerKeys, compare_and_set, is_same_fragment
from magnetar.ledger.reading.lac import lac_floor
from magnetar.ledger.reading.reads import EntryReads
from magnetar.ledger.recovery.fence import Fenced, fence
from magnetar.ledger.recovery.reads import RecoveryReads
from magnetar.ledger.writing.engine import WriteEngine
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState, Versioned
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.frames import Flag


class _Engine(WriteEngine[None]):
    def _advance_lac(self) -> None:
        """Keeps the LAC as it was when recovery began."""


class WriteBack:
    """Writes what was found again, each entry to its whole write set, with the flag that passes the fence.

    All of these entries carry the LAC with which recovery began. If they carried a later one, and this recovery ended
    before it closed the ledger, the next would believe that they are committed; but perhaps only bookies that no
    metadata names have them, since recovery's ensemble changes are kept in memory. Each carries the length with which
    it was found: every copy of an entry has the same. Is made when the first entry was found; ended by `aclose`.
    """

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

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[None]) -> None:  # noqa: ARG002
        self.confirmed += len(tokens)
        self._moved.set()

    def on_failed(self, tokens: Sequence[None], error: MagnetarError) -> None:  # noqa: ARG002
        self._moved.set()

    def on_room(self) -> None:
        self._moved.set()


log = logging.getLogger(__name__)


def first_to_read(metadata: LedgerMetadata, lac: int) -> EntryId:
    """Returns the first entry that is not known to be committed: by the LAC, or by a fragment that another one follows.

    Recovery never reads an older fragment: its entries have their copies, and rewriting them would need an ensemble
    change in the middle of the ledger.
    """
    return EntryId(max(lac, lac_floor(metadata)) + 1)


def in_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
    """Makes the old writer's ensemble changes fail from here on."""
    assert metadata.state is LedgerState.OPEN
    return replace(metadata, state=LedgerState.IN_RECOVERY)


def closed(metadata: LedgerMetadata, last_entry_id: int, length: int) -> LedgerMetadata:
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=EntryId(last_entry_id), length=length)


class Lost(enum.Enum):
    """What it means for a recovery that the metadata has changed since it began."""

    OTHERS_CLOSED = "another client closed the ledger: that is the truth, also if it differs"
    MERGE = "a bookie of an older fragment was swapped: the close goes on top of that"
    BEGIN_AGAIN = "the end of the ledger has changed: nothing that was found counts"


def resolve(began: LedgerMetadata, found: LedgerMetadata) -> Lost:
    """Compares: `began` is what this recovery read, in state IN_RECOVERY; `found` is what is stored now."""
    if found.is_closed:
        return Lost.OTHERS_CLOSED
    same_end = found.state is began.state and is_same_fragment(found.fragments[-1], began.fragments[-1])
    return Lost.MERGE if same_end else Lost.BEGIN_AGAIN


def merge(began: LedgerMetadata, changed: LedgerMetadata, found: LedgerMetadata) -> LedgerMetadata:
    """Returns `found` with the fragments that this recovery made of the last one: `changed` is `began` with them."""
    assert resolve(began, found) is Lost.MERGE
    own_from = len(began.fragments) - 1
    return replace(found, fragments=(*found.fragments[:-1], *changed.fragments[own_from:]))


_ROUNDS_MAX: Final = 3  # Whole recoveries, if others changed the end of the ledger meanwhile. One is normal.


class RecoveryProgress(NamedTuple):
    entry_id: int
    """The last entry that was found, or the LAC."""
    entries_found: int
    entries_confirmed: int


class _End(NamedTuple):
    last_entry_id: int
    length: int
    metadata: LedgerMetadata
    """The metadata as recovery began, with the replacements that it made."""


async def recover(
    known: Versioned[LedgerMetadata],
    keys: LedgerKeys,
    context: LedgerContext,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
) -> Versioned[LedgerMetadata]:
    """Returns the metadata of the closed ledger, whichever client closed it. `known` may be out of date.

    Raises LedgerRecoveryError if it stays in recovery and another try may succeed, WrongPasswordError if none will.
    """
    return await Recovery(keys, context, on_progress).run(known)


class Recovery:
    def __init__(
        self, keys: LedgerKeys, context: LedgerContext, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> None:
        self._keys = keys
        self._context = context
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
        """Returns the metadata marked as in recovery, by us or by another client, or closed."""

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            return in_recovery(found) if found.state is LedgerState.OPEN else None

        return await compare_and_set(known, decide, self._context.metadata)

    # --- 2 and 3: where does it end -----------------------------------------------------------------------------------

    async def _find_end_in_time(self, metadata: LedgerMetadata) -> _End:
        timeout_s = self._context.config.recovery_timeout_ms / 1000
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
        fenced = await fence(metadata, self._keys, self._context, until)
        first = first_to_read(metadata, fenced.lac)
        self._found = 0
        self._report_progress(first - 1, None)
        reads = RecoveryReads(metadata, first, self._keys, self._context, until, fenced)
        last: Entry | None = None
        writes: WriteBack | None = None
        try:
            while (entry := await reads.next()) is not None:
                if writes is None:
                    writes = WriteBack(metadata, self._keys, self._context, entry)
                    await writes.open()
                await writes.add(entry)
                last = entry
                self._found += 1
                self._report_progress(entry.entry_id, writes)
            if writes is None or last is None:
                return await self._end_at_lac(metadata, EntryId(first - 1), fenced)
            await writes.wait_confirmed()
            self._report_progress(last.entry_id, writes)
            return _End(last.entry_id, last.length, writes.metadata)
        finally:
            try:
                if writes is not None:
                    await writes.aclose()
            finally:
                await reads.aclose()

    async def _end_at_lac(self, metadata: LedgerMetadata, last: EntryId, fenced: Fenced) -> _End:
        """Ends at the LAC, if no later entry was found. The length is in the last entry, which some bookie has."""
        if last == NO_ENTRY:
            return _End(last, 0, metadata)
        known = fenced.length_at(last)
        if known is None:
            context = self._context
            reads = EntryReads(self._keys, context.bookies, context.config, context.entropy)
            known = (await reads.read_chunk(metadata, last, last))[0].length
        return _End(last, known, metadata)

    def _report_progress(self, entry_id: int, writes: WriteBack | None) -> None:
        if self._on_progress is not None:
            self._on_progress(RecoveryProgress(entry_id, self._found, writes.confirmed if writes else 0))

    # --- 4: make it true ----------------------------------------------------------------------------------------------

    async def _close(self, began: Versioned[LedgerMetadata], end: _End) -> Versioned[LedgerMetadata]:
        """Returns what is stored: not closed if the end of the ledger has changed, and what we found does not count."""

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            match resolve(began.value, found):
                case Lost.MERGE:
                    return closed(merge(began.value, end.metadata, found), end.last_entry_id, end.length)
                case Lost.OTHERS_CLOSED | Lost.BEGIN_AGAIN:
                    return None

        stored = await compare_and_set(began, decide, self._context.metadata)
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
