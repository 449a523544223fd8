"""Coverage: when answers of some bookies are enough to decide for all of them.

Invariant: an ensemble is covered if every write set has fewer than Qa bookies that did not answer. Then no add can
           reach Qa among the silent ones, so a fence that got this far holds; and each acknowledged entry is known to
           a bookie that answered. E − Qa + 1 answers always suffice. "No such entry" and "no such ledger" are answers.
           An entry is absent if Qw − Qa + 1 bookies of its write set answer that they do not have it: fewer than Qa are
           left, so it was never acknowledged, and as they are fenced it never will be.
Failure:   IMPOSSIBLE means that not even all other answers would suffice; the caller stops and never guesses.
Read next: docs/quorum.md
"""

from __future__ import annotations

import enum

from magnetar.quorum.sizes import QuorumSizes, write_set_masks
from magnetar.wire.bookkeeper.codes import Code


class Coverage(enum.Enum):
    COVERED = "covered"
    IMPOSSIBLE = "impossible"
    PENDING = "pending"


class Meaning(enum.Enum):
    """What a bookie's answer to a read says about the entry."""

    PRESENT = "present"
    ABSENT = "absent"
    NOTHING = "nothing"
    """The read failed: the entry may or may not exist."""


_MEANINGS = {Code.EOK: Meaning.PRESENT, Code.ENOENTRY: Meaning.ABSENT, Code.ENOLEDGER: Meaning.ABSENT}


def meaning_of(code: Code) -> Meaning:
    """Returns the meaning of a read's code. PRESENT holds only if the entry's digest does: a damaged entry says
    NOTHING.

    A time-out, a lost connection, a bookie in limbo, a refusal: none of them is a "no".
    """
    return _MEANINGS.get(code, Meaning.NOTHING)


def ensemble_coverage(sizes: QuorumSizes, answered: int, failed: int) -> Coverage:
    """Decides from the positions, as bits, that answered and that will not answer any more."""
    silent = ~answered
    lost = failed & silent
    masks = write_set_masks(sizes.ensemble, sizes.write)
    if not any(sizes.is_acknowledged(mask & silent) for mask in masks):
        return Coverage.COVERED
    if any(sizes.is_acknowledged(mask & lost) for mask in masks):
        return Coverage.IMPOSSIBLE
    return Coverage.PENDING


class EnsembleCoverage:
    """Follows a request to all bookies of an ensemble, by position: a fence, or a read of the LAC by quorum."""

    def __init__(self, sizes: QuorumSizes) -> None:
        self.state = Coverage.PENDING
        self._sizes = sizes
        self._answered = 0
        self._failed = 0

    def on_answer(self, position: int) -> Coverage:
        """Notes an answer: an entry, "no such entry" or "no such ledger". After a failure it still counts."""
        self._answered |= 1 << position
        return self._decide()

    def on_failure(self, position: int) -> Coverage:
        """Notes that the bookie will not answer any more. Its earlier answer stays true."""
        self._failed |= 1 << position
        return self._decide()

    def _decide(self) -> Coverage:
        self.state = ensemble_coverage(self._sizes, self._answered, self._failed)
        return self.state


def absence_coverage(sizes: QuorumSizes, absent: int, others: int) -> Coverage:
    """Decides from how many of the write set lack the entry, and how many have it or will not answer any more."""
    if absent >= sizes.absence:
        return Coverage.COVERED
    return Coverage.IMPOSSIBLE if sizes.write - others < sizes.absence else Coverage.PENDING


class Recovered(enum.Enum):
    """What recovery knows about one entry."""

    FOUND = "found"
    """One bookie has it. It may have been acknowledged, so it is kept and written to the whole write set."""
    ABSENT = "absent"
    """It was certainly not acknowledged: the ledger ends before it."""
    UNKNOWN = "unknown"
    """All bookies answered or failed, and neither holds. Recovery ends without changing anything."""
    PENDING = "pending"


class RecoveryRead:
    """Follows the fencing read of one entry, by position in the ensemble as it was when recovery began.

    The first decision stands: a caller may have acted on it.
    """

    def __init__(self, sizes: QuorumSizes, entry_id: int) -> None:
        self.decision = Recovered.PENDING
        self._sizes = sizes
        self._entry_id = entry_id
        self._absent = 0  # Bits, by position.
        self._failed = 0

    def on_answer(self, position: int, meaning: Meaning) -> Recovered:
        """Notes an answer. A later answer of the same bookie replaces a failure; a "no" is a promise and stays."""
        assert (position - self._entry_id) % self._sizes.ensemble < self._sizes.write, "not in the entry's write set"
        bit = 1 << position
        if self.decision is not Recovered.PENDING:
            return self.decision
        if meaning is Meaning.PRESENT:
            self.decision = Recovered.FOUND
            return self.decision
        if meaning is Meaning.ABSENT:
            self._absent |= bit
        else:
            self._failed |= bit
        self.decision = self._decide()
        return self.decision

    def _decide(self) -> Recovered:
        absent = self._absent.bit_count()
        lost = (self._failed & ~self._absent).bit_count()
        if absence_coverage(self._sizes, absent, lost) is Coverage.COVERED:
            return Recovered.ABSENT
        everybody_was_heard = absent + lost == self._sizes.write  # If one was not, it may have the entry.
        return Recovered.UNKNOWN if everybody_was_heard else Recovered.PENDING
