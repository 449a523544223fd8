"""Reads: plain ones by the run, from the caches without a task; the others one by one.

Invariant: "no such entry" is said only when it is certain. A ledger in limbo, a damaged log, or a disk that does not
           answer gives an error instead (B5, L9): a reader then asks another bookie, and recovery does not guess.
Hot path:  what the write cache or the read cache holds is answered at once, without copying; what must be read from
           disk is one task per run, and the read-ahead turns most of it into cache hits.
Memory:    answers are looked up no faster than their client takes them: an answer that waits to be written keeps its
           part of a cache from being given back. What is not looked up yet stays with its connection, as a request.
Limits:    in progress (hold), per connection (refuse). What waits for something that no work of ours brings about, as a
           long poll does, is not in progress meanwhile (`set_aside`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from magnetar.bookie.connection import Connection
from magnetar.bookie.gate import Gate
from magnetar.bookie.ledgers import LedgerTable
from magnetar.errors import EntryMissingError, LedgerMissingError, MagnetarError
from magnetar.runtime.disk import Buffer
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.hot_path import ReadRun, read_response_header
from magnetar.wire.bookkeeper.packet import LAST_ENTRY

log = logging.getLogger(__name__)

_REOPEN_SHARE = 0.8
_SEND_BYTES = 256 * 1024  # What is read for one run leaves in pieces of this size, not at its end.
_LOOK_UP_MAX = 256  # Entries taken from the caches before their connection is asked whether it takes more.


class EntrySource(Protocol):
    """Stored entries, as reads see them."""

    def get_entry_nowait(self, ledger_id: int, entry_id: int) -> memoryview | None: ...
    def get_entries_nowait(self, ledger_id: int, entry_ids: Sequence[int]) -> list[memoryview | None]: ...
    async def get_entry(self, ledger_id: int, entry_id: int) -> Buffer: ...
    async def last_entry(self, ledger_id: int) -> int | None: ...


class ReadLimits(NamedTuple):
    in_progress_max: int
    per_connection_max: int


class Found(NamedTuple):
    code: Code
    entry_id: int
    body: Buffer = b""


class Reads:
    def __init__(self, table: LedgerTable, storage: EntrySource, limits: ReadLimits) -> None:
        self._table = table
        self._storage = storage
        self._limits = limits
        self.in_progress = 0
        self.served = 0
        self.refused = 0
        self.failed = 0
        self.busy_gate = Gate()
        self._pending: dict[Connection, int] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._idle: asyncio.Future[None] | None = None  # If somebody waits for it.

    def on_run(self, connection: Connection, run: ReadRun) -> int:
        """How many were taken: all, or as many as filled the connection, which is held then."""
        if self.must_wait(connection):
            return 0
        missed: list[tuple[int, int]] = []
        taken = 0
        for ledger_id, entry_ids in _by_ledger(run):
            parts: list[Buffer] = []
            for entry_id, body in zip(entry_ids, self._storage.get_entries_nowait(ledger_id, entry_ids), strict=True):
                if body is None:
                    missed.append((ledger_id, entry_id))
                else:
                    parts += (read_response_header(ledger_id, entry_id, len(body)), body)
            taken += len(entry_ids)
            connection.send(parts, len(parts) // 2)
            if not connection.takes_answers:
                break
        self.served += taken - len(missed)
        if missed:
            self._fetch(connection, missed)
        return taken

    def _fetch(self, connection: Connection, missed: list[tuple[int, int]]) -> None:
        room = self._limits.per_connection_max - self._pending.get(connection, 0)
        taken, refused = missed[:room], missed[room:]
        for ledger_id, entry_id in refused:
            self.refused += 1
            connection.send((read_response_header(ledger_id, entry_id, 0, Code.ETOOMANYREQUESTS),))
        if taken:
            self.spawn(connection, self._serve(connection, taken), len(taken))

    async def _serve(self, connection: Connection, missed: list[tuple[int, int]]) -> None:
        left = iter(missed)
        more = True
        while more:
            async with connection.turn_to_answer():
                more = await self._serve_some(connection, left)

    async def _serve_some(self, connection: Connection, left: Iterator[tuple[int, int]]) -> bool:
        """Up to `_SEND_BYTES`; False if these were the last."""
        get = self._storage.get_entry_nowait
        parts: list[Buffer] = []
        size = answers = 0
        for ledger_id, entry_id in left:
            body: Buffer | None = get(ledger_id, entry_id)  # The one before has likely brought it along.
            code = Code.EOK
            if body is None:
                code, _, body = await self.find(ledger_id, entry_id)
            else:
                self.served += 1
            parts += (read_response_header(ledger_id, entry_id, len(body), code), body)
            size += len(body)
            answers += 1
            if size >= _SEND_BYTES:
                break
        connection.send(parts, answers)
        return size >= _SEND_BYTES

    async def find(self, ledger_id: int, entry_id: int) -> Found:
        """The entry, or what is to be said instead. `LAST_ENTRY` finds the last one here."""
        try:
            if entry_id == LAST_ENTRY:
                last = await self._storage.last_entry(ledger_id)
                if last is None or (await self._table.load(ledger_id)).flags.limbo:  # The last one may be forgotten.
                    return await self._not_found(ledger_id, entry_id, Code.ENOLEDGER)
                entry_id = last
            body = await self._storage.get_entry(ledger_id, entry_id)
        except EntryMissingError:
            return await self._not_found(ledger_id, entry_id, Code.ENOENTRY)
        except LedgerMissingError:
            return await self._not_found(ledger_id, entry_id, Code.ENOLEDGER)
        except MagnetarError as error:
            self.failed += 1
            log.error("an entry cannot be read", extra={"ledger": ledger_id, "entry": entry_id, "why": str(error)})
            return Found(Code.EIO, entry_id)
        self.served += 1
        return Found(Code.EOK, entry_id, body)

    async def _not_found(self, ledger_id: int, entry_id: int, code: Code) -> Found:
        try:
            ledger = await self._table.load(ledger_id)
        except MagnetarError as error:
            self.failed += 1
            log.error("a ledger cannot be loaded", extra={"ledger": ledger_id, "why": str(error)})
            return Found(Code.EIO, entry_id)
        if ledger.flags.limbo:
            return Found(Code.EUNKNOWNLEDGERSTATE, entry_id)
        return Found(Code.ENOENTRY if ledger.is_known else code, entry_id)

    # --- what is under way --------------------------------------------------------------------------------------------

    def must_wait(self, connection: Connection) -> bool:
        """Holds the connection if so."""
        if self.in_progress >= self._limits.in_progress_max:
            self.busy_gate.shut()
        if self.busy_gate.is_shut:
            self.busy_gate.wait(connection)
            return True
        return False

    def is_over_quota(self, connection: Connection) -> bool:
        return self._pending.get(connection, 0) >= self._limits.per_connection_max

    def spawn(self, connection: Connection, work: Coroutine[Any, Any, None], count: int = 1) -> None:
        """Reads that need time; `count` of them."""
        self.in_progress += count
        self._pending[connection] = self._pending.get(connection, 0) + count
        task = asyncio.get_running_loop().create_task(work, name="reads")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._done(done, connection, count))

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """For one that was spawned: it is not in progress in here. Its connection still has it pending."""
        self._end(1)
        try:
            yield
        finally:
            self.in_progress += 1

    def _done(self, task: asyncio.Task[None], connection: Connection, count: int) -> None:
        del self._tasks[task]
        self._end(count)
        left = self._pending.get(connection, 0) - count
        if left > 0:
            self._pending[connection] = left
        else:
            self._pending.pop(connection, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a read failed", exc_info=error)
            connection.abort()

    def _end(self, count: int) -> None:
        self.in_progress -= count
        if self.in_progress <= self._limits.in_progress_max * _REOPEN_SHARE:
            self.busy_gate.open()
        if self._idle is not None and not self.in_progress and not self._idle.done():
            self._idle.set_result(None)

    async def wait_idle(self) -> None:
        """Returns when nothing is in progress. For one at a time."""
        if self.in_progress:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def on_closed(self, connection: Connection) -> None:
        self.busy_gate.forget(connection)

    async def aclose(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _by_ledger(run: ReadRun) -> Iterator[tuple[int, Sequence[int]]]:
    """Stretches of reads of one ledger, none longer than `_LOOK_UP_MAX`; nearly always there is one ledger."""
    ledger_ids, entry_ids = run.ledger_ids, run.entry_ids
    if ledger_ids.count(ledger_ids[0]) == len(ledger_ids):
        for first in range(0, len(entry_ids), _LOOK_UP_MAX):
            yield ledger_ids[0], entry_ids[first : first + _LOOK_UP_MAX]
        return
    first = 0
    for at in range(1, len(ledger_ids) + 1):
        if at == len(ledger_ids) or ledger_ids[at] != ledger_ids[first] or at - first == _LOOK_UP_MAX:
            yield ledger_ids[first], entry_ids[first:at]
            first = at
