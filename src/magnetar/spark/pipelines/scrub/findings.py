"""The findings of a scrub about replicas, in ranges, and the amount that it read."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.ids import BookieId
from magnetar.ledger.channels.answers import Answer
from magnetar.ledger.channels.answers import Finding as Said


class What(enum.StrEnum):
    VERIFIED = "verified"
    MISSING = "missing"
    DAMAGED = "damaged"
    LIMBO = "limbo"
    """The bookie may have lost entries of the ledger, and does not know which."""
    UNREACHABLE = "unreachable"
    REFUSED = "refused"

    @property
    def is_fault(self) -> bool:
        """Reports whether the replica must be made again; other troubles leave that open."""
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
    """Neighbouring entries of one bookie, all in the same state."""

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
    """Takes entries by rising id. A range has no gaps, so its first and last entry describe it."""
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


@dataclass(frozen=True, slots=True)
class Skipped:
    """A ledger that could not be scrubbed, or not wholly."""

    ledger_id: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubResult:
    ledgers: int
    replicas: int
    """Verified ones."""
    size_bytes: int
    seconds: float
    findings: tuple[Finding, ...]
    """The faults, by ledger and entry."""
    skipped: tuple[Skipped, ...]
    marked: int
    """Ledgers that were marked, or whose marks name more bookies now."""

    @property
    def is_clean(self) -> bool:
        """Reports whether every replica of every ledger was verified."""
        return not self.findings and not self.skipped

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / self.seconds if self.seconds else 0.0

    def count(self, what: What) -> int:
        return sum(finding.entries for finding in self.findings if finding.what is what)

    def document(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "ledgers": self.ledgers,
            "verified": self.replicas,
            **{what.value: self.count(what) for what in What if what is not What.VERIFIED},
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "bytesPerSecond": round(self.bytes_per_second),
            "findings": [finding.document() for finding in self.findings],
            "skipped": [{"ledger": skipped.ledger_id, "why": skipped.why} for skipped in self.skipped],
            "marked": self.marked,
        }
