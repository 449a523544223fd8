"""Every invariant of ledgers and bookies, one class each; the ids are those of docs/simulation.md.

V1 and V2 have no class: they are about calls that do not end, and whoever makes the calls sees that (workload.py,
settle.py).
"""

from __future__ import annotations

from magnetar.sim.ledgers.invariants.acks import (
    AckIsDurable,
    AcksInOrder,
    LacTowardsReaders,
    NoTruncation,
)
from magnetar.sim.ledgers.invariants.content import AckedIsReadable, ClosedIsReplicated, OneBody
from magnetar.sim.ledgers.invariants.disks import Garbage, Mark, Replay, TailOrDamage
from magnetar.sim.ledgers.invariants.fencing import FenceIsForEver, NoIsAPromise, RecoveryNeverGuesses
from magnetar.sim.ledgers.invariants.ledger_metadata import LedgerMetadataChanges
from magnetar.sim.ledgers.invariants.limits import EnsembleChangesAreLimited, NothingOutlives
from magnetar.sim.ledgers.invariants.promises import BytesVerify, FailedSync, Identity, SyncBeforeAnswer
from magnetar.sim.ledgers.watch import Invariant

ALL: tuple[type[Invariant], ...] = (
    NoTruncation,
    AckIsDurable,
    AckedIsReadable,
    ClosedIsReplicated,
    OneBody,
    AcksInOrder,
    LacTowardsReaders,
    FenceIsForEver,
    NoIsAPromise,
    LedgerMetadataChanges,
    RecoveryNeverGuesses,
    SyncBeforeAnswer,
    Replay,
    TailOrDamage,
    Mark,
    BytesVerify,
    Garbage,
    Identity,
    FailedSync,
    EnsembleChangesAreLimited,
    NothingOutlives,
)
