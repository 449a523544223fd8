"""Every invariant of topics and of their clients' histories, one class each; the ids are those of docs/simulation.md.

C7 and a part of T5 have no class: they are about what a subscription delivers when all is over, and whoever drains it
sees that (settle.py). So does V2, about calls that do not end.
"""

from __future__ import annotations

from magnetar.sim.ledgers.invariants.fencing import FenceIsForEver, NoIsAPromise
from magnetar.sim.ledgers.invariants.ledger_metadata import LedgerMetadataChanges
from magnetar.sim.ledgers.invariants.limits import NothingOutlives
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.topics.invariants.brokers import AcksStay, Chain, Deduplicated, OneVoice
from magnetar.sim.topics.invariants.clients import (
    InOrder,
    NoDuplicate,
    NoLostWrite,
    NoSkip,
    NothingOfFailedSends,
    OneValue,
)

ALL: tuple[type[Invariant], ...] = (
    FenceIsForEver,
    NoIsAPromise,
    LedgerMetadataChanges,
    NothingOutlives,
    Chain,
    OneVoice,
    Deduplicated,
    AcksStay,
    NoLostWrite,
    NoDuplicate,
    NothingOfFailedSends,
    OneValue,
    NoSkip,
    InOrder,
)
