"""What a scrub found, and how much it read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magnetar.spark.pipelines.scrub_findings import Finding, What


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
    """What is wrong, by ledger and entry."""
    skipped: tuple[Skipped, ...]
    marked: int
    """Ledgers that were marked, or whose marks name more bookies now."""

    @property
    def is_clean(self) -> bool:
        """Every replica of every ledger was verified."""
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
