"""Bugs of the ledger protocol: a writer acknowledges too early or changes the metadata without care; a recovery guesses
the end, loses what it found, or decides from the wrong bookies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from magnetar.ids import BookieId
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata.compare_and_set import compare_and_set
from magnetar.ledger.metadata.ensemble_change import ChangeInMemory
from magnetar.ledger.recovery.fence import FencingReads
from magnetar.ledger.recovery.reads import RecoveryReads
from magnetar.ledger.recovery.recovery import Recovery, first_to_read
from magnetar.ledger.recovery.write_back import WriteBack
from magnetar.ledger.writing.pending_adds import PendingAdds
from magnetar.ledger.writing.repair import Repair
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.coverage import Meaning, RecoveryRead, absence_coverage
from magnetar.sim.mutants.planting import Mutant


class EarlyChange(ChangeInMemory):
    """Recovery's ensemble change, seen by every client before the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata, context: LedgerContext) -> None:
        super().__init__(metadata)
        self._context = context.metadata

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        await super().write(first_entry_id, replacements)

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            return replace(found, fragments=self.metadata.fragments) if found.state is LedgerState.IN_RECOVERY else None

        stored = await self._context.ledgers.read(self.metadata.ledger_id)
        await compare_and_set(stored, decide, self._context)


MUTANTS: Final = [
    Mutant(1, "an add is acknowledged by Qa − 1 bookies", ("L2",), budget=50).edit(
        PendingAdds.__init__, "self._ack_quorum = sizes.ack", "self._ack_quorum = sizes.ack - 1"
    ),
    Mutant(2, "a ledger is closed at the greatest LAC, without reading on behind it", ("L1",), budget=50).edit(
        RecoveryReads.next, "self._begin_more()", "return None"
    ),
    Mutant(3, "what recovery finds is not written back", ("L4",), budget=50).edit(
        Recovery._find_end, "await writes.add(entry)", "pass"
    ),
    Mutant(4, "one bookie that does not have the entry is enough", ("L11",), budget=300).edit(
        absence_coverage, "if absent >= sizes.absence:", "if absent >= 1:"
    ),
    Mutant(5, "a bookie that does not answer in time does not have the entry", ("L11", "L1"), budget=300).edit(
        RecoveryReads._decide,
        "answer.meaning)",
        "answer.meaning if answer.code is not None else Meaning.ABSENT)",
        Meaning=Meaning,
    ),
    Mutant(
        7,
        "the LAC goes over gaps: up to the last complete entry, not up to the first incomplete one",
        ("L6", "L2"),
        budget=300,
    )
    .edit(PendingAdds.take_confirmed, "for mask in self._masks:", "for at, mask in enumerate(self._masks, 1):")
    .edit(PendingAdds.take_confirmed, "break", "continue")
    .edit(PendingAdds.take_confirmed, "count += 1", "count = at"),
    Mutant(8, "the LAC moves while an ensemble change is being written", ("L6", "L2"), budget=300).edit(
        PendingAdds.hold, "self._held = True", "self._held = False"
    ),
    Mutant(9, "what a replaced bookie has acknowledged still counts", ("L6", "L2"), budget=300).edit(
        PendingAdds.forget, "kept = ~sum(1 << position for position in positions)", "kept = -1"
    ),
    Mutant(10, "metadata is written whatever its version is", ("L10", "L1"), budget=500).edit(
        LedgerMetadataStore.update, "encode(metadata), version)", "encode(metadata))"
    ),
    Mutant(11, "recovery writes its ensemble changes before it closes the ledger", ("L10", "L1"), budget=500).edit(
        WriteBack.__init__, "ChangeInMemory(metadata)", "EarlyChange(metadata, context)", EarlyChange=EarlyChange
    ),
    Mutant(
        12, "recovery reads from the bookies that it has put in the place of others", ("L10", "L1"), budget=500
    ).edit(
        Recovery._find_end,
        "last = entry\n",
        "last = entry\n            reads._asking.ensemble = writes.metadata.fragments[-1].ensemble\n",
    ),
    Mutant(17, "recovery reads do not fence", ("L9", "L8"), budget=500).edit(
        FencingReads._send,
        "fence_with=keys.master_key",
        "fence_with=keys.master_key if LAST_ENTRY in entry_ids else None",
    ),
    Mutant(
        25, "recovery begins behind the LAC alone, in an older fragment than the last one", ("L10",), budget=1_000
    ).edit(first_to_read, "max(lac, lac_floor(metadata)) + 1", "lac + 1"),
    Mutant(26, "an entry is found only if Qa bookies have it", ("V1",), budget=1_000).edit(
        RecoveryRead.on_answer,
        "if meaning is Meaning.PRESENT:",
        "self._present = getattr(self, '_present', 0) | bit * (meaning is Meaning.PRESENT)\n"
        "    if self._present.bit_count() >= self._sizes.ack:",
    ),
    Mutant(27, "a writer replaces bookies without a limit", ("V4",), budget=1_000).edit(
        Repair._count_change, "if len(times) >= config.ensemble_changes_max:", "if False:"
    ),
]
