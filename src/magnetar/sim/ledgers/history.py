"""History: what the clients of one seed sent, and what they were told. The truth that invariants compare with.

Entry:     a ledger has one writer, which numbers its entries; so (ledger, entry) has one payload for ever.
Acked:     the writer's caller was told so. It is told in order, so one number per ledger says it all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.wire.bookkeeper.digests import DigestType, EntryDigest, entry_digest


@dataclass(slots=True)
class LedgerHistory:
    ledger_id: int
    ensemble: int
    write: int
    ack: int
    password: bytes
    digest: EntryDigest
    writer: str
    """The node of its writer."""
    payloads: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """Of all payloads up to and including each."""
    acked: int = -1
    """The last acknowledged entry."""
    failed: bool = False
    closing: bool = False
    """Its writer has asked for the close."""
    deleting: bool = False
    """Somebody has asked for it to be deleted, so it may be gone."""

    def length_at(self, entry_id: int) -> int:
        return self.lengths[entry_id] if entry_id >= 0 else 0


class History:
    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerHistory] = {}

    def created(
        self, ledger_id: int, sizes: tuple[int, int, int], password: bytes, digest: DigestType, writer: str
    ) -> LedgerHistory:
        assert ledger_id not in self.ledgers, f"ledger {ledger_id} was created twice"
        known = LedgerHistory(ledger_id, *sizes, password, entry_digest(digest, password), writer)
        self.ledgers[ledger_id] = known
        return known

    def sent(self, ledger: LedgerHistory, entry_id: int, payload: bytes) -> None:
        assert entry_id == len(ledger.payloads), f"entry {entry_id} follows {len(ledger.payloads) - 1}"
        ledger.payloads.append(payload)
        ledger.lengths.append(ledger.length_at(entry_id - 1) + len(payload))
