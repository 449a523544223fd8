"""The local stores, memory and SQLite: one server object in this process, and a store per session.

Order:     requests of all sessions form one queue. All that wait are taken as one batch, which the engine runs at once
           (for SQLite one transaction and one sync); only when that is durable, watches are fired and callers answered.
           A session lives as long as its store is connected. A store that is cut off for longer than the session
           timeout is expired here, and learns it when it is connected again.
Failure:   a store's `Link` decides the fate of each request; production never breaks one, the simulator and the
           contract suite do.
Read next: tree.py (the rules), memory.py, sqlite.py
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.config.metadata import MetadataConfig
from magnetar.errors import MetadataError, MetadataUnavailableError, OutcomeUnknownError
from magnetar.metadata.store import (
    Children,
    Get,
    MetadataStore,
    Request,
    Session,
    SessionState,
    Sync,
    Transact,
    Watcher,
    WatchEvent,
    WatchKind,
    Write,
    call_watcher,
    unanswered,
)
from magnetar.metadata.tree import Tree
from magnetar.runtime.runtime import Entropy
from magnetar.runtime.uncancelled import ignore_outcome


@dataclass(frozen=True, slots=True)
class EndSession:
    """Removes the session's ephemeral nodes."""


Work: TypeAlias = Request | EndSession


@dataclass(frozen=True, slots=True)
class Job:
    """One request for one session; everything an engine needs."""

    work: Work
    session_id: int


@dataclass(slots=True)
class Outcome:
    """The outcome of a job: a result or an error, and the changes it made."""

    result: Any
    error: MetadataError | None
    events: list[WatchEvent]


class Engine(ABC):
    """Runs batches in order, one at a time; returns when their changes are durable."""

    @abstractmethod
    async def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """MetadataUnavailableError: nothing of the batch was done. Others: unknown, and the engine has ended."""

    @abstractmethod
    async def aclose(self) -> None: ...


def run_job(tree: Tree, job: Job, now_ms: int) -> Outcome:
    events: list[WatchEvent] = []
    try:
        return Outcome(_dispatch(tree, job, now_ms, events), None, events)
    except MetadataError as error:
        return Outcome(None, error, [])


def _dispatch(tree: Tree, job: Job, now_ms: int, events: list[WatchEvent]) -> Any:
    match job.work:
        case Get(path):
            return tree.get(path)
        case Children(path):
            return tree.children(path)
        case Transact(operations):
            return tree.transact(operations, job.session_id, now_ms, events)
        case EndSession():
            return tree.end_session(job.session_id, events)
        case Sync():
            return None  # Everything before it in the queue is done.
        case operation:
            return tree.apply(operation, job.session_id, now_ms, events)


def changes_something(job: Job) -> bool:
    return isinstance(job.work, Write | EndSession)


@dataclass(frozen=True, slots=True)
class _Armed:
    session: int
    watcher: Watcher


class WatchTable:
    """The armed watches by path. A value watch fires for its node, a children watch also for names below it."""

    def __init__(self) -> None:
        self._value: dict[str, list[_Armed]] = {}
        self._children: dict[str, list[_Armed]] = {}

    def arm_value(self, path: str, session: int, watcher: Watcher) -> None:
        self._value.setdefault(path, []).append(_Armed(session, watcher))

    def arm_children(self, path: str, session: int, watcher: Watcher) -> None:
        self._children.setdefault(path, []).append(_Armed(session, watcher))

    def fire(self, events: Iterable[WatchEvent]) -> None:
        for event in events:
            for table in self._concerned(event.kind):
                for armed in table.pop(event.path, ()):
                    call_watcher(armed.watcher, event)

    def interrupt(self, session: int) -> None:
        """Ends the session's watches, as it cannot receive changes any more."""
        for table in (self._value, self._children):
            for path in list(table):
                mine = [armed for armed in table[path] if armed.session == session]
                others = [armed for armed in table[path] if armed.session != session]
                if others:
                    table[path] = others
                else:
                    del table[path]
                for armed in mine:
                    call_watcher(armed.watcher, WatchEvent(WatchKind.INTERRUPTED, path))

    def __len__(self) -> int:
        return sum(len(armed) for table in (self._value, self._children) for armed in table.values())

    def _concerned(self, kind: WatchKind) -> tuple[dict[str, list[_Armed]], ...]:
        if kind is WatchKind.CHILDREN:
            return (self._children,)
        if kind is WatchKind.DELETED:
            return (self._value, self._children)
        return (self._value,)


