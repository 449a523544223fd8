"""Repairs one ledger: looks at its fragments, copies what is missing, changes the metadata, and looks again.

Order:     for each fragment: examine → choose bookies by the placement rules → copy → wait until every copy is durable
           → put the new bookies into the fragment by compare-and-set. After all fragments, the metadata is read again
           and every fragment examined again. Only a ledger that passes this second look is repaired.
Invariant: the metadata never names a bookie that does not have, durably, every entry of its position. Nothing is ever
           deleted, and no copy is given up before another one has taken its place. Of two workers that repair the same
           fragment one commits, since the compare-and-set of the other finds another bookie at the position.
           An open ledger's last fragments are not touched: the outcome is NEEDS_CLOSE, and after a grace time the
           worker has the ledger fenced and closed (`close`).
Failure:   entries that are on no bookie make the ledger UNREPAIRABLE; its other fragments are repaired anyway. What may
           pass by itself (too few bookies, a bookie that does not answer, metadata that is changed by others) gives
           WAIT, with the reason.
Read next: fragments.py, examine.py, copy.py; worker.py (the caller)
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from magnetar.autorecovery.copy import CopyProgress, FragmentCopier
from magnetar.autorecovery.examine import Examiner, entry_bytes, requests_share
from magnetar.autorecovery.fragments import (
    Defect,
    Fault,
    FragmentRange,
    Targets,
    bookies_of_fragment,
    entries_without,
    ranges_text,
    settled_fragments,
    swapped,
    unsettled_numbers,
)
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.roster import Roster
from magnetar.config.recovery import RecoveryConfig
from magnetar.errors import (
    CopyFailedError,
    LacUnknownError,
    LedgerError,
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RepairOvertakenError,
)
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys, compare_and_set, stored_keys
from magnetar.ledger.reading.lac import reported_lac, sizes_of
from magnetar.ledger.recovery.recovery import recover
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata, Versioned
from magnetar.quorum.candidates import Candidates

log = logging.getLogger(__name__)

_TARGETS_TRIES_MAX = 3  # Bookies that take no copies: others are chosen this many times in one try.


class OutcomeKind(enum.Enum):
    REPAIRED = "repaired"
    DELETED = "deleted"
    NEEDS_CLOSE = "needs to be closed"
    WAIT = "waits"
    UNREPAIRABLE = "unrepairable"


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: OutcomeKind
    why: str = ""
    entries: str = ""
    """The entries that are lost."""
    ledger_version: int | None = None
    """Of REPAIRED: the version of the metadata that was looked at last."""
    lac: int = NO_ENTRY
    """Of NEEDS_CLOSE: up to where the end of the ledger was looked at."""


@dataclass(frozen=True, slots=True)
class RepairTools:
    """What all repairs of one process share."""

    context: LedgerContext
    config: RecoveryConfig
    roster: Roster
    copy_rate: ByteRate
    read_rate: ByteRate


@dataclass(slots=True)
class _Found:
    """What one pass over a ledger met."""

    lost: dict[int, None] = field(default_factory=dict)
    lost_why: str = ""
    waits: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.waits


class LedgerRepair:
    """One try to repair one ledger."""

    def __init__(
        self,
        ledger_id: LedgerId,
        named: Collection[BookieId],
        tools: RepairTools,
        progress: CopyProgress,
        *,
        is_ours: Callable[[], bool] = lambda: True,
        is_patient: bool = True,
        old_lac: int | None = None,
    ) -> None:
        """`named`: the bookies that the mark names, of which every entry is examined. `is_ours`: whether the lock of
        the ledger is still held. `is_patient`: a silent bookie may still answer; otherwise it counts as lost.
        `old_lac`: the LAC before the grace time. A later entry may still be on its way to a slow bookie."""
        self._ledger_id = ledger_id
        self._named = frozenset(named)
        self._tools = tools
        self._context = tools.context
        self._progress = progress
        self._is_ours = is_ours
        self._is_patient = is_patient
        self._old_lac = old_lac
        self._refused: dict[BookieId, None] = {}
        """Bookies that took no copies during this try."""

    async def run(self) -> Outcome:
        try:
            return await self._run()
        except NoSuchLedgerError:
            return Outcome(OutcomeKind.DELETED)
        except (LedgerError, NotEnoughBookiesError, MetadataError) as error:
            return Outcome(OutcomeKind.WAIT, str(error))

    async def close(self) -> None:
        """Takes the ledger from its writer and closes it. Raises the reason if that cannot be decided."""
        stored = await self._context.ledgers.read(self._ledger_id)
        keys = stored_keys(stored.value)
        if keys is not None and not stored.value.is_closed:
            log.info("an open ledger is closed, to repair it", extra={"ledger_id": self._ledger_id})
            await recover(stored, keys, self._context)

    async def _run(self) -> Outcome:
        stored = await self._context.ledgers.read(self._ledger_id)
        keys = stored_keys(stored.value)
        if keys is None:
            why = "the metadata of this old ledger does not store its password, so its entries cannot be copied"
            return Outcome(OutcomeKind.UNREPAIRABLE, why)
        lac = await self._lac(stored.value, keys)
        found = _Found()
        for fragment in settled_fragments(stored.value, lac):
            stored = await self._repair(fragment, stored, keys, found)
        if found.lost:
            entries = ranges_text(sorted(found.lost))
            return Outcome(OutcomeKind.UNREPAIRABLE, f"no bookie has these entries: {found.lost_why}", entries)
        if found.waits:
            return Outcome(OutcomeKind.WAIT, "; ".join(dict.fromkeys(found.waits)))
        return await self._look_again(keys)

    async def _lac(self, metadata: LedgerMetadata, keys: LedgerKeys) -> int:
        if metadata.is_closed:
            return metadata.last_entry_id
        try:
            return await reported_lac(metadata, keys, self._context)
        except LacUnknownError:  # Then the fragment before the last one stays as it is.
            return NO_ENTRY

    # --- one fragment -------------------------------------------------------------------------------------------------

    async def _repair(
        self, fragment: FragmentRange, stored: Versioned[LedgerMetadata], keys: LedgerKeys, found: _Found
    ) -> Versioned[LedgerMetadata]:
        examiner = self._examiner(keys, stored.value)
        defects = self._judged(await examiner.defects(fragment, self._looks_at_all_of), fragment, found)
        if not defects:
            return stored
        if hopeless := self._without_copy(fragment, defects):
            found.lost.update(hopeless)
            found.lost_why = found.lost_why or self._lost_why(fragment)
            return stored
        self._progress.entries_to_copy += sum(_copies_of(defect, fragment) for defect in defects)
        for tries_left in reversed(range(_TARGETS_TRIES_MAX)):
            try:
                return await self._try_repair(fragment, defects, stored, keys, found)
            except CopyFailedError as error:
                self._refused[BookieId(error.bookie)] = None
                if not tries_left:
                    found.waits.append(str(error))
            except NotEnoughBookiesError as error:
                found.waits.append(str(error))
                break
        return stored

    def _judged(self, defects: Sequence[Defect], fragment: FragmentRange, found: _Found) -> list[Defect]:
        """Turns silence into a reason to wait. At the end of patience, a silent bookie is replaced."""
        kept = []
        for defect in defects:
            if defect.fault is Fault.SILENT and self._is_patient:
                found.waits.append(f"bookie {fragment.ensemble[defect.position]} {defect.why}")
            else:
                kept.append(defect)
        return kept

    def _without_copy(self, fragment: FragmentRange, defects: Sequence[Defect]) -> dict[int, None]:
        """Returns the entries all of whose bookies are away. A bookie that is only faulty may have some of them."""
        away = frozenset(fragment.ensemble[defect.position] for defect in defects if defect.fault is Fault.LOST)
        return dict.fromkeys(entries_without(fragment, lambda bookie: bookie not in away))

    def _lost_why(self, fragment: FragmentRange) -> str:
        away = [bookie for bookie in fragment.ensemble if not self._tools.roster.is_serving(bookie)]
        return f"{', '.join(away)} not registered" if away else "their bookies lack them or have them damaged"

    async def _try_repair(
        self,
        fragment: FragmentRange,
        defects: Sequence[Defect],
        stored: Versioned[LedgerMetadata],
        keys: LedgerKeys,
        found: _Found,
    ) -> Versioned[LedgerMetadata]:
        targets = self._targets(fragment, defects, stored.value, found)
        copier = FragmentCopier(
            keys,
            self._context,
            self._tools.config,
            self._tools.copy_rate,
            self._progress,
            is_serving=self._tools.roster.is_serving,
            entry_bytes=entry_bytes(stored.value),
        )
        copied = await copier.copy(targets)
        if not copied.is_complete:
            found.lost.update(dict.fromkeys(copied.lost))
            found.lost_why = found.lost_why or next(iter(copied.lost.values()))
            return stored
        return await self._commit(targets, stored)

    def _targets(
        self, fragment: FragmentRange, defects: Sequence[Defect], metadata: LedgerMetadata, found: _Found
    ) -> Targets:
        """Raises NotEnoughBookiesError if no position can get another bookie. If only some can, these are repaired."""
        fills: dict[int, tuple[int, ...]] = {}
        leave: list[int] = []
        for defect in defects:
            if defect.is_replaceable or fragment.ensemble[defect.position] in self._refused:
                leave.append(defect.position)
            else:
                fills[defect.position] = defect.entries
        swaps = self._swaps(fragment, leave, metadata, found, can_be_partial=bool(fills)) if leave else {}
        return Targets(fragment, swaps, fills)

    def _swaps(
        self,
        fragment: FragmentRange,
        positions: Sequence[int],
        metadata: LedgerMetadata,
        found: _Found,
        *,
        can_be_partial: bool,
    ) -> Mapping[int, BookieId]:
        candidates = self._candidates()
        for count in range(len(positions), 0, -1):
            some = positions[:count]
            try:
                placed = self._context.placement.replace(
                    some, fragment.ensemble, sizes_of(metadata), candidates, exclude=list(self._refused)
                )
            except NotEnoughBookiesError as error:
                if count == 1 and not can_be_partial:
                    raise
                if count == 1 or count == len(positions):
                    found.waits.append(str(error))
                continue
            return {position: placed.ensemble[position] for position in some}
        return {}

    def _candidates(self) -> Candidates:
        roster = self._tools.roster
        candidates = self._context.bookies.candidates()
        return replace(
            candidates,
            writable=tuple(
                bookie for bookie in candidates.writable if roster.is_serving(bookie) and bookie not in roster.draining
            ),
        )

    async def _commit(self, targets: Targets, stored: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
        """Puts the new bookies into the fragment. Every copy is durable by now."""
        if not targets.swaps:
            return stored
        if not self._is_ours():
            raise RepairOvertakenError(f"the lock of ledger {self._ledger_id} was lost during its repair")
        committed = await compare_and_set(stored, lambda found: swapped(found, targets), self._context.metadata)
        log.info(
            "a fragment has new bookies",
            extra={
                "ledger_id": self._ledger_id,
                "first_entry": targets.fragment.first,
                "last_entry": targets.fragment.last,
                "left": [targets.fragment.ensemble[position] for position in targets.swaps],
                "new": list(targets.swaps.values()),
            },
        )
        return committed

    # --- the second look ----------------------------------------------------------------------------------------------

    async def _look_again(self, keys: LedgerKeys) -> Outcome:
        stored = await self._context.ledgers.read(self._ledger_id)
        metadata = stored.value
        lac = await self._lac(metadata, keys)
        examiner = self._examiner(keys, metadata)
        for fragment in settled_fragments(metadata, lac):
            defects = await examiner.defects(fragment, self._looks_at_all_of)
            if defects:
                bookie = fragment.ensemble[defects[0].position]
                return Outcome(OutcomeKind.WAIT, f"the check after the repair failed: bookie {bookie}: "
                               f"{defects[0].fault.value}")  # fmt: skip
        if why := self._end_without_bookie(metadata, lac):
            return Outcome(OutcomeKind.NEEDS_CLOSE, why, lac=lac)
        if outcome := await self._end_with_faults(metadata, lac, examiner):
            return outcome
        return Outcome(OutcomeKind.REPAIRED, ledger_version=stored.version)

    def _end_without_bookie(self, metadata: LedgerMetadata, lac: int) -> str:
        """Returns why the end of an open ledger has to be repaired; nothing if its bookies are all there."""
        roster = self._tools.roster
        for number in unsettled_numbers(metadata, lac):
            for bookie in bookies_of_fragment(metadata, number):
                if not roster.is_serving(bookie):
                    return f"the ledger is open, and bookie {bookie} of its end is not registered"
                if bookie in roster.draining:
                    return f"the ledger is open, and bookie {bookie} of its end is being decommissioned"
        return ""

    async def _end_with_faults(self, metadata: LedgerMetadata, lac: int, examiner: Examiner) -> Outcome | None:
        """Looks at what the bookies that the mark names have of the confirmed entries of an open ledger's end."""
        for number in unsettled_numbers(metadata, lac):
            first, ensemble = metadata.fragments[number].first_entry_id, metadata.fragments[number].ensemble
            if lac < first or not self._named.intersection(ensemble):
                continue
            fragment = FragmentRange(number, first, lac, ensemble, metadata.write_quorum)
            for defect in await examiner.defects(fragment, self._looks_at_all_of):
                if ensemble[defect.position] in self._named and defect.fault is not Fault.SILENT:
                    why = f"the ledger is open, and bookie {ensemble[defect.position]}: {defect.fault.value}"
                    return Outcome(
                        OutcomeKind.WAIT if self._may_pass(defect) else OutcomeKind.NEEDS_CLOSE, why, lac=lac
                    )
        return None

    def _may_pass(self, defect: Defect) -> bool:
        """With Qa < Qw, a bookie gets entries after they are confirmed: its live writer must not lose the ledger."""
        return bool(self._old_lac is not None and defect.entries and defect.entries[0] > self._old_lac)

    def _examiner(self, keys: LedgerKeys, metadata: LedgerMetadata) -> Examiner:
        roster, config = self._tools.roster, self._tools.config
        return Examiner(
            keys,
            self._context,
            self._tools.read_rate,
            is_serving=roster.is_serving,
            is_draining=roster.draining.__contains__,
            run_bytes_max=config.chunk_bytes_max,
            run_entries_max=requests_share(self._context, config.ledgers_at_once),
            entry_bytes=entry_bytes(metadata),
        )

    def _looks_at_all_of(self, bookie: BookieId) -> bool:
        return self._tools.config.verify_all_entries or bookie in self._named


def _copies_of(defect: Defect, fragment: FragmentRange) -> int:
    held = fragment.held(defect.position)
    return len(defect.entries) if defect.fault is Fault.MISSING else held.count if held is not None else 0
