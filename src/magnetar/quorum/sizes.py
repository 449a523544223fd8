"""The three numbers of a ledger, and what follows from them: the rule of the ack quorum is here.

Format:    ensemble E: bookies that share a fragment. Write quorum Qw: bookies that get each entry. Ack quorum Qa:
           bookies that must have stored an entry durably before it counts as written (`is_acknowledged`).
Read next: write_sets.py, coverage.py, ledger/writing/pending_adds.py (the rule for a whole window of entries)
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.errors import InvalidQuorumError

ENSEMBLE_SIZE_MAX = 255  # Write sets are tables of E times Qw numbers: a wrong number must not fill the memory.


@dataclass(frozen=True, slots=True)
class QuorumSizes:
    """The quorums of a ledger, checked when made: 1 ≤ Qa ≤ Qw ≤ E."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not 1 <= self.ensemble <= ENSEMBLE_SIZE_MAX:
            raise InvalidQuorumError(f"ensemble size {self.ensemble}: allowed is 1 to {ENSEMBLE_SIZE_MAX}")
        if not 1 <= self.write <= self.ensemble:
            raise InvalidQuorumError(
                f"write quorum {self.write}: allowed is 1 to the ensemble size, here {self.ensemble}"
            )
        if not 1 <= self.ack <= self.write:
            raise InvalidQuorumError(f"ack quorum {self.ack}: allowed is 1 to the write quorum, here {self.write}")

    def is_acknowledged(self, holders: int) -> bool:
        """The rule: whether an entry counts as written if these bookies have stored it, and thus cannot be lost by the
        failure of fewer. `holders` are positions as bits, all of them in the entry's write set."""
        return holders.bit_count() >= self.ack

    @property
    def absence(self) -> int:
        """QC: this many bookies of a write set without an entry leave fewer than Qa that could have stored it."""
        return self.write - self.ack + 1

    @property
    def always_covering(self) -> int:
        """This many answers always cover every write set; fewer may do, depending on the bookies."""
        return self.ensemble - self.ack + 1

    def __str__(self) -> str:
        return f"E{self.ensemble}/Qw{self.write}/Qa{self.ack}"
