"""Bugs of a writer: acknowledging too early, forgetting who has what, changing the metadata without care."""

from __future__ import annotations

from typing import Final

from magnetar.ledger.pending_adds import PendingAdds
from magnetar.ledger.repair import Repair
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.sim.mutants.mutant import Mutant
from magnetar.sim.mutants.planting import Edit

MUTANTS: Final = [
    Mutant(
        number=1,
        sentence="an add is acknowledged by Qa − 1 bookies",
        caught_by=("L2",),
        budget=50,
        edits=[Edit(PendingAdds.__init__, [("self._ack_quorum = sizes.ack", "self._ack_quorum = sizes.ack - 1")])],
    ),
    Mutant(
        number=7,
        sentence="the LAC goes over gaps: up to the last complete entry, not up to the first incomplete one",
        caught_by=("L6", "L2"),
        budget=300,
        edits=[
            Edit(
                PendingAdds.take_confirmed,
                [
                    ("for mask in self._masks:", "for at, mask in enumerate(self._masks, 1):"),
                    ("break", "continue"),
                    ("count += 1", "count = at"),
                ],
            )
        ],
    ),
    Mutant(
        number=8,
        sentence="the LAC moves while an ensemble change is being written",
        caught_by=("L6", "L2"),
        budget=300,
        edits=[Edit(PendingAdds.hold, [("self._held = True", "self._held = False")])],
    ),
    Mutant(
        number=9,
        sentence="what a replaced bookie has acknowledged still counts",
        caught_by=("L6", "L2"),
        budget=300,
        edits=[Edit(PendingAdds.forget, [("kept = ~sum(1 << position for position in positions)", "kept = -1")])],
    ),
    Mutant(
        number=10,
        sentence="metadata is written whatever its version is",
        caught_by=("L10", "L1"),
        budget=500,
        edits=[Edit(LedgerMetadataStore.update, [("encode(metadata), version)", "encode(metadata))")])],
    ),
    Mutant(
        number=27,
        sentence="a writer replaces bookies without a limit",
        caught_by=("V4",),
        budget=1_000,
        edits=[Edit(Repair._count_change, [("if len(times) >= config.ensemble_changes_max:", "if False:")])],
    ),
]
