"""Observers: what a bookie is asked and what it answers, as bytes on its connections say it.

- where: a subclass of the bookie that makes connections of a subclass, nothing else. Requests are noted when the bookie
  takes them, answers when it hands them to its connection; both decoded with the wire's own codecs. So a bookie that
  answers too early, or wrongly, is seen whatever part of it is to blame.
- linked: v3 by the transaction's number, v2 adds by ledger and entry, in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.connection import Connection, ConnectionCounters, Handler
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.sim.ledgers.hostile import NAME as HOSTILE
from magnetar.sim.ledgers.watch import AddAnswer, BookieWatch, LacAnswer, ReadAnswer, Watch
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import decode_responses
from magnetar.wire.bookkeeper.frames import Buffer, Flag
from magnetar.wire.bookkeeper.hot_path import AddRun, ReadRun, parse_context, scan_add_responses
from magnetar.wire.bookkeeper.messages import (
    V2,
    V3,
    AddEntry,
    AddResponse,
    AnyRequest,
    AnyResponse,
    BatchRead,
    BatchReadResponse,
    ReadEntry,
    ReadResponse,
    WriteLac,
    WriteLacResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable


_OK = int(Code.EOK)
Link: TypeAlias = int | tuple[int | str, int]
"""What an answer has in common with its request: v3's number; v2's ledger and entry, or the number of a batch."""


def _link(message: AnyRequest | AnyResponse) -> Link:
    if message.version == V3:
        return message.txn_id
    if isinstance(message, BatchRead | BatchReadResponse):
        return "batch", message.request_id
    return getattr(message, "ledger_id", -1), getattr(message, "entry_id", -1)


def watched(bookie: BookieWatch, watch: Watch, client_of: Callable[[Connection], str]) -> type[Bookie]:
    """The bookie's class, with an observer on every connection. `client_of` says which node is at the other end."""

    class WatchedBookie(Bookie):
        def _new_connection(self) -> Connection:
            wait_s = self._config.bookie.unwritable_wait_ms / 1000
            observer = Observer(bookie, watch, client_of)
            connection = ObservedConnection(self._requests, self.counters, self.receiving, wait_s, observer)
            self._requests.connections[connection] = None
            return connection

    return WatchedBookie


class ObservedConnection(Connection):
    def __init__(
        self, handler: Handler, counters: ConnectionCounters, memory: ReceiveMemory, wait_s: float, observer: Observer
    ) -> None:
        super().__init__(ObservedHandler(handler, observer), counters, memory, unwritable_wait_s=wait_s)
        self._observer = observer
        observer.connection = self

    @property
    def peer(self) -> Any:
        return None if self._transport is None else self._transport.get_extra_info("peername")

    def send(self, parts: Sequence[Buffer], answers: int = 1) -> None:
        if parts and self._transport is not None:
            self._observer.on_answers(b"".join(parts))
        super().send(parts, answers)


class ObservedHandler:
    def __init__(self, inner: Handler, observer: Observer) -> None:
        self._inner = inner
        self._observer = observer

    def on_adds(self, connection: Connection, buffer: bytearray, start: int, run: AddRun) -> int:
        """Noted before, as the answer may come from inside; those that are not taken are forgotten."""
        self._observer.on_adds(run)
        taken = self._inner.on_adds(connection, buffer, start, run)
        self._observer.forget_adds(run, taken)
        return taken

    def on_reads(self, connection: Connection, run: ReadRun) -> int:
        self._observer.on_reads(run)
        taken = self._inner.on_reads(connection, run)
        self._observer.forget_reads(run, taken)
        return taken

    def on_request(self, connection: Connection, request: AnyRequest) -> bool:
        key = self._observer.on_request(request)
        taken = self._inner.on_request(connection, request)
        if not taken:
            self._observer.forget(key)
        return taken

    def on_closed(self, connection: Connection) -> None:
        self._inner.on_closed(connection)


