"""Bugs of staging: what makes publishing exact, left out one thing at a time."""

from __future__ import annotations

from typing import Final

from magnetar.broker.staged_copy import find_copied
from magnetar.broker.staged_publishing import StagedPublishing
from magnetar.sim.mutants.mutant import Mutant
from magnetar.sim.mutants.planting import Edit
from magnetar.staging.commit import Sink
from magnetar.staging.decide import Decision
from magnetar.staging.intents import Intents
from magnetar.staging.stage import Stager
from magnetar.staging.sweeper import _OwnerSweep

_STRUCK: Final = {"strike": 0.3}
"""Most of these bugs show when somebody dies, or stands still, at the right place."""
_SWEPT: Final = {"ttl_ms": 50, "sweep_gap_s": 0.05, "sweepers": 2, "finish_after_ms": 3_600_000}
"""Sweepers that find everything old."""
_RACING: Final = {"faults": ("points", "drivers"), "points": ("before-intent",), "strike": 0.5, "epochs": 6}
"""Drivers that stand still between looking and deciding, while others go on."""

MUTANTS: Final = [
    Mutant(
        number=60,
        kind="staging",
        sentence="the intent step is taken out: every commit publishes what it has staged itself",
        caught_by=("I6", "I1", "I2"),
        budget=100,
        options=_STRUCK,
        edits=[
            Edit(
                Decision.decide,
                [
                    (
                        "if record.decided > record.last_done:",
                        (
                            "if record.decided == epoch:\n"
                            "            await self._intents.delete(epoch)\n"
                            "        elif record.decided > record.last_done:"
                        ),
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=61,
        kind="staging",
        sentence="the sweeper deletes what an intent names",
        caught_by=("I7",),
        budget=100,
        options=_SWEPT,
        edits=[Edit(_OwnerSweep._spare_named, [("if each.ledger_id not in named", "if True")])],
    ),
    Mutant(
        number=62,
        kind="staging",
        sentence="a copy that is taken up again does not count what is there",
        caught_by=("I1",),
        budget=200,
        options=_STRUCK,
        edits=[Edit(find_copied, [("Copied(expected.met, oldest_ms)", "Copied(0, oldest_ms)")])],
    ),
    Mutant(
        number=63,
        kind="staging",
        sentence="an abort deletes what was staged, though its commit may have taken effect",
        caught_by=("I7", "I9"),
        budget=200,
        options={**_STRUCK, "patience_s": 0.0, "finish_after_ms": 3_600_000},
        edits=[
            Edit(
                Sink.abort,
                [
                    (
                        "kept = sum(each is not None for each in staged)",
                        (
                            "kept = 0\n"
                            "    for part in [part for each in staged for part in each.parts]:\n"
                            "        await self._delete_ledger(Register(self._store, owner), part.ledger_id)"
                        ),
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=64,
        kind="staging",
        sentence="an epoch is decided and published before the one before it is done",
        caught_by=("I3", "I1"),
        budget=200,
        options={"careless": True, "patience_s": 0.0, "finish_after_ms": 3_600_000},
        edits=[
            Edit(
                Decision.decide,
                [
                    (
                        "await self._finish_earlier(self._ours.owner, record.decided)",
                        (
                            "if await self._try(found):\n"
                            "                    return self._ours if self._ours.parts else None"
                        ),
                    )
                ],
            ),
        ],
    ),
    Mutant(
        number=65,
        kind="staging",
        sentence="an intent is created whatever the version of the owner's record is",
        caught_by=("I3", "I7"),
        budget=300,
        options={**_RACING, "sweep_gap_s": 20.0},  # A sweeper would take what the late one has staged.
        edits=[Edit(Intents.create, [("record.to_bytes(), found.version)", "record.to_bytes())")])],
    ),
    Mutant(
        number=66,
        kind="staging",
        sentence="a topic does not note that an epoch is being copied, before it is",
        caught_by=("I1",),
        budget=200,
        options=_STRUCK,
        edits=[Edit(StagedPublishing._copy_new, [("await topic.note(key, mark.to_text())", "pass")])],
    ),
    Mutant(
        number=67,
        kind="staging",
        sentence="an epoch is noted as done before it is published",
        caught_by=("I1", "I2", "I3"),
        budget=200,
        options=_STRUCK,
        edits=[
            Edit(
                Sink.complete,
                [("topics = intent.topics", "topics = intent.topics\n    await self._note_done(intent)")],
            )
        ],
    ),
    Mutant(
        number=68,
        kind="staging",
        sentence="a sweeper does not say what it is about to delete, and no driver looks whether it did",
        caught_by=("I7",),
        budget=200,
        options={**_SWEPT, **_RACING},
        edits=[
            Edit(_OwnerSweep._doom, [("await self._node.put(record, found.version)", "pass")]),
            Edit(Intents.create, [("Check(registration_path(self.owner, intent.parts[0].ledger_id)),", "")]),
        ],
    ),
    Mutant(
        number=70,
        kind="staging",
        sentence="a task that repeats a decided epoch fails when a sweeper takes its ledgers away",
        caught_by=("I11",),
        budget=100,
        options={**_STRUCK, "sweep_gap_s": 0.05},
        edits=[
            Edit(
                Stager._was_for_nothing,
                [("if found is None or found.record.decided < self._staged.epoch:", "if True:")],
            )
        ],
    ),
]
