"""Bugs of a bookie that serves: a "no" that is none, fences that are forgotten, a disk that is not its own."""

from __future__ import annotations

from typing import Final

from magnetar.bookie.cookie_check import _require_all_stamped
from magnetar.bookie.fencing import Fencing
from magnetar.bookie.ledgers import LedgerTable
from magnetar.bookie.reads import Reads
from magnetar.bookie.replay import Replay
from magnetar.sim.mutants.mutant import Mutant
from magnetar.sim.mutants.planting import Edit
from magnetar.storage.ledger_storage import LedgerStorage

MUTANTS: Final = [
    Mutant(
        number=6,
        sentence="a read error is answered as: no such entry",
        caught_by=("L9",),
        budget=300,
        edits=[Edit(Reads.find, [("return Found(Code.EIO, entry_id)", "return Found(Code.ENOENTRY, entry_id)")])],
    ),
    Mutant(
        number=16,
        sentence="a fence is not journaled",
        caught_by=("L8", "L9"),
        budget=500,
        edits=[
            Edit(
                Fencing._begin,
                [
                    (
                        (
                            "self._journal.submit(RecordKind.FENCE, (encode_fence(Fence(ledger.id, master_key)),), "
                            "ledger.fencing)"
                        ),
                        "ledger.fencing.set_result(None)",
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=18,
        sentence="a second fence is answered before the first is durable",
        caught_by=("L8", "L9"),
        budget=500,
        edits=[
            Edit(
                Fencing.fence,
                [
                    (
                        "if ledger.fencing is not None:",
                        "elif True:\n        return Code.EOK\n    if ledger.fencing is not None:",
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=19,
        sentence="a fence is dropped when the ledger leaves the table in memory",
        caught_by=("L8",),
        budget=500,
        edits=[
            Edit(
                LedgerTable._let_one_go,
                [
                    (
                        "self._let_go[ledger_id] = ledger\n",
                        "self._storage.set_flags(ledger_id, dataclasses.replace(ledger.flags, fenced=False))\n",
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=20,
        sentence="a fence is dropped when the ledger is deleted",
        caught_by=("L8",),
        budget=500,
        edits=[
            Edit(
                LedgerStorage.delete_ledger,
                [
                    ("if flags is not None and flags.fenced:\n", "if flags is None:\n"),
                    ("if late is not None and late.fenced and", "if flags is None and late is not None and"),
                    ("if flags is not None and flags.fenced and flags.deleted_at_ms is None:", "if flags is None:"),
                ],
            )
        ],
    ),
    Mutant(
        number=21,
        sentence="a bookie whose disk is empty serves",
        caught_by=("B7",),
        budget=500,
        edits=[Edit(_require_all_stamped, [("if lost:", "if False:")])],
    ),
    Mutant(
        number=24,
        sentence="replay skips fences",
        caught_by=("B2",),
        budget=1_000,
        edits=[
            Edit(
                Replay.deliver,
                [("case RecordKind.FENCE:", "case RecordKind.FENCE if False:")],
            )
        ],
    ),
]
