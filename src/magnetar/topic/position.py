"""Where an entry of a topic is: a ledger of its chain, and the entry's id there.

Order:     as tuples. Ledger ids only grow, so it is the order of the log.
Before:    a ledger's entry id −1 is the place before its first entry; mark-delete positions begin there.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Position(NamedTuple):
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(-1, -1)
"""Before everything."""
LATEST: Final = Position(2**63 - 1, 2**63 - 1)
"""Behind everything, whatever is still to come."""
