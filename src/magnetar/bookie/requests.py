"""Requests: runs go straight to adds and reads, every other request to its handler here.

Order:     a handler is a coroutine that returns the answer. Answers that may be large are looked up in a turn of their
           connection (`turn_to_answer`), and not while the request waits for a fence or for a LAC to move.
Limits:    a handler runs as a task of `Reads`, and so counts as a read in progress: none is on the hot path, and none
           may pile up without a bound. A long poll that waits looks nothing up, and is no read in progress: otherwise
           readers of idle ledgers would keep all others from being served. It counts among the pending requests of its
           connection, and among all that may wait. A client may ask for any time; after `LONG_POLL_MS_MAX` at most it
           gets the present LAC. A client that closes its connection is forgotten at once.
Read next: adds.py, reads.py, ledgers.py
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Final

from magnetar.bookie.adds import Adds
from magnetar.bookie.connection import Connection
from magnetar.bookie.journals import Records
from magnetar.bookie.ledgers import Fencing, Ledger, LedgerTable
from magnetar.bookie.read_only import ReadOnlySwitch
from magnetar.bookie.reads import LAC_OF_ENTRY, Reads, lac_of_explicit, sendable_parts, to_send
from magnetar.errors import MagnetarError
from magnetar.runtime.disk import DiskUsage
from magnetar.storage.journal.format import ExplicitLac, RecordKind, encode_explicit_lac
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.wire.bookkeeper.availability import AvailabilityEncoder
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import response_parts
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    AddEntry,
    AnyRequest,
    AnyResponse,
    Auth,
    BatchRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    ReadEntry,
    ReadLac,
    StartTls,
    WriteLac,
    answer_to,
)
from magnetar.wire.bookkeeper.v2 import BATCH_ENTRY_HEAD_BYTES, BATCH_HEADER

_BATCH_BYTES_MAX = 5 * 2**20  # A batch is one frame, and Apache's client takes none that is larger by default.


class Requests:
    """The handler of every connection of a bookie."""

    def __init__(
        self,
        table: LedgerTable,
        storage: LedgerStorage,
        journal: Records,
        adds: Adds,
        reads: Reads,
        fencing: Fencing,
        polls: LongPolls,
        switch: ReadOnlySwitch,
        usage: Callable[[], Awaitable[DiskUsage]],
        now_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._storage = storage
        self._journal = journal
        self._adds = adds
        self._reads = reads
        self._fencing = fencing
        self._polls = polls
        self._switch = switch
        self._usage = usage
        self._now_ms = now_ms
        self.connections: dict[Connection, None] = {}
        self.on_adds = adds.on_run
        self.on_reads = reads.on_run
        self._handlers: dict[type[AnyRequest], Callable[[Connection, Any], Awaitable[AnyResponse]]] = {
            ReadEntry: self._read,
            BatchRead: self._batch_read,
            ReadLac: self._read_lac,
            WriteLac: self._write_lac,
            ForceLedger: self._force,
            GetBookieInfo: self._bookie_info,
            ListEntries: self._list_entries,
            Auth: self._auth,
            StartTls: self._start_tls,
        }

    def on_request(self, connection: Connection, request: AnyRequest) -> bool:
        if isinstance(request, AddEntry):
            return self._adds.on_add(connection, request)
        if self._reads.must_wait(connection):
            return False
        if self._reads.is_over_quota(connection):
            self._reads.refused += 1
            connection.send(response_parts(answer_to(request, Code.ETOOMANYREQUESTS)))
            return True
        self._reads.spawn(connection, self._serve(connection, request))
        return True

    def on_closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._adds.on_closed(connection)
        self._reads.on_closed(connection)
        self._polls.on_closed(connection)

    async def _serve(self, connection: Connection, request: AnyRequest) -> None:
        try:
            answer = await self._handlers[type(request)](connection, request)
        except MagnetarError:
            answer = answer_to(request, Code.EIO)
        connection.send(to_send(sendable_parts(request, answer)))

    # --- reads --------------------------------------------------------------------------------------------------------

    async def _read(self, connection: Connection, request: ReadEntry) -> AnyResponse:
        if (code := await self._fence(request)) is not Code.EOK:
            return answer_to(request, code)
        if request.previous_lac is not None:
            return await self._long_poll(connection, request, request.previous_lac)
        return await self._found(connection, request, request.entry_id)

    async def _fence(self, request: ReadEntry | BatchRead) -> Code:
        """Fences the ledger if the request asks for it."""
        if not request.fence:
            return Code.EOK
        assert request.master_key is not None, "the decoder refuses a fencing read without a key"
        return await self._fencing.fence(request.ledger_id, request.master_key)

    async def _long_poll(self, connection: Connection, request: ReadEntry, previous_lac: int) -> AnyResponse:
        ledger = await self._table.load(request.ledger_id)
        if not ledger.is_known and not await self._storage.has_ledger(request.ledger_id):
            return answer_to(request, Code.ENOLEDGER)
        if ledger.flags.limbo:
            return answer_to(request, Code.EUNKNOWNLEDGERSTATE)
        await self._learn_lac(ledger)
        if request.timeout_ms is not None and ledger.lac <= previous_lac:
            if not self._polls.has_room:
                self._reads.refused += 1
                return answer_to(request, Code.ETOOMANYREQUESTS)
            with self._reads.set_aside():
                await self._polls.wait(connection, ledger, previous_lac, request.timeout_ms)
        if not request.piggyback:
            return await self._found(connection, request, request.entry_id)
        if ledger.lac > previous_lac:
            found = await self._found(connection, request, previous_lac + 1)
            if found.code is not Code.ENOENTRY:  # Striped: the entry may be on other bookies only.
                return found
        return answer_to(request, max_lac=ledger.lac, lac_updated_ms=ledger.lac_changed_ms)

    async def _found(self, connection: Connection, request: ReadEntry, entry_id: int) -> AnyResponse:
        """Answers with the id that was asked for, "the last one" included: by that a v2 client finds its request."""
        async with connection.turn_to_answer():
            code, _, body = await self._reads.find(request.ledger_id, entry_id)
        ledger = self._table.find(request.ledger_id)
        lac = {"max_lac": ledger.lac, "lac_updated_ms": ledger.lac_changed_ms} if ledger else {}
        return answer_to(request, code, entry_id=entry_id, body=body, **lac)

    async def _batch_read(self, connection: Connection, request: BatchRead) -> AnyResponse:
        if (code := await self._fence(request)) is not Code.EOK:
            return answer_to(request, code)
        bytes_max = min(request.bytes_max, _BATCH_BYTES_MAX) if request.bytes_max > 0 else _BATCH_BYTES_MAX
        count = request.entries_max if request.entries_max > 0 else bytes_max
        bytes_max -= BATCH_HEADER.size
        async with connection.turn_to_answer():
            first = await self._reads.find(request.ledger_id, request.entry_id)
            if first.code is not Code.EOK:
                return answer_to(request, first.code)
            bodies = await self._storage.read_range(
                request.ledger_id, request.entry_id, count, bytes_max, head_bytes=BATCH_ENTRY_HEAD_BYTES
            )
        return answer_to(request, bodies=bodies or (first.body,))

    # --- the last add confirmed ---------------------------------------------------------------------------------------

    async def _read_lac(self, connection: Connection, request: ReadLac) -> AnyResponse:
        ledger = await self._table.load(request.ledger_id)
        async with connection.turn_to_answer():
            found = await self._reads.find(request.ledger_id, LAST_ENTRY)
        if ledger.flags.limbo:  # A greater LAC may have been promised.
            return answer_to(request, Code.EUNKNOWNLEDGERSTATE)
        if found.code is not Code.EOK and ledger.flags.explicit_lac is None:
            # Apache's bookie finds no entry in a ledger that it does not know, if it is asked for its LAC.
            return answer_to(request, Code.ENOENTRY if found.code is Code.ENOLEDGER else found.code)
        body = found.body if found.code is Code.EOK else None
        return answer_to(request, lac_body=ledger.flags.explicit_lac, last_entry_body=body)

    async def _write_lac(self, _: Connection, request: WriteLac) -> AnyResponse:
        ledger = await self._table.load(request.ledger_id)
        await self._journal.wait_for_room()
        code = Code.EREADONLY if self._switch.is_read_only else ledger.check_key(request.master_key)
        if code is not Code.EOK:
            return answer_to(request, code)
        # One that was overtaken must not hide the greater. The greater is journaled again: it may not be durable yet.
        body = max(request.body, ledger.flags.explicit_lac or b"", key=lac_of_explicit)
        changed = dataclasses.replace(ledger.flags, master_key=request.master_key, explicit_lac=body)
        self._table.change(ledger, changed)
        record = encode_explicit_lac(ExplicitLac(request.ledger_id, request.master_key, body))
        await self._journal.write(RecordKind.EXPLICIT_LAC, (record,))
        ledger.move_lac(request.lac, self._now_ms())
        return answer_to(request)

    async def _learn_lac(self, ledger: Ledger) -> None:
        """Learns the LAC of a loaded ledger, which only storage has: from the last entry and from the explicit LAC. An
        entry that came since may be an old one."""
        if ledger.lac_is_learned:
            return
        found = await self._reads.find(ledger.id, LAST_ENTRY)
        if found.code is Code.EOK:
            (lac,) = LAC_OF_ENTRY.unpack_from(found.body)
            ledger.move_lac(lac, self._now_ms())
        if ledger.flags.explicit_lac is not None:
            ledger.move_lac(lac_of_explicit(ledger.flags.explicit_lac), self._now_ms())
        ledger.lac_is_learned = found.code is not Code.EIO

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def _force(self, _: Connection, request: ForceLedger) -> AnyResponse:
        await self._journal.write_nothing()
        return answer_to(request)

    async def _bookie_info(self, _: Connection, request: GetBookieInfo) -> AnyResponse:
        usage = await self._usage()
        return answer_to(
            request,
            total_disk_bytes=usage.total_bytes if request.requested & TOTAL_DISK_CAPACITY else None,
            free_disk_bytes=usage.free_bytes if request.requested & FREE_DISK_SPACE else None,
        )

    async def _list_entries(self, connection: Connection, request: ListEntries) -> AnyResponse:
        found = AvailabilityEncoder()
        is_here = False
        async with connection.turn_to_answer():
            async for page in self._storage.entry_pages(request.ledger_id):
                found.add(page)
                is_here = True
            if not is_here and not await self._storage.has_ledger(request.ledger_id):
                return answer_to(request, Code.ENOLEDGER)
        return answer_to(request, availability=found.encoded())

    async def _auth(self, _: Connection, request: Auth) -> AnyResponse:
        """Answers that there is no authentication; the client continues."""
        return answer_to(request)

    async def _start_tls(self, _: Connection, request: StartTls) -> AnyResponse:
        return answer_to(request, Code.EBADREQ)


LONG_POLL_MS_MAX: Final = 60_000  # A reader that asks again every minute costs nothing; one that has left is forgotten.


class LongPolls:
    """The readers that wait now, by their connection."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._tasks: dict[Connection, dict[asyncio.Task[Any], None]] = {}
        self.waiting = 0

    @property
    def has_room(self) -> bool:
        return self.waiting < self._waiting_max

    async def wait(self, connection: Connection, ledger: Ledger, previous_lac: int, timeout_ms: int) -> None:
        """As `wait_for_lac`; cancelled when the connection is closed."""
        if connection.is_closed:
            return
        task = asyncio.current_task()
        assert task is not None, "a request is served by a task of its own"
        self._tasks.setdefault(connection, {})[task] = None
        self.waiting += 1
        try:
            await wait_for_lac(ledger, previous_lac, timeout_ms)
        finally:
            self.waiting -= 1
            self._forget(connection, task)

    def on_closed(self, connection: Connection) -> None:
        for task in list(self._tasks.get(connection, ())):
            task.cancel()

    def _forget(self, connection: Connection, task: asyncio.Task[Any]) -> None:
        tasks = self._tasks[connection]
        del tasks[task]
        if not tasks:
            del self._tasks[connection]


async def wait_for_lac(ledger: Ledger, previous_lac: int, timeout_ms: int) -> None:
    """Returns when the ledger's LAC is beyond this one, or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(timeout_ms, LONG_POLL_MS_MAX) / 1000):
            while ledger.lac <= previous_lac:
                await _next_move(ledger)


async def _next_move(ledger: Ledger) -> None:
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not moved.done():
            moved.set_result(None)

    ledger.waiters.append(wake)
    try:
        await moved
    finally:
        if wake in ledger.waiters:
            ledger.waiters.remove(wake)
