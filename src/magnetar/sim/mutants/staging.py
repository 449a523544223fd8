"""Bugs of staging: what makes publishing exact is left out, one thing at a time."""

from __future__ import annotations

from functools import partial
from typing import Final

from magnetar.broker.staged.copy import find_copied
from magnetar.broker.staged.publishing import StagedPublishing
from magnetar.sim.mutants.planting import Mutant
from magnetar.staging.decision import Decision
from magnetar.staging.intents import Intents
from magnetar.staging.records import JobIdentity
from magnetar.staging.sink import Sink
from magnetar.staging.stager import Stager
from magnetar.staging.sweeper import _OwnerSweep

_bug = partial(Mutant, kind="staging")

_STRUCK: Final = {"strike": 0.3}
"""Most of these bugs show when a process dies, or stands still, at the right place."""

_SWEPT: Final = {"ttl_ms": 50, "sweep_gap_s": 0.05, "sweepers": 2, "finish_after_ms": 3_600_000}
"""Sweepers that find everything old."""

_RACING: Final = {"faults": ("points", "drivers"), "points": ("before-intent",), "strike": 0.5, "epochs": 6}
"""Drivers that stand still between looking and deciding, while others go on."""

_SAVES: Final = {"saves": 1, "jobs": 0, "epochs": 2, "topics": 2}
"""Batches that are saved to two topics, with one job id."""

_owner_of_a_job = JobIdentity.owner.fget  # type: ignore[attr-defined]

assert _owner_of_a_job is not None

MUTANTS: Final = [
    _bug(
        60,
        "the intent step is taken out: every commit publishes what it has staged itself",
        ("I6", "I1", "I2"),
        budget=100,
        options=_STRUCK,
    ).edit(
        Decision.decide,
        "if record.decided > record.last_done:",
        "if record.decided == epoch:\n"
        "            await self._intents.delete(epoch)\n"
        "        elif record.decided > record.last_done:",
    ),
    _bug(61, "the sweeper deletes what an intent names", ("I7",), budget=100, options=_SWEPT).edit(
        _OwnerSweep._spare_named, "if each.ledger_id not in named", "if True"
    ),
    _bug(62, "a copy that is taken up again does not count what is there", ("I1",), budget=200, options=_STRUCK).edit(
        find_copied, "Copied(expected.met, oldest_ms)", "Copied(0, oldest_ms)"
    ),
    _bug(
        63,
        "an abort deletes what was staged, though its commit may have taken effect",
        ("I7", "I9"),
        budget=200,
        options={**_STRUCK, "patience_s": 0.0, "finish_after_ms": 3_600_000},
    ).edit(
        Sink.abort,
        "kept = sum(each is not None for each in staged)",
        "kept = 0\n"
        "    for part in [part for each in staged for part in each.parts]:\n"
        "        await self._delete_ledger(Register(self._store, owner), part.ledger_id)",
    ),
    _bug(
        64,
        "an epoch is decided and published before the one before it is done",
        ("I3", "I1"),
        budget=200,
        options={"careless": True, "patience_s": 0.0, "finish_after_ms": 3_600_000},
    ).edit(
        Decision.decide,
        "await self._finish_earlier(self._ours.owner, record.decided)",
        "if await self._try(found):\n                    return self._ours if self._ours.parts else None",
    ),
    # No sweeper runs in time: it would take what the late driver has staged.
    _bug(
        65,
        "an intent is created whatever the version of the owner's record is",
        ("I3", "I7"),
        budget=300,
        options={**_RACING, "sweep_gap_s": 20.0},
    ).edit(Intents.create, "record.to_bytes(), found.version)", "record.to_bytes())"),
    _bug(
        66, "a topic does not note that an epoch is being copied, before it is", ("I1",), budget=200, options=_STRUCK
    ).edit(StagedPublishing._copy_new, "await topic.set_property(key, progress.to_text())", "pass"),
    _bug(67, "an epoch is noted as done before it is published", ("I1", "I2", "I3"), budget=200, options=_STRUCK).edit(
        Sink.complete, "topics = intent.topics", "topics = intent.topics\n    await self._note_done(intent)"
    ),
    _bug(
        68,
        "a sweeper does not say what it is about to delete, and no driver looks whether it did",
        ("I7",),
        budget=200,
        options={**_SWEPT, **_RACING},
    )
    .edit(_OwnerSweep._doom, "await self._node.put(record, found.version)", "pass")
    .edit(Intents.create, "Check(registration_path(self.owner, intent.parts[0].ledger_id)),", ""),
    _bug(
        70,
        "a task that repeats a decided epoch fails when a sweeper takes its ledgers away",
        ("I11",),
        budget=100,
        options={**_STRUCK, "sweep_gap_s": 0.05},
    ).edit(Stager._was_for_nothing, "if found is None or found.record.decided < self._staged.epoch:", "if True:"),
    _bug(
        100,
        "the target is no part of a job: of several saves with one job id only the first is written",
        ("I1",),
        budget=20,
        options=_SAVES,
    ).edit(_owner_of_a_job, "hashlib.sha256(self.target.encode())", "hashlib.sha256(b'')"),
    _bug(
        101,
        "a run that comes late decides on a job again that is done",
        ("I10", "I6", "I1"),
        budget=100,
        options={**_SAVES, **_STRUCK},
    ).edit(Decision.decide, "if record.last_done >= epoch:", "if record.last_done >= epoch and not self._is_job:"),
    _bug(
        102,
        "an intent whose driver ended after its epoch was done stays, and so do its ledgers",
        ("I10",),
        budget=100,
        options={**_SAVES, "patience_s": 0.0},
    ).edit(_OwnerSweep.finish, "if node is not None and", "if node is not None and epoch > found.record.last_done and"),
]
