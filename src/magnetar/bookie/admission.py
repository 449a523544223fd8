"""Admission: gates at which connections wait for room, and quotas of the adds that a writer may have waiting.

Purpose:   a connection that waits is not read, so its client is slowed down by TCP; its bytes stay in its buffer. A
           gate may have patience: when it stayed shut for longer, the waiting connections continue and are refused
           instead (`refuses`), until it opens.
Limits:    at its quota a writer is held until most of its waiting adds are written; only when that takes too long,
           further adds are refused, until it is below. It is held first because a client whose ack quorum is smaller
           than its write quorum continues without its slowest bookie: the adds that wait there are many more than it
           keeps in flight (at 100,000 a second, a sync of a fifth of a second leaves 20,000). Apache's client takes a
           refusal for a failed bookie, and without another bookie it ends its ledger; a socket that is not read costs
           it nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

REOPEN_SHARE: Final = 0.8  # A gate opens when this much of its limit is left in use, so that it does not flutter.


class Holdable(Protocol):
    def hold(self, reason: str) -> None: ...
    def release(self, reason: str) -> None: ...


class Gate:
    def __init__(self, reason: str, patience_s: float | None = None) -> None:
        """`reason`: of its holds; each gate of a connection has its own."""
        self._reason = reason
        self.is_shut = False
        self.refuses = False
        self.shut_times = 0
        self._patience_s = patience_s
        self._impatient: asyncio.TimerHandle | None = None
        self.waiting: list[Holdable] = []
        self._was_shut = asyncio.Event()

    async def wait_shut(self) -> None:
        """Returns when the gate is shut, for the task that opens it again."""
        await self._was_shut.wait()

    def shut(self) -> None:
        if self.is_shut:
            return
        self.is_shut = True
        self._was_shut.set()
        self.shut_times += 1
        if self._patience_s is not None:
            self._impatient = asyncio.get_running_loop().call_later(self._patience_s, self._lose_patience)

    def wait(self, connection: Holdable) -> None:
        """Holds the connection, once per time that the gate is shut, however often the connection comes."""
        if self.is_shut and not self.refuses and connection not in self.waiting:
            self.waiting.append(connection)
            connection.hold(self._reason)

    def open(self) -> None:
        if not self.is_shut:
            return
        self.is_shut = self.refuses = False
        self._was_shut.clear()
        self.close()
        self._let_go()

    def close(self) -> None:
        """Ends the patience: the gate will not be opened any more."""
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None

    def forget(self, connection: Holdable) -> None:
        """Forgets a closed connection."""
        if connection in self.waiting:
            self.waiting.remove(connection)

    def _lose_patience(self) -> None:
        self.refuses = True
        self._let_go()

    def _let_go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for connection in waiting:
            connection.release(self._reason)


class WriterQuotas:
    def __init__(self, adds_max: int, patience_s: float) -> None:
        self._adds_max = adds_max
        self._patience_s = patience_s
        self.pending: dict[Holdable, int] = {}
        """The adds of each writer that has any waiting."""
        self._gates: dict[Holdable, Gate] = {}
        self.held = 0
        """How often a writer was at its limit."""

    def has_room(self, connection: Holdable, count: int) -> bool:
        """Reports room. A writer without waiting adds always has room, however many come at once: else they could never
        pass."""
        pending = self.pending.get(connection, 0)
        return not pending or pending + count <= self._adds_max

    def must_wait(self, connection: Holdable, count: int) -> bool:
        """Reports whether the connection must wait, and holds it in that case."""
        if self.has_room(connection, count):
            return False
        gate = self._gates.get(connection)
        if gate is None:
            gate = self._gates[connection] = Gate("pending adds of one writer", self._patience_s)
            gate.shut()
            self.held += 1
        gate.wait(connection)
        return not gate.refuses

    def begin(self, connection: Holdable, count: int) -> None:
        self.pending[connection] = self.pending.get(connection, 0) + count

    def end(self, connection: Holdable, count: int) -> None:
        left = self.pending.get(connection, 0) - count
        if left > 0:
            self.pending[connection] = left
        else:
            self.pending.pop(connection, None)
        if self._gates and left <= self._adds_max * REOPEN_SHARE and (gate := self._gates.pop(connection, None)):
            gate.open()

    def forget(self, connection: Holdable) -> None:
        """Forgets a closed connection."""
        self.pending.pop(connection, None)
        if gate := self._gates.pop(connection, None):
            gate.close()

    def close(self) -> None:
        for gate in self._gates.values():
            gate.close()