class Fate(enum.Enum):
    DELIVERED = "delivered"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"


class Link:
    """The connection between a store and its server. This one never breaks."""

    def fate(self, request: Request) -> Fate:
        del request
        return Fate.DELIVERED


class LocalStore(MetadataStore):
    def __init__(self, server: LocalServer, config: MetadataConfig, link: Link | None = None) -> None:
        super().__init__(Session(server.new_session_id(), config.session_timeout_ms), config)
        self._server = server
        self._link = link or Link()
        self._waiting: dict[asyncio.Future[Any], Request] = {}

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[future] = request
        future.add_done_callback(self._forget)
        job = Job(request, self.session.id)
        match self._link.fate(request):
            case Fate.DELIVERED:
                self._server.enqueue(job, future, self)
            case Fate.ANSWER_LOST:
                self._server.enqueue_unheard(job)
                self._server.cut_and_mend(self)
            case Fate.REQUEST_LOST:
                self._server.cut_and_mend(self)
        return future

    def _forget(self, future: asyncio.Future[Any]) -> None:
        self._waiting.pop(future, None)

    def fail_waiting(self) -> None:
        """Fails the requests in flight: the connection is lost, and no answer will come."""
        waiting, self._waiting = self._waiting, {}
        for future, request in waiting.items():
            if not future.done():
                future.set_exception(unanswered(request))

    async def aclose(self) -> None:
        await self._server.close_session(self)


