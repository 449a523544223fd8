"""A writer whose caller chooses the entry ids.

Invariant: Every id from 0 on is added once, in any order. An entry is acknowledged when all before it are, so one that
           comes before its turn waits here: a bookie could not make it part of the ledger any sooner. Once its turn has
           come, the entry is sent although its caller may have left, as all later ones would otherwise move up.
Limits:    `adds_in_flight_max` entries wait for their turn, each for `add_quorum_timeout_ms` at most. When the writer
           ends, all of them fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from magnetar.errors import AddTimeoutError, DuplicateEntryError, LedgerError, WriterBusyError
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.runtime.uncancelled import ignore_outcome
from magnetar.wire.bookkeeper.frames import Buffer


class AdvancedLedgerWriter:
    """Owns the writer that it is given."""

    def __init__(self, writer: LedgerWriter, *, waiting_max: int, wait_s: float) -> None:
        self.writer = writer
        """The writer below, for what is known of the ledger; not for adding."""
        self._waiting_max = waiting_max
        self._wait_s = wait_s
        self._next = 0
        self._waiting: dict[int, tuple[Buffer, asyncio.Future[asyncio.Future[int]]]] = {}
        writer.on_failure = self._on_failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_up_waiting()
        await self.writer.__aexit__(kind, error, traceback)

    @property
    def ledger_id(self) -> int:
        return self.writer.ledger_id

    async def add(self, entry_id: int, payload: Buffer) -> int:
        """Returns the id when the entry and all before it are acknowledged. The payload must not change until then."""
        self.writer.check_usable()
        if entry_id < 0:
            raise DuplicateEntryError(f"entry ids begin at 0, and this one is {entry_id}")
        if entry_id < self._next or entry_id in self._waiting:
            raise DuplicateEntryError(f"entry {entry_id} of ledger {self.ledger_id} was added already")
        self.writer.check_size(payload)
        if entry_id > self._next:
            added = await self._turn(entry_id, payload)
        else:
            added = self._enqueue(payload)
            self._let_next_go()
        return await asyncio.shield(added)

    def _enqueue(self, payload: Buffer) -> asyncio.Future[int]:
        added = self.writer.enqueue(payload)
        added.add_done_callback(ignore_outcome)
        self._next += 1
        return added

    async def _turn(self, entry_id: int, payload: Buffer) -> asyncio.Future[int]:
        if len(self._waiting) >= self._waiting_max:
            raise WriterBusyError(
                f"{len(self._waiting)} entries of ledger {self.ledger_id} wait for entry {self._next}: add that one"
            )
        turn: asyncio.Future[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        turn.add_done_callback(ignore_outcome)
        self._waiting[entry_id] = payload, turn
        try:
            async with asyncio.timeout(self._wait_s):
                return await turn
        except TimeoutError:
            if turn.done() and not turn.cancelled():  # It came in the same moment: the entry is sent, or refused.
                return turn.result()
            raise AddTimeoutError(
                f"entry {entry_id} of ledger {self.ledger_id} was not sent: entry {self._next} has not been added "
                f"within {self._wait_s:g} s; add the entries before it, then this one again"
            ) from None
        finally:
            if entry_id >= self._next:  # Its turn never came, so it may be added again.
                self._waiting.pop(entry_id, None)

    def _let_next_go(self) -> None:
        while (waiting := self._waiting.pop(self._next, None)) is not None:
            payload, turn = waiting
            if turn.done():
                return
            try:
                added = self._enqueue(payload)
            except LedgerError as error:
                turn.set_exception(error)
                return
            turn.set_result(added)

    def _on_failure(self, refusal: LedgerError) -> None:
        """Fails all that wait when the writer fails."""
        self._fail_waiting(lambda _: refusal)

    def _give_up_waiting(self) -> None:
        self._fail_waiting(
            lambda entry_id: WriterBusyError(
                f"entry {entry_id} was not sent: the ledger was closed before entry {self._next} came"
            )
        )

    def _fail_waiting(self, error_of: Callable[[int], LedgerError]) -> None:
        waiting, self._waiting = self._waiting, {}
        for entry_id, (_, turn) in waiting.items():
            if not turn.done():
                turn.set_exception(error_of(entry_id))

    async def close(self) -> None:
        """Closes the ledger after the last acknowledged entry. Entries whose turn has not come fail."""
        self._give_up_waiting()
        await self.writer.close()
