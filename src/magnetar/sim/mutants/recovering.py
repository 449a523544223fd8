"""Bugs of a recovery: guessing the end, losing what it found, deciding from the wrong bookies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from magnetar.ids import BookieId
from magnetar.ledger.compare_and_set import compare_and_set
from magnetar.ledger.ensemble_change import ChangeInMemory
from magnetar.ledger.fencing_reads import FencingReads
from magnetar.ledger.parts import Parts
from magnetar.ledger.recovery import Recovery
from magnetar.ledger.recovery_decisions import first_to_read
from magnetar.ledger.recovery_reads import RecoveryReads
from magnetar.ledger.write_back import WriteBack
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.quorum.coverage import Meaning, RecoveryRead, absence_coverage
from magnetar.sim.mutants.mutant import Mutant
from magnetar.sim.mutants.planting import Edit
from magnetar.wire.bookkeeper.packet import LAST_ENTRY


class EarlyChange(ChangeInMemory):
    """Recovery's ensemble change, seen by everybody before the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata, parts: Parts) -> None:
        super().__init__(metadata)
        self._parts = parts.metadata

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        await super().write(first_entry_id, replacements)

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            return replace(found, fragments=self.metadata.fragments) if found.state is LedgerState.IN_RECOVERY else None

        stored = await self._parts.ledgers.read(self.metadata.ledger_id)
        await compare_and_set(stored, decide, self._parts)


MUTANTS: Final = [
    Mutant(
        number=2,
        sentence="a ledger is closed at the greatest LAC, without reading on behind it",
        caught_by=("L1",),
        budget=50,
        edits=[Edit(RecoveryReads.next, [("self._begin_more()", "return None")])],
    ),
    Mutant(
        number=3,
        sentence="what recovery finds is not written back",
        caught_by=("L4",),
        budget=50,
        edits=[Edit(Recovery._find_end, [("await writes.add(entry)", "pass")])],
    ),
    Mutant(
        number=4,
        sentence="one bookie that does not have the entry is enough",
        caught_by=("L11",),
        budget=300,
        edits=[Edit(absence_coverage, [("if absent >= sizes.absence:", "if absent >= 1:")])],
    ),
    Mutant(
        number=5,
        sentence="a bookie that does not answer in time does not have the entry",
        caught_by=("L11", "L1"),
        budget=300,
        edits=[
            Edit(
                RecoveryReads._decide,
                [("answer.meaning)", "answer.meaning if answer.code is not None else Meaning.ABSENT)")],
                names={"Meaning": Meaning},
            )
        ],
    ),
    Mutant(
        number=11,
        sentence="recovery writes its ensemble changes before it closes the ledger",
        caught_by=("L10", "L1"),
        budget=500,
        edits=[
            Edit(
                WriteBack.__init__,
                [("ChangeInMemory(metadata)", "EarlyChange(metadata, parts)")],
                names={"EarlyChange": EarlyChange},
            )
        ],
    ),
    Mutant(
        number=12,
        sentence="recovery reads from the bookies that it has put in the place of others",
        caught_by=("L10", "L1"),
        budget=500,
        edits=[
            Edit(
                Recovery._find_end,
                [
                    (
                        "last = entry\n",
                        "last = entry\n            reads._asking.ensemble = writes.metadata.fragments[-1].ensemble\n",
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=17,
        sentence="recovery reads do not fence",
        caught_by=("L9", "L8"),
        budget=500,
        edits=[
            Edit(
                FencingReads._send,
                [("fence_with=keys.master_key", "fence_with=keys.master_key if LAST_ENTRY in entry_ids else None")],
                names={"LAST_ENTRY": LAST_ENTRY},
            )
        ],
    ),
    Mutant(
        number=25,
        sentence="recovery begins behind the LAC alone, in an older fragment than the last one",
        caught_by=("L10",),
        budget=1_000,
        edits=[Edit(first_to_read, [("max(lac, lac_floor(metadata)) + 1", "lac + 1")])],
    ),
    Mutant(
        number=26,
        sentence="an entry is found only if Qa bookies have it",
        caught_by=("V1",),
        budget=1_000,
        edits=[
            Edit(
                RecoveryRead.on_answer,
                [
                    (
                        "if meaning is Meaning.PRESENT:",
                        (
                            "self._present = getattr(self, '_present', 0) | bit * (meaning is Meaning.PRESENT)\n"
                            "    if self._present.bit_count() >= self._sizes.ack:"
                        ),
                    )
                ],
            )
        ],
    ),
]
