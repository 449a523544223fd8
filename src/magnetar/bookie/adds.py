"""Adds: from a run of frames in a receive buffer to the write cache, the journal, and one answer per run.

Invariant: an add is answered EOK only from `on_durable`, after the journal has synced its group (deferred sync aside,
           which its client asked for). An entry that is refused is never journaled, so replay cannot bring it back.
Order:     a run that cannot be taken now stays with its connection, which is held; so no request overtakes it. If not
           all ledgers of a run are in memory, the adds before the first missing ledger are taken. The rest is offered
           again when its ledgers are loaded. At least its first add is then taken, also if the table is smaller than
           the run: ledgers that were loaded for a connection are put back if they were evicted meanwhile.
Format:    what is taken of a run is one record of the journal, also if some of it is refused. So room for one record,
           asked for before the run is looked at, is room for all of it.
Limits:    in progress and journal queue (hold); of one connection, and write cache (hold, then refuse). On the hot path
           a run is copied once: the write cache points into the bytes that the journal writes. When all contexts of a
           run are known, nothing is checked per entry and nothing is awaited.
Read next: ledgers.py (contexts), admission.py, storage/journal/journal.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, cast

from magnetar.bookie.admission import REOPEN_SHARE, Gate, WriterQuotas
from magnetar.bookie.connection import Connection
from magnetar.bookie.ledgers import Ledger, LedgerTable, RecordSink, move_lacs
from magnetar.bookie.read_only import ReadOnlySwitch
from magnetar.errors import MagnetarError
from magnetar.runtime.disk import Buffer
from magnetar.runtime.gather import cancel_all
from magnetar.storage.frames import ENTRY_OFFSET, add_frame
from magnetar.storage.journal.format import RecordKind
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import encode_response
from magnetar.wire.bookkeeper.frames import Flag
from magnetar.wire.bookkeeper.hot_path import (
    AddRun,
    encode_add_responses,
    encode_adds_done,
    parse_context,
    scan_adds,
)
from magnetar.wire.bookkeeper.messages import AddEntry, answer_to

log = logging.getLogger(__name__)

_LOADING: Final = "loading ledgers"  # The reason of holds until the ledgers of a run are in memory.


class AddLimits(NamedTuple):
    in_progress_max: int
    per_connection_max: int
    per_connection_wait_s: float


class DurableAdds(NamedTuple):
    """A journal token: these entries are durable, answer their writer."""

    connection: Connection
    frames: bytes
    """The adds as they came, one after the other."""
    offsets: list[int]
    """The offsets of the entries in the frames."""
    ledger_ids: list[int]
    """One for all entries, or one for each."""


class DurableAdd(NamedTuple):
    """A journal token: one entry that came as protobuf."""

    connection: Connection
    answer: bytes


class Adds:
    def __init__(
        self,
        table: LedgerTable,
        storage: LedgerStorage,
        journal: RecordSink,
        cache_gate: Gate,
        switch: ReadOnlySwitch,
        limits: AddLimits,
        now_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._storage = storage
        self._journal = journal
        self._switch = switch
        self._limits = limits
        self._now_ms = now_ms
        self.in_progress = 0
        self.added = 0
        self.refused: dict[Code, int] = {}
        self.busy_gate = Gate("adds in progress")
        self.journal_gate = Gate("journal queue")
        self.cache_gate = cache_gate
        self.quotas = WriterQuotas(limits.per_connection_max, limits.per_connection_wait_s)
        self._loads: dict[asyncio.Task[None], None] = {}
        self._loaded: dict[Connection, list[Ledger]] = {}  # For the run that is offered again.

    # --- what comes in ------------------------------------------------------------------------------------------------

    def on_run(self, connection: Connection, buffer: Buffer, start: int, run: AddRun) -> int:
        """Returns how many were taken: all, or those before the first ledger that must be loaded. If there are others,
        the connection is held."""
        count = len(run.entry_ids)
        if self._must_wait(connection, count):
            return 0
        self._put_back_loaded(connection)
        ledgers = list(map(self._table.find_context, run.contexts))
        may_pass = not (self._switch.is_read_only or self.cache_gate.refuses)
        if not all(ledgers) or not may_pass or not self.quotas.has_room(connection, count):
            return self._admit_one_by_one(connection, buffer, run)
        chunk = bytes(memoryview(buffer)[start : run.end])
        self._accept(connection, chunk, start, run, cast("list[Ledger]", ledgers))
        return count

    def _accept(self, connection: Connection, chunk: bytes, base: int, run: AddRun, ledgers: Sequence[Ledger]) -> None:
        """Accepts every entry of the run, which is in the chunk from `base` on."""
        offsets = [offset - base for offset in run.offsets] if base else run.offsets
        now_ms = self._now_ms()
        if len(ledgers) == 1:  # By far the most common: one writer, one ledger.
            ledger_ids = [ledgers[0].id]
            self._storage.add_run(ledgers[0].id, chunk, run.entry_ids, offsets, run.lengths)
            ledgers[0].move_lac(max(run.lacs), now_ms)
        else:
            if len(ledgers) < len(run.entry_ids):
                ledgers = _for_each_entry(ledgers, run)
            ledger_ids = [ledger.id for ledger in ledgers]
            self._storage.add_many(ledger_ids, chunk, run.entry_ids, offsets, run.lengths)
            move_lacs(ledgers, run.lacs, now_ms)
        self._journal.submit(RecordKind.ADDS, (chunk,), [DurableAdds(connection, chunk, offsets, ledger_ids)])
        self._begin(connection, len(offsets))  # Only now: what was not submitted would never be ended.

    def on_add(self, connection: Connection, request: AddEntry) -> bool:
        """Takes one add that is not a compact frame; it is stored in the same form."""
        if self._must_wait(connection, 1):
            return False
        self._put_back_loaded(connection)
        ledger = self._table.find(request.ledger_id)
        if ledger is None:
            self._load(connection, [request.ledger_id])
            return False
        code = self._check(connection, ledger, request.master_key, request.recovery, request.high_priority)
        if code is Code.EOK:
            self._accept_one(connection, request, ledger)
        else:
            self.refused[code] = self.refused.get(code, 0) + 1
            connection.send((encode_response(answer_to(request, code)),))
        return True

    def _accept_one(self, connection: Connection, request: AddEntry, ledger: Ledger) -> None:
        chunk = add_frame(request.master_key, request.body)
        self._table.learn_key(ledger, request.master_key)
        (lac,) = scan_adds(chunk, 0, len(chunk)).lacs
        self._storage.add_run(ledger.id, chunk, [request.entry_id], [ENTRY_OFFSET], [len(request.body)])
        ledger.move_lac(lac, self._now_ms())
        answer = encode_response(answer_to(request))
        token = DurableAdd(connection, b"" if request.deferred_sync else answer)
        self._journal.submit(RecordKind.ADDS, (chunk,), [token])
        self._begin(connection, 1)
        if request.deferred_sync:
            connection.send((answer,))

    # --- what goes out ------------------------------------------------------------------------------------------------

    def on_durable(self, tokens: Iterable[DurableAdds | DurableAdd]) -> None:
        for token in tokens:
            if isinstance(token, DurableAdds):
                connection, frames, offsets, _ = token
                connection.send((encode_adds_done(frames, offsets),), len(offsets))
                self._end(connection, len(offsets))
            else:
                if token.answer:
                    token.connection.send((token.answer,))
                self._end(token.connection, 1)

    def on_group_written(self) -> None:
        """Runs once per journal group, after its answers."""
        if self.in_progress <= self._limits.in_progress_max * REOPEN_SHARE:
            self.busy_gate.open()
        if self._journal.has_room:
            self.journal_gate.open()

    def on_closed(self, connection: Connection) -> None:
        self._loaded.pop(connection, None)
        self.quotas.forget(connection)
        for gate in (self.busy_gate, self.journal_gate, self.cache_gate):
            gate.forget(connection)

    async def aclose(self) -> None:
        self.cache_gate.close()
        self.quotas.close()
        await cancel_all(list(self._loads))

    # --- the slow way -------------------------------------------------------------------------------------------------

    def _admit_one_by_one(self, connection: Connection, buffer: Buffer, run: AddRun) -> int:
        """Handles a run with a new context, or that may pass only in part: each stretch of one context by itself. Stops
        at the first ledger that is not in memory, and returns how many adds are before it."""
        ledger_ids = [parse_context(context).ledger_id for context in run.contexts]
        missing = [ledger_id for ledger_id in dict.fromkeys(ledger_ids) if self._table.find(ledger_id) is None]
        stretches = ledger_ids.index(missing[0]) if missing else len(ledger_ids)
        bounds = [*run.firsts, len(run.entry_ids)]
        taken: list[AddRun] = []
        ledgers: list[Ledger] = []
        count = 0
        for context, a, b in zip(run.contexts[:stretches], bounds, bounds[1:], strict=False):
            stretch = _slice(run, a, b)
            ledger = self._decide(connection, context, stretch.entry_ids, count)
            if ledger is not None:
                taken.append(stretch)
                ledgers.append(ledger)
                count += b - a
        if taken:
            chunk, joined = _joined(buffer, taken)
            self._accept(connection, chunk, 0, joined, ledgers)
        if missing:
            self._load(connection, missing[: self._table.ledgers_max])
        return bounds[stretches]

    def _decide(self, connection: Connection, context: bytes, entry_ids: list[int], before: int) -> Ledger | None:
        """Returns None if they were refused and answered. `before` adds are taken with them, and not counted yet."""
        ledger_id, master_key, flags = parse_context(context)
        ledger = self._table.find(ledger_id)
        assert ledger is not None, "loaded before"
        recovery, high_priority = bool(flags & Flag.RECOVERY_ADD), bool(flags & Flag.HIGH_PRIORITY)
        count = len(entry_ids)
        code = self._check(connection, ledger, master_key, recovery, high_priority, before + count)
        if code is Code.EOK:
            self._table.admit(context)
            return ledger
        self.refused[code] = self.refused.get(code, 0) + count
        connection.send((encode_add_responses([ledger_id] * count, entry_ids, [code] * count),), count)
        return None

    def _check(
        self,
        connection: Connection,
        ledger: Ledger,
        master_key: bytes,
        recovery: bool,
        high_priority: bool,
        count: int = 1,
    ) -> Code:
        if self._switch.is_read_only and not (high_priority and self._switch.takes_high_priority):
            return Code.EREADONLY
        if self.cache_gate.refuses or not self.quotas.has_room(connection, count):
            return Code.ETOOMANYREQUESTS
        return ledger.check_add(master_key, recovery=recovery)

    def _load(self, connection: Connection, ledger_ids: list[int]) -> None:
        """Loads ledgers while the connection waits; it then offers what was not taken again: the order of requests is
        kept."""
        connection.hold(_LOADING)
        loaded = self._loaded[connection] = []

        async def load() -> None:
            try:
                for ledger_id in ledger_ids:
                    ledger = await self._table.load(ledger_id)
                    loaded.append(ledger)
            except MagnetarError as error:  # Storage cannot report what it knows: no answer is better than a guess.
                log.error("a ledger cannot be loaded", extra={"ledgers": ledger_ids, "why": str(error)})
                connection.abort()
            finally:
                connection.release(_LOADING)

        task = asyncio.get_running_loop().create_task(load(), name="load ledgers for adds")
        self._loads[task] = None
        task.add_done_callback(lambda done: self._loads.pop(done))

    def _put_back_loaded(self, connection: Connection) -> None:
        """Ends the loading for a connection: others may have evicted since what was loaded for it. The ledger that it
        needs first comes last, so none of its own evicts that one again."""
        if self._loaded:  # Rarely: this is on the hot path.
            for ledger in reversed(self._loaded.pop(connection, ())):
                self._table.keep(ledger)

    # --- counting -----------------------------------------------------------------------------------------------------

    def _begin(self, connection: Connection, count: int) -> None:
        self.in_progress += count
        self.added += count
        self.quotas.begin(connection, count)

    def _end(self, connection: Connection, count: int) -> None:
        self.in_progress -= count
        self.quotas.end(connection, count)

    def _must_wait(self, connection: Connection, count: int) -> bool:
        """Reports whether the connection must wait, and holds it in that case."""
        if self.in_progress >= self._limits.in_progress_max:
            self.busy_gate.shut()
        if not self._journal.has_room:
            self.journal_gate.shut()
        if not self._storage.has_room:
            self.cache_gate.shut()
        for gate in (self.busy_gate, self.journal_gate, self.cache_gate):
            if gate.is_shut and not gate.refuses:
                gate.wait(connection)
                return True
        return self.quotas.must_wait(connection, count)


def _for_each_entry(ledgers: Sequence[Ledger], run: AddRun) -> list[Ledger]:
    """Returns one for each entry from one for each context."""
    bounds = [*run.firsts, len(run.entry_ids)]
    return [ledger for ledger, a, b in zip(ledgers, bounds, bounds[1:], strict=False) for _ in range(a, b)]


def _slice(run: AddRun, a: int, b: int) -> AddRun:
    end = run.offsets[b - 1] + run.lengths[b - 1]
    return AddRun(end, run.entry_ids[a:b], run.lacs[a:b], run.offsets[a:b], run.lengths[a:b], [0], [])


def _joined(buffer: Buffer, runs: Sequence[AddRun]) -> tuple[bytes, AddRun]:
    """Returns stretches of a buffer, maybe with gaps between them, as one chunk without gaps; and its entries'
    places."""
    view = memoryview(buffer)
    pieces: list[memoryview] = []
    joined = AddRun(sum([run.end - _begin_of(run) for run in runs]), [], [], [], [], [], [])
    position = 0
    for run in runs:
        begin = _begin_of(run)
        pieces.append(view[begin : run.end])
        joined.firsts.append(len(joined.entry_ids))
        joined.entry_ids.extend(run.entry_ids)
        joined.lacs.extend(run.lacs)
        joined.offsets.extend([offset - begin + position for offset in run.offsets])
        joined.lengths.extend(run.lengths)
        position += run.end - begin
    return b"".join(pieces), joined


def _begin_of(run: AddRun) -> int:
    return run.offsets[0] - ENTRY_OFFSET
