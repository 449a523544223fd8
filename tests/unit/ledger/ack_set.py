"""Ack set: which bookies of an entry's write set have stored it, and which have failed.

Purpose:   It is the plain definition with which tests compare ledger/writing/pending_adds.py. Production does not use
           this class: a writer keeps a whole window of entries, and does not make an object per entry.
Invariant: Only bookies that are in the write set now count, each once. So an add is complete only if Qa bookies that
           the metadata names for this entry have it durably. An ack is recorded for a bookie, not for a position, so
           the late ack of a bookie that was replaced is ignored. If the same bookie is in the write set again by then,
           its ack counts: it has the entry.
Read next: ledger/writing/pending_adds.py, docs/quorum.md
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.ids import BookieId


class AckSet:
    """Follows one entry."""

    __slots__ = ("_ack_quorum", "_acked", "_bookies", "_failed")

    def __init__(self, bookies: Sequence[BookieId], ack_quorum: int) -> None:
        """`bookies` is the entry's write set, as `write_set_bookies` has it."""
        assert 0 < ack_quorum <= len(bookies)
        self._bookies = bookies
        self._ack_quorum = ack_quorum
        self._acked = 0  # Bits, by place in the write set.
        self._failed = 0

    # --- what happens ---

    def on_ack(self, bookie: BookieId) -> bool:
        """Returns whether the add is complete. A failure that was reported before is forgotten: it stored the entry."""
        if bookie in self._bookies:  # Else: replaced meanwhile, no longer counts.
            bit = 1 << self._bookies.index(bookie)
            self._acked |= bit  # A repeated ack counts once.
            self._failed &= ~bit
        return self._acked.bit_count() >= self._ack_quorum

    def on_failure(self, bookie: BookieId) -> bool:
        """Returns whether Qa can no longer be reached unless a bookie is replaced. What a bookie said last counts."""
        if bookie in self._bookies:  # Else: replaced meanwhile, its failure was dealt with.
            bit = 1 << self._bookies.index(bookie)
            self._acked &= ~bit
            self._failed |= bit
        return self.is_broken

    def on_replaced(self, old: BookieId, new: BookieId) -> bool:
        """`new` is in the place of `old` and has stored nothing yet. Returns whether the add is (still) complete."""
        assert new not in self._bookies, f"{new} is in the write set already"
        if old in self._bookies:
            place = self._bookies.index(old)
            self._acked &= ~(1 << place)
            self._failed &= ~(1 << place)
            self._bookies = (*self._bookies[:place], new, *self._bookies[place + 1 :])  # The old tuple is shared.
        return self.is_complete

    # --- what is known ---

    @property
    def is_complete(self) -> bool:
        """At least Qa of the write set have the entry."""
        return self._acked.bit_count() >= self._ack_quorum

    @property
    def is_broken(self) -> bool:
        """Whether fewer than Qa bookies are left that have not failed."""
        return len(self._bookies) - self._failed.bit_count() < self._ack_quorum

    @property
    def acked(self) -> tuple[BookieId, ...]:
        return self._those_in(self._acked)

    @property
    def failed(self) -> tuple[BookieId, ...]:
        return self._those_in(self._failed)

    @property
    def awaited(self) -> tuple[BookieId, ...]:
        """Neither acked nor failed."""
        return self._those_in(~(self._acked | self._failed))

    def _those_in(self, bits: int) -> tuple[BookieId, ...]:
        return tuple(bookie for place, bookie in enumerate(self._bookies) if bits >> place & 1)
