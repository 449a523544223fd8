"""Every invariant of ledgers and bookies, one class each; the ids are those of docs/simulation.md.

V1 and V2 have no class: they are about calls that do not end, and the callers see that
(sim/ledgers/workload.py, sim/ledgers/scenario.py).
"""

from __future__ import annotations

from magnetar.sim.ledgers.invariants.bookies import (
    BytesVerify,
    FailedSync,
    Garbage,
    Identity,
    Mark,
    ReadIsDurable,
    Replay,
    SyncBeforeAnswer,
    TailOrDamage,
)
from magnetar.sim.ledgers.invariants.ledgers import (
    AckedIsReadable,
    AckIsDurable,
    AcksInOrder,
    ClosedIsReplicated,
    FenceIsForEver,
    LacTowardsReaders,
    LedgerMetadataChanges,
    NoIsAPromise,
    NoTruncation,
    OneBody,
    RecoveryNeverGuesses,
)
from magnetar.sim.ledgers.invariants.limits import EnsembleChangesAreLimited, MemoryIsBounded, NothingOutlives
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
    ReadIsDurable,
    Mark,
    BytesVerify,
    Garbage,
    Identity,
    FailedSync,
    EnsembleChangesAreLimited,
    NothingOutlives,
    MemoryIsBounded,
)
