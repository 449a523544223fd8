"""What is stored, and what a reader gets of it: L3, L4, L5."""

from __future__ import annotations

import struct
from typing import Final

from magnetar.sim.ledgers.history import LedgerHistory
from magnetar.sim.ledgers.watch import BookieWatch, Invariant, LedgerChange

_LENGTH: Final = struct.Struct(">q")
_LENGTH_AT: Final = 24  # In an entry, behind ledger id, entry id and LAC.


class AckedIsReadable(Invariant):
    """L3: every acknowledged entry is read, with the bytes that were sent. (settle.py sees that it is read at all.)"""

    id = "L3"

    def on_read(
        self,
        ledger: LedgerHistory,
        reader: str,
        entry_id: int,
        payload: bytes,
        lac: int,  # noqa: ARG002
        *,
        sure: bool,  # noqa: ARG002
    ) -> None:
        if entry_id >= len(ledger.payloads) or payload != ledger.payloads[entry_id]:
            self.violated(f"{reader} read other bytes than were sent as entry {entry_id} of ledger {ledger.ledger_id}")


class ClosedIsReplicated(Invariant):
    """L4: every entry of a closed ledger is on Qa bookies of its write set."""

    id = "L4"

    def at_end(self) -> None:
        for ledger_id, known in self.watch.ledgers.items():
            metadata = known.value
            if not metadata.is_closed:
                continue
            for entry_id in range(metadata.last_entry_id + 1):
                holders = self.watch.holders(metadata, entry_id)
                if len(holders) < metadata.ack_quorum:
                    names = [bookie.name for bookie in holders]
                    self.violated(f"entry {entry_id} of the closed ledger {ledger_id} is only on {names}")


class OneBody(Invariant):
    """L5: every copy of an entry has the payload and the length field that its writer sent; the close has the sum."""

    id = "L5"

    def on_stored(self, bookie: BookieWatch, ledger_id: int, entry_id: int, body: bytes) -> None:
        ledger = self.watch.history.ledgers.get(ledger_id)
        if ledger is None:
            return
        if entry_id >= len(ledger.payloads):
            self.violated(f"{bookie.name} stored entry {entry_id} of ledger {ledger_id}, which nobody sent")
            return
        (length,) = _LENGTH.unpack_from(body, _LENGTH_AT)
        if length != ledger.lengths[entry_id] or body[ledger.digest.overhead_bytes :] != ledger.payloads[entry_id]:
            self.violated(f"{bookie.name} stored entry {entry_id} of ledger {ledger_id} other than it was sent")

    def on_ledger_change(self, change: LedgerChange) -> None:
        ledger = self.watch.history.ledgers.get(change.ledger_id)
        if ledger is None or change.after is None or not change.after.value.is_closed:
            return
        last, length = change.after.value.last_entry_id, change.after.value.length
        if last >= len(ledger.payloads):
            self.violated(f"ledger {change.ledger_id} was closed at {last}, which nobody sent")
        elif length != ledger.length_at(last):
            self.violated(f"ledger {change.ledger_id} was closed at {last} with length {length}")