class LocalServer:
    """The tree of this process. Owns the engine; `aclose` ends it with every session."""

    def __init__(self, engine: Engine, entropy: Entropy, config: MetadataConfig, *, group_operations_max: int) -> None:
        self.config = config
        self._engine = engine
        self._entropy = entropy
        self._group_max = group_operations_max
        self._watches = WatchTable()
        self._stores: dict[int, LocalStore] = {}
        self._expiry: dict[int, asyncio.TimerHandle] = {}
        self._queue: list[tuple[Job, asyncio.Future[Any], LocalStore | None]] = []
        self._wake = asyncio.Event()
        self._broken: MetadataError | None = None
        self._serving = asyncio.get_running_loop().create_task(self._serve(), name="metadata-server")

    def connect(self, config: MetadataConfig | None = None, link: Link | None = None) -> LocalStore:
        store = LocalStore(self, config or self.config, link)
        self.adopt(store)
        return store

    def adopt(self, store: LocalStore) -> None:
        """Watches the store's session from now on."""
        self._stores[store.session.id] = store

    def new_session_id(self) -> int:
        return self._entropy.random.getrandbits(62) + 1

    def enqueue(self, job: Job, future: asyncio.Future[Any], store: LocalStore | None) -> None:
        if self._broken is not None:
            future.set_exception(self._broken)
            return
        self._queue.append((job, future, store))
        self._wake.set()

    def enqueue_unheard(self, job: Job) -> asyncio.Future[Any]:
        """Queues a request whose sender may not wait for the answer; an error is then ignored."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(ignore_outcome)
        self.enqueue(job, future, None)
        return future

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            batch, self._queue = self._queue[: self._group_max], self._queue[self._group_max :]
            if not self._queue:
                self._wake.clear()
            await self._run(batch)

    async def _run(self, batch: list[tuple[Job, asyncio.Future[Any], LocalStore | None]]) -> None:
        try:
            outcomes = await self._engine.run([job for job, _, _ in batch])
        except MetadataUnavailableError as error:  # Nothing was done, and the next batch may do better.
            self._fail(batch, error)
        except MetadataError as error:
            self._break(batch, error)
        except Exception as error:  # A broken invariant stops the server, loudly, and leaves no caller waiting.
            self._break(batch, OutcomeUnknownError(f"the metadata engine failed: {error!r}"))
            raise
        else:
            for (job, future, store), outcome in zip(batch, outcomes, strict=True):
                self._finish(job, future, store, outcome)

    def _finish(self, job: Job, future: asyncio.Future[Any], store: LocalStore | None, outcome: Outcome) -> None:
        self._watches.fire(outcome.events)
        if outcome.error is None and store is not None and store.session.id == job.session_id:
            self._arm(job, store)
        if not future.done():
            if outcome.error is not None:
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome.result)

    def _arm(self, job: Job, store: LocalStore) -> None:
        match job.work:
            case Get(path, watch) if watch is not None and store.session.state.is_usable:
                self._watches.arm_value(path, store.session.id, watch)
            case Children(path, watch) if watch is not None and store.session.state.is_usable:
                self._watches.arm_children(path, store.session.id, watch)

    def _fail(self, batch: list[tuple[Job, asyncio.Future[Any], LocalStore | None]], error: MetadataError) -> None:
        for job, future, _ in batch:
            if not future.done():
                unknown = isinstance(error, OutcomeUnknownError) and not changes_something(job)
                future.set_exception(MetadataUnavailableError(str(error)) if unknown else error)

    def _break(self, batch: list[tuple[Job, asyncio.Future[Any], LocalStore | None]], error: MetadataError) -> None:
        """Stops the server: this batch ends with the error, everything after it was not done."""
        self._fail(batch, error)
        self._broken = MetadataUnavailableError(f"the metadata store has stopped after: {error}")
        waiting, self._queue = self._queue, []
        self._wake.clear()
        self._fail(waiting, self._broken)
        for store in list(self._stores.values()):
            store.closed_because = str(self._broken)
            self._forget(store)
            store.fail_waiting()

    def cut(self, store: LocalStore) -> None:
        """Cuts the store's connection; its session lives until the timeout."""
        if not store.session.state.is_usable:
            return
        loop = asyncio.get_running_loop()
        self._expiry[store.session.id] = loop.call_later(store.session.timeout_ms / 1000, self._end_lost, store)
        store.session.move(SessionState.DISCONNECTED)
        store.fail_waiting()
        self._watches.interrupt(store.session.id)

    def mend(self, store: LocalStore) -> None:
        """Restores the store's connection: the same session, or a new one if the old has ended."""
        if self._broken is not None or store.session.state is not SessionState.DISCONNECTED:
            return
        if timer := self._expiry.pop(store.session.id, None):
            timer.cancel()
            store.session.move(SessionState.CONNECTED)
        else:
            self._renew(store)

    def cut_and_mend(self, store: LocalStore) -> None:
        """Breaks the connection once and restores it in the next turn of the loop, like a TCP reset."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self.cut, store)
        loop.call_soon(self.mend, store)

    async def expire(self, store: LocalStore) -> None:
        """Ends the session as if it had been silent for too long. The store gets a new one at once: requests after the
        end would otherwise be done for a session that is never ended."""
        ended = self._end(store.session.id)
        if timer := self._expiry.pop(store.session.id, None):
            timer.cancel()
        elif store.session.state.is_usable:
            store.fail_waiting()
            self._renew(store)
        await ended

    def _renew(self, store: LocalStore) -> None:
        old = store.session.id
        self._stores.pop(old, None)
        store.session.move(SessionState.EXPIRED)
        self._watches.interrupt(old)
        new = self.new_session_id()
        self._stores[new] = store
        store.session.move(SessionState.REESTABLISHED, session_id=new)

    def _end_lost(self, store: LocalStore) -> None:
        self._expiry.pop(store.session.id, None)
        self._end(store.session.id)

    def _end(self, session_id: int) -> asyncio.Future[Any]:
        return self.enqueue_unheard(Job(EndSession(), session_id))

    async def close_session(self, store: LocalStore) -> None:
        if store.session.state is SessionState.CLOSED:
            return
        session_id = store.session.id
        self._forget(store)
        try:
            if not self._serving.done():
                # A broken engine forgets its sessions when it is opened again.
                with contextlib.suppress(MetadataError, TimeoutError):
                    async with asyncio.timeout(self.config.operation_timeout_ms / 1000):
                        await self._end(session_id)  # After all requests of the session, which are answered first.
        finally:
            store.fail_waiting()

    def _forget(self, store: LocalStore) -> None:
        self._stores.pop(store.session.id, None)
        if timer := self._expiry.pop(store.session.id, None):
            timer.cancel()
        store.session.move(SessionState.CLOSED)
        self._watches.interrupt(store.session.id)

    async def aclose(self) -> None:
        for store in list(self._stores.values()):
            await self.close_session(store)
        self._serving.cancel()
        await asyncio.wait([self._serving])
        await self._engine.aclose()
