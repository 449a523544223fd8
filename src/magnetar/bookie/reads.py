"""Reads: plain ones by the run, from the caches without a task; the others one by one.

Invariant: "no such entry" is answered only when it is certain. A ledger in limbo, a damaged log, or a disk that does
           not answer gives an error instead (B5, L9): a reader then asks another bookie, and recovery does not guess.
           A request that was taken gets an answer. If no frame can carry the answer, that must not cost the connection,
           and with it every other request in flight there.
Order:     entries in the write cache or the read cache are answered at once. Small answers are joined, which costs less
           than to hand them over one by one; large ones are not copied. Reads from disk are one task per run, and the
           read-ahead turns most of them into cache hits.
Limits:    in progress (hold), per connection (refuse). A read that waits for an event from outside, as a long poll
           does, is not in progress during that (`set_aside`). Answers are looked up no faster than their client takes
           them. An entry that was accepted fits the answer to any read (`ENTRY_BYTES_MAX`), but maybe not with the
           optional fields, so they are left out first. An answer that waits to be written keeps little more than its
           own bytes in memory: a small part of a large chunk is copied (storage/frames.py). Reads that are not
           looked up yet stay with their connection, as requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import struct
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from magnetar.bookie.admission import REOPEN_SHARE, Gate
from magnetar.bookie.connection import Connection
from magnetar.bookie.ledgers import NO_LAC, LedgerTable
from magnetar.errors import EntryMissingError, LedgerMissingError, LocalProtocolError, MagnetarError
from magnetar.runtime.disk import Buffer
from magnetar.runtime.gather import cancel_all
from magnetar.storage.frames import lend, lent
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import response_parts
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.hot_path import ReadRun, read_response_header
from magnetar.wire.bookkeeper.messages import AnyRequest, AnyResponse, ReadLacResponse, ReadResponse, answer_to

log = logging.getLogger(__name__)

LAC_OF_ENTRY = struct.Struct(">16xq")
"""The beginning of a stored entry: ledger id, entry id, LAC."""
_EXPLICIT_LAC = struct.Struct(">8xq")  # The beginning of a LAC as clients send it: ledger id, LAC.

_JOIN_BYTES_MAX: Final = 2_048  # On average: such parts cost less to copy together than to hand over one by one.


def to_send(parts: list[Buffer]) -> Sequence[Buffer]:
    """Returns the same bytes in the best parts for sending: one, if they are small; or views of large entries.

    Small parts of large chunks are copied. The list is changed.
    """
    if sum(map(len, parts)) <= _JOIN_BYTES_MAX * len(parts):
        return (b"".join(parts),) if parts else ()
    lend(parts)
    return parts


def sendable_parts(request: AnyRequest, answer: AnyResponse) -> list[Buffer]:
    """Returns the answer as it is, or without optional fields, or otherwise a failure."""
    try:
        return response_parts(answer)
    except LocalProtocolError:
        return _shorter_parts(request, answer)


def _shorter_parts(request: AnyRequest, answer: AnyResponse) -> list[Buffer]:
    try:
        return response_parts(_shortened(answer))
    except LocalProtocolError as error:
        what = {"request": type(request).__name__, "why": str(error)}
        log.error("an answer cannot be sent, the client gets a failure", extra=what)
        return response_parts(answer_to(request, Code.EIO))


def _shortened(answer: AnyResponse) -> AnyResponse:
    match answer:
        case ReadResponse():
            return dataclasses.replace(answer, max_lac=None, lac_updated_ms=None)
        case ReadLacResponse(lac_body=bytes() as explicit, last_entry_body=last) if last is not None:
            # Both contain a LAC, and the client takes the greater.
            (lac,) = LAC_OF_ENTRY.unpack_from(last)
            if lac_of_explicit(explicit) < lac:
                return dataclasses.replace(answer, lac_body=None)
            return dataclasses.replace(answer, last_entry_body=None)
        case _:
            return answer


def lac_of_explicit(body: bytes) -> int:
    """Returns the LAC of an explicit LAC. If it is too short to have one, the result is below all others."""
    return _EXPLICIT_LAC.unpack_from(body)[0] if len(body) >= _EXPLICIT_LAC.size else NO_LAC


_SEND_BYTES = 256 * 1024  # The answers of one run leave in pieces of this size, not at its end.
_LOOK_UP_MAX = 256  # Entries taken from the caches before their connection is asked whether it takes more.


class ReadLimits(NamedTuple):
    in_progress_max: int
    per_connection_max: int


class Found(NamedTuple):
    code: Code
    entry_id: int
    body: Buffer = b""


class Reads:
    def __init__(self, table: LedgerTable, storage: LedgerStorage, limits: ReadLimits) -> None:
        self._table = table
        self._storage = storage
        self._limits = limits
        self.in_progress = 0
        self.served = 0
        self.refused = 0
        self.failed = 0
        self.busy_gate = Gate("reads in progress")
        self._pending: dict[Connection, int] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._idle: asyncio.Future[None] | None = None  # Set while a caller waits for it.

    def on_run(self, connection: Connection, run: ReadRun) -> int:
        """Returns how many were taken: all, or as many as filled the connection, which is held then."""
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
            connection.send(to_send(parts), len(parts) // 2)
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
        """Serves up to `_SEND_BYTES`; returns False if these were the last."""
        get = self._storage.get_entry_nowait
        parts: list[Buffer] = []
        size = answers = settled = 0
        for ledger_id, entry_id in left:
            body: Buffer | None = get(ledger_id, entry_id)  # The read before has likely brought it along.
            code = Code.EOK
            if body is None:
                lend(parts, settled)  # The caches may let go of these chunks meanwhile.
                settled = len(parts)
                code, _, body = await self.find(ledger_id, entry_id)
            else:
                self.served += 1
            parts += (read_response_header(ledger_id, entry_id, len(body), code), body)
            size += len(body)
            answers += 1
            if size >= _SEND_BYTES:
                break
        connection.send(to_send(parts), answers)
        return size >= _SEND_BYTES

    async def find(self, ledger_id: int, entry_id: int) -> Found:
        """Returns the entry, or the error to answer. `LAST_ENTRY` finds the last one here."""
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
        return Found(Code.EOK, entry_id, lent(body))

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

    def must_wait(self, connection: Connection) -> bool:
        """Reports whether the connection must wait, and holds it in that case."""
        if self.in_progress >= self._limits.in_progress_max:
            self.busy_gate.shut()
        if self.busy_gate.is_shut:
            self.busy_gate.wait(connection)
            return True
        return False

    def is_over_quota(self, connection: Connection) -> bool:
        return self._pending.get(connection, 0) >= self._limits.per_connection_max

    def spawn(self, connection: Connection, work: Coroutine[Any, Any, None], count: int = 1) -> None:
        """Spawns reads that need time; `count` of them."""
        self.in_progress += count
        self._pending[connection] = self._pending.get(connection, 0) + count
        task = asyncio.get_running_loop().create_task(work, name="reads")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._done(done, connection, count))

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Makes a spawned read not count as in progress inside this context. Its connection still has it pending."""
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
        if self.in_progress <= self._limits.in_progress_max * REOPEN_SHARE:
            self.busy_gate.open()
        if self._idle is not None and not self.in_progress and not self._idle.done():
            self._idle.set_result(None)

    async def wait_idle(self) -> None:
        """Returns when nothing is in progress. One caller at a time."""
        if self.in_progress:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def on_closed(self, connection: Connection) -> None:
        self.busy_gate.forget(connection)

    async def aclose(self) -> None:
        await cancel_all(list(self._tasks))


def _by_ledger(run: ReadRun) -> Iterator[tuple[int, Sequence[int]]]:
    """Yields stretches of reads of one ledger, none longer than `_LOOK_UP_MAX`; mostly one ledger has all."""
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
