"""Where an entry of a topic is: a ledger of its chain, and the entry's id there.

Entry id −1 of a ledger is the place before its first entry; mark-delete positions begin there. `next` and `previous`
stay in the ledger, even where it has no such entry: they are where reading continues, and what was read last.
`LedgerChain.next_position` and `previous_position` step to the entries that exist.

Order:     Positions compare as tuples. Ledger ids only grow, so it is the order of the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Position(NamedTuple):
    ledger_id: int
    entry_id: int

    @property
    def next(self) -> Position:
        """Returns the place after this entry, which may be after the ledger's last one."""
        return Position(self.ledger_id, self.entry_id + 1)

    @property
    def previous(self) -> Position:
        """Returns the place before this entry; for a ledger's first entry it has the id −1."""
        return Position(self.ledger_id, self.entry_id - 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(-1, -1)
"""Before everything."""
LATEST: Final = Position(2**63 - 1, 2**63 - 1)
"""Is after every position, even those to come."""
