"""WriterQuotas: how many adds each connection has waiting, and what becomes of a writer that has too many.

Shape:     at its limit a writer is held until most of what it has waiting is written; only when that takes too long are
           further adds refused, until it has come down.
Why wait:  a client whose ack quorum is smaller than its write quorum goes on without its slowest bookie. So the adds
           that wait there have nothing to do with how many it keeps in flight: at 100,000 a second, a sync of a fifth
           of a second leaves 20,000. Apache's client takes a refusal for a failed bookie, and without another one to
           go to it ends its ledger; a socket that is not read costs it nothing.
"""

from __future__ import annotations

from magnetar.bookie.gate import REOPEN_SHARE, Gate, Holdable


class WriterQuotas:
    def __init__(self, adds_max: int, patience_s: float) -> None:
        self._adds_max = adds_max
        self._patience_s = patience_s
        self._pending: dict[Holdable, int] = {}
        self._gates: dict[Holdable, Gate] = {}
        self.held = 0
        """How often a writer was at its limit."""

    def __len__(self) -> int:
        """Writers that have something waiting."""
        return len(self._pending)

    def has_room(self, connection: Holdable, count: int) -> bool:
        """For who has nothing waiting there always is, however many come at once: else it came with them in vain."""
        pending = self._pending.get(connection, 0)
        return not pending or pending + count <= self._adds_max

    def must_wait(self, connection: Holdable, count: int) -> bool:
        """Holds the connection if so."""
        if self.has_room(connection, count):
            return False
        gate = self._gates.get(connection)
        if gate is None:
            gate = self._gates[connection] = Gate(self._patience_s)
            gate.shut()
            self.held += 1
        gate.wait(connection)
        return not gate.refuses

    def begin(self, connection: Holdable, count: int) -> None:
        self._pending[connection] = self._pending.get(connection, 0) + count

    def end(self, connection: Holdable, count: int) -> None:
        left = self._pending.get(connection, 0) - count
        if left > 0:
            self._pending[connection] = left
        else:
            self._pending.pop(connection, None)
        if self._gates and left <= self._adds_max * REOPEN_SHARE and (gate := self._gates.pop(connection, None)):
            gate.open()

    def forget(self, connection: Holdable) -> None:
        """It is closed."""
        self._pending.pop(connection, None)
        if gate := self._gates.pop(connection, None):
            gate.close()

    def close(self) -> None:
        for gate in self._gates.values():
            gate.close()