class Observer:
    """One connection's."""

    def __init__(self, bookie: BookieWatch, watch: Watch, client_of: Callable[[Connection], str]) -> None:
        self.connection: ObservedConnection
        self._bookie = bookie
        self._watch = watch
        self._client_of = client_of
        self._is_hostile: bool | None = None
        self._adds: dict[tuple[int, int], deque[tuple[bool, float]]] = {}
        self._requests: dict[Link, deque[tuple[AnyRequest | None, float]]] = {}

    @property
    def _client(self) -> str:
        return self._client_of(self.connection)

    @property
    def is_hostile(self) -> bool:
        """The client is one that nothing is promised to: what it sends and receives is not noted."""
        if self._is_hostile is None:
            self._is_hostile = self._client == HOSTILE
        return self._is_hostile

    # --- requests -----------------------------------------------------------------------------------------------------

    def on_adds(self, run: AddRun) -> None:
        if self.is_hostile:
            return
        now = self._watch.now
        bounds = [*run.firsts, len(run.entry_ids)]
        for context, a, b in zip(run.contexts, bounds, bounds[1:], strict=False):
            ledger_id, _, flags = parse_context(context)
            recovery = bool(flags & Flag.RECOVERY_ADD)
            if recovery:
                self._watch.written_back[ledger_id] = None
            for entry_id in run.entry_ids[a:b]:
                self._adds.setdefault((ledger_id, entry_id), deque()).append((recovery, now))
            self._watch.tell("on_adds_received", self._bookie, ledger_id, run.entry_ids[a:b], run.lacs[a:b])

    def forget_adds(self, run: AddRun, taken: int) -> None:
        """Those after the ones that were taken: they are offered again."""
        if self.is_hostile:
            return
        bounds = [*run.firsts, len(run.entry_ids)]
        for context, a, b in zip(run.contexts, bounds, bounds[1:], strict=False):
            ledger_id = parse_context(context).ledger_id
            for entry_id in run.entry_ids[max(a, taken) : b]:
                self._adds[ledger_id, entry_id].pop()

    def on_reads(self, run: ReadRun) -> None:
        if self.is_hostile:
            return
        for ledger_id, entry_id in zip(run.ledger_ids, run.entry_ids, strict=True):
            self._note((ledger_id, entry_id), None)

    def forget_reads(self, run: ReadRun, taken: int) -> None:
        """Those after the ones that were taken: they are offered again."""
        if self.is_hostile:
            return
        for ledger_id, entry_id in zip(run.ledger_ids[taken:], run.entry_ids[taken:], strict=True):
            self.forget((ledger_id, entry_id))

    def on_request(self, request: AnyRequest) -> Link:
        key = _link(request)
        self._note(key, request)
        return key

    def _note(self, key: Link, request: AnyRequest | None) -> None:
        if self.is_hostile:
            return
        self._requests.setdefault(key, deque()).append((request, self._watch.now))

    def forget(self, key: Link) -> None:
        if not self.is_hostile:
            self._requests[key].pop()

    def _asked(self, response: AnyResponse) -> tuple[AnyRequest | None, float]:
        asked = self._requests.get(_link(response))
        return asked.popleft() if asked else (None, 0.0)

    # --- answers ------------------------------------------------------------------------------------------------------

    def on_answers(self, data: bytes) -> None:
        self._watch.look_at_disks()
        self._watch.tell("on_any_answer", self._bookie)
        if self.is_hostile:
            return
        start = 0
        if data[4] == V2:  # The version is the first byte after the length; a protobuf begins with another.
            run = scan_add_responses(data, 0, len(data))
            for code, ledger_id, entry_id in zip(run.codes, run.ledger_ids, run.entry_ids, strict=True):
                asked = self._adds.get((ledger_id, entry_id))
                recovery, received_s = asked.popleft() if asked else (False, 0.0)
                self._add_answered(ledger_id, entry_id, code, recovery, received_s)
            start = run.end
        version = V2 if start or data[4] == V2 else V3
        for response in decode_responses(data, start, len(data), version)[0]:
            self._answered(response)

    def _answered(self, response: AnyResponse) -> None:
        request, received_s = self._asked(response)
        match response:
            case AddResponse() if isinstance(request, AddEntry):
                self._add_answered(
                    response.ledger_id,
                    response.entry_id,
                    int(response.code),
                    request.recovery,
                    received_s,
                    deferred=request.deferred_sync,
                )
            case ReadResponse():
                asked = request if isinstance(request, ReadEntry) else None
                if asked is None or asked.previous_lac is None or response.code is not Code.EOK or response.body:
                    self._read_answered(response, [bytes(response.body)], asked, received_s)
            case BatchReadResponse():
                batch = request if isinstance(request, BatchRead) else None
                self._read_answered(response, [bytes(body) for body in response.bodies], batch, received_s)
            case WriteLacResponse() if isinstance(request, WriteLac):
                answer = LacAnswer(self._bookie, response.ledger_id, request.lac, int(response.code))
                self._watch.tell("on_lac_answer", answer)

    def _add_answered(
        self, ledger_id: int, entry_id: int, code: int, recovery: bool, received_s: float, *, deferred: bool = False
    ) -> None:
        bookie = self._bookie
        answer = AddAnswer(bookie, self._client, ledger_id, entry_id, code, recovery, deferred, received_s)
        self._watch.tell("on_add_answer", answer)
        if code == _OK and not deferred:
            bookie.promised.setdefault(ledger_id, {}).setdefault(entry_id, self._watch.now)

    def _read_answered(
        self,
        response: ReadResponse | BatchReadResponse,
        bodies: list[bytes],
        asked: ReadEntry | BatchRead | None,
        received_s: float,
    ) -> None:
        fence = asked is not None and asked.fence
        ledger_id, code = response.ledger_id, int(response.code)
        entry_id = response.entry_id if asked is None else asked.entry_id
        answer = ReadAnswer(
            self._bookie, self._client, ledger_id, entry_id, code, fence, bodies if code == _OK else [], received_s
        )
        self._watch.tell("on_read_answer", answer)
        if fence and code not in (Code.EUA, Code.EIO, Code.ETOOMANYREQUESTS, Code.EBADREQ):
            self._bookie.fenced[ledger_id] = None
            if code in (Code.ENOENTRY, Code.ENOLEDGER):
                self._bookie.denied[ledger_id, entry_id] = None
