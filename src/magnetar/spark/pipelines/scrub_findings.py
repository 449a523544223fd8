"""What a scrub says about replicas: verified, or what is wrong with them, in ranges."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from magnetar.ids import BookieId
from magnetar.ledger.answers import Answer
from magnetar.ledger.answers import Finding as Said


class What(enum.StrEnum):
    VERIFIED = "verified"
    MISSING = "missing"
    DAMAGED = "damaged"
    LIMBO = "limbo"
    """The bookie may have lost entries of the ledger, and cannot tell which."""
    UNREACHABLE = "unreachable"
    REFUSED = "refused"

    @property
    def is_fault(self) -> bool:
        """The replica must be made again; of the other troubles one cannot tell."""
        return self in (What.MISSING, What.DAMAGED, What.LIMBO)


_WHAT = {
    Said.PRESENT: What.VERIFIED,
    Said.ABSENT: What.MISSING,
    Said.DAMAGED: What.DAMAGED,
    Said.LIMBO: What.LIMBO,
    Said.UNREACHABLE: What.UNREACHABLE,
    Said.REFUSED: What.REFUSED,
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Of neighbouring entries which one bookie holds, all in the same state."""

    ledger_id: int
    first_entry: int
    last_entry: int
    bookie: str
    what: What
    entries: int
    size_bytes: int = 0
    """Read and verified."""
    why: str = ""

    def document(self) -> dict[str, object]:
        return {
            "ledger": self.ledger_id,
            "firstEntry": self.first_entry,
            "lastEntry": self.last_entry,
            "entries": self.entries,
            "bookie": self.bookie,
            "what": self.what.value,
            "why": self.why,
        }


def findings_of(ledger_id: int, suspects: Mapping[int, tuple[BookieId, Answer]]) -> Iterator[Finding]:
    """Of entries by rising id. A range has no gaps, so that its first and last entry say which they are."""
    begun: Finding | None = None
    for entry_id, (bookie, answer) in suspects.items():
        what = _WHAT[answer.finding]
        state = (entry_id - 1, bookie, what, answer.why)
        if begun and (begun.last_entry, begun.bookie, begun.what, begun.why) == state:
            begun = Finding(ledger_id, begun.first_entry, entry_id, bookie, what, begun.entries + 1, why=answer.why)
            continue
        if begun:
            yield begun
        begun = Finding(ledger_id, entry_id, entry_id, bookie, what, 1, why=answer.why)
    if begun:
        yield begun
