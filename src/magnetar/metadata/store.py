"""The metadata store: a tree of versioned nodes, with sessions and watches; its requests, and what all stores share.

Purpose:   ZooKeeper's model. A node has a value, a version that grows by one with every put, and children. An ephemeral
           node lives as long as the session that made it. A sequential node gets a ten-digit number that only grows.
           Requests are values, so that a link can lose one or carry it to any kind of store.
           All stores check a request, wait for a usable session, submit, and report the outcome. Operations are counted
           by kind and outcome, with their times, and the session's states.
Invariant: an operation raises `OutcomeUnknownError` when it may or may not have been done, and any other error only
           when it was not done.
Order:     changes made through one store are seen in their order; a read may not show another client's latest writes
           until `sync` was awaited.
           A session goes CONNECTED → DISCONNECTED → CONNECTED (the same session; ephemeral nodes still exist), any →
           EXPIRED → REESTABLISHED (a new session took its place; ephemeral nodes are deleted), any → CLOSED (ended by
           its owner or a broken store; nothing follows). Every change reaches every listener once, in order, on the
           event loop; the state is already changed when a listener is called. While DISCONNECTED, it is unknown whether
           the session still lives.
           Watches are one-shot. A read with a watcher arms it in the same instant, so that no change falls between the
           two. The watcher is called once, on the event loop: for a change, or with INTERRUPTED when the connection or
           the session was lost and changes may be missed from then on. `follow.py` turns this into a stream.
Failure:   a request that was never submitted fails with MetadataUnavailableError. One that was submitted and not
           answered in time is unknown if it writes, and merely unavailable if it reads.
Read next: local.py (memory, SQLite), zookeeper/store.py; tests/contracts/metadata_store.py
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from prometheus_client import Counter, Histogram

from magnetar.config.metadata import MetadataConfig
from magnetar.errors import (
    InvalidPathError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    StoreClosedError,
    ValueTooLargeError,
)
from magnetar.metadata.paths import ROOT, ancestors_of, check_path
from magnetar.runtime.metrics import Metrics


class SessionState(enum.Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    REESTABLISHED = "re-established"
    CLOSED = "closed"

    @property
    def is_usable(self) -> bool:
        return self in (SessionState.CONNECTED, SessionState.REESTABLISHED)


SessionListener: TypeAlias = Callable[[SessionState], None]

_NEXT: dict[SessionState, frozenset[SessionState]] = {
    SessionState.CONNECTED: frozenset({SessionState.DISCONNECTED, SessionState.EXPIRED, SessionState.CLOSED}),
    SessionState.DISCONNECTED: frozenset({SessionState.CONNECTED, SessionState.EXPIRED, SessionState.CLOSED}),
    SessionState.EXPIRED: frozenset({SessionState.REESTABLISHED, SessionState.CLOSED}),
    SessionState.REESTABLISHED: frozenset({SessionState.DISCONNECTED, SessionState.EXPIRED, SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}


class Session:
    """The session as users watch it; the store that owns it moves it."""

    def __init__(self, session_id: int, timeout_ms: int, state: SessionState = SessionState.CONNECTED) -> None:
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.state = state
        self.generation = 0
        """Grows when a new session takes the place of an expired one."""
        self._listeners: dict[int, SessionListener] = {}
        self._listeners_made = 0
        self._waiters: list[asyncio.Future[None]] = []

    def listen(self, listener: SessionListener) -> Callable[[], None]:
        """Calls the listener at every change from now on; the returned function ends that."""
        self._listeners_made += 1
        key = self._listeners_made
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    async def wait_usable_or_closed(self) -> SessionState:
        """Returns at once when usable. The caller brings the timeout."""
        while not self.state.is_usable and self.state is not SessionState.CLOSED:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.state

    def move(self, state: SessionState, *, session_id: int | None = None) -> None:
        """Changes the state; only the store calls it. A new session id comes with REESTABLISHED."""
        if state is self.state:
            return
        assert state in _NEXT[self.state], f"a session cannot go from {self.state.value} to {state.value}"
        self.state = state
        if state is SessionState.REESTABLISHED:
            assert session_id is not None
            self.id = session_id
            self.generation += 1
        for listener in list(self._listeners.values()):
            listener(state)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


ANY_VERSION = -1
"""Given as the expected version: any version is accepted."""


@dataclass(frozen=True, slots=True)
class Node:
    """The result of a read: a value and what the store knows about it."""

    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: int = 0
    """The id of the session an ephemeral node belongs to; 0 for a persistent node."""


class CreateMode(enum.Enum):
    PERSISTENT = "persistent"
    EPHEMERAL = "ephemeral"
    PERSISTENT_SEQUENTIAL = "persistent sequential"
    EPHEMERAL_SEQUENTIAL = "ephemeral sequential"

    @property
    def is_ephemeral(self) -> bool:
        return self in (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)

    @property
    def is_sequential(self) -> bool:
        return self in (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)


class WatchKind(enum.Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: WatchKind
    path: str


Watcher: TypeAlias = Callable[[WatchEvent], None]


def call_watcher(watcher: Watcher, event: WatchEvent) -> None:
    """Calls the watcher. One that fails is its owner's bug: it is reported, and the others are still called."""
    try:
        watcher(event)
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"the watcher of {event.path} failed on {event.kind.value}", "exception": error}
        )


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    value: bytes = b""
    mode: CreateMode = CreateMode.PERSISTENT


@dataclass(frozen=True, slots=True)
class Put:
    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Requires that the node exists and has this version; only in a transaction."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = Create | Put | Delete | Check
OperationResult: TypeAlias = str | int | None
"""Create: the path made. Put: the new version. Delete and Check: nothing."""


@dataclass(frozen=True, slots=True)
class Get:
    path: str
    watch: Watcher | None = None
    expects_nothing: bool = False
    """Most such nodes do not exist: a store that has a cheaper request for these sends that one first."""


@dataclass(frozen=True, slots=True)
class Children:
    path: str
    watch: Watcher | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """Reads everything that is done so far."""


@dataclass(frozen=True, slots=True)
class Transact:
    operations: tuple[Operation, ...]


Read: TypeAlias = Get | Children | Sync
Write: TypeAlias = Create | Put | Delete | Transact
Request: TypeAlias = Read | Write


def describe(request: Request) -> str:
    """Returns the request without its value, for messages."""
    name = type(request).__name__.lower()
    path = getattr(request, "path", "")
    return f"{name} {path}".strip()


_PARENT_TRIES_MAX = 5  # Other clients delete the parents while we create below them: give up after this many rounds.


class MetadataStore(ABC):
    """One session with a store. Made connected, by `open_store` or by a server's `connect`; ended by `aclose`.

    A subclass only carries requests (`_submit`) and moves the session.
    """

    def __init__(self, session: Session, config: MetadataConfig) -> None:
        self.session = session
        self._value_bytes_max = config.value_bytes_max
        self._in_flight_max = config.operations_in_flight_max
        self._timeout = config.operation_timeout_ms / 1000
        self._in_flight = 0
        self._observation: StoreObservation | None = None
        self.closed_because = "the metadata store is closed"

    def observe(self, metrics: Metrics) -> None:
        """Counts there what this store does from now on."""
        self._observation = StoreObservation(metrics, self.session)

    @abstractmethod
    def _submit(self, request: Request) -> asyncio.Future[Any]:
        """Submits the request. The future may be cancelled by a caller that stopped waiting."""

    async def get(self, path: str, *, watch: Watcher | None = None, expects_nothing: bool = False) -> Node | None:
        """Returns the node, or None. The watcher sees CREATED, CHANGED and DELETED, also when the node does not exist
        yet. `expects_nothing`: it probably does not; the answer is the same, with less work."""
        check_path(path)
        node: Node | None = await self._call(Get(path, watch, expects_nothing))
        return node

    async def children(self, path: str, *, watch: Watcher | None = None) -> list[str]:
        """Returns sorted names. NoNodeError: the node is missing, and not watched. The watcher sees CHILDREN and
        DELETED."""
        check_path(path)
        names: list[str] = await self._call(Children(path, watch))
        return names

    async def create(
        self, path: str, value: bytes = b"", *, mode: CreateMode = CreateMode.PERSISTENT, make_parents: bool = False
    ) -> str:
        """Returns the path made, completed by a sequential mode. Missing parents are made persistent and empty."""
        request = Create(path, value, mode)
        self._check_operation(request)
        for _ in range(_PARENT_TRIES_MAX):
            try:
                made: str = await self._call(request)
            except NoNodeError:
                if not make_parents:
                    raise
                await self._make_parents(path)
            else:
                return made
        raise NoNodeError(f"the parents of {path} are deleted repeatedly while it is created")

    async def _make_parents(self, path: str) -> None:
        for ancestor in ancestors_of(path):
            try:
                await self._call(Create(ancestor))
            except NodeExistsError:
                continue
            except NoNodeError:  # Deleted between two steps: the caller's next round begins above it.
                return

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        """Replaces the value if the node has this version; returns the new version."""
        request = Put(path, value, version)
        self._check_operation(request)
        new_version: int = await self._call(request)
        return new_version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Deletes the node if it has this version and no children."""
        request = Delete(path, version)
        self._check_operation(request)
        await self._call(request)

    async def transact(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Does all operations in one step, or none of them and raises TransactionFailedError."""
        for operation in operations:
            self._check_operation(operation)
        if sum(len(o.value) for o in operations if isinstance(o, Create | Put)) > self._value_bytes_max:
            raise ValueTooLargeError(f"the values of one transaction exceed {self._value_bytes_max} bytes together")
        if not operations:
            return []
        results: list[OperationResult] = await self._call(Transact(tuple(operations)))
        return results

    async def sync(self) -> None:
        """Makes later reads see every change that was confirmed to any client before the call."""
        await self._call(Sync())

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the session and with it its ephemeral nodes. Requests that were sent are still answered, or unknown;
        requests that wait for a connection fail with StoreClosedError."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def _check_operation(self, operation: Operation) -> None:
        check_path(operation.path)
        if isinstance(operation, Create | Put) and len(operation.value) > self._value_bytes_max:
            raise ValueTooLargeError(
                f"the value for {operation.path} has {len(operation.value)} bytes, more than metadata.value_bytes_max"
                f" ({self._value_bytes_max}); ZooKeeper accepts 1 MiB by default"
            )
        if isinstance(operation, Delete) and operation.path == ROOT:
            raise InvalidPathError("the root cannot be deleted")

    async def _call(self, request: Request) -> Any:
        if self._observation is None:
            return await self._carry(request)
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: BaseException | None = None
        try:
            return await self._carry(request)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._observation.finished(request, error, loop.time() - began)

    async def _carry(self, request: Request) -> Any:
        if self._in_flight >= self._in_flight_max:
            raise MetadataUnavailableError(
                f"{self._in_flight} metadata operations are already waiting (metadata.operations_in_flight_max)"
            )
        self._in_flight += 1
        try:
            if self.session.state.is_usable:
                return await self._submit_and_wait(request, self._timeout)
            return await self._carry_when_usable(request)
        finally:
            self._in_flight -= 1

    async def _carry_when_usable(self, request: Request) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self.session.wait_usable_or_closed()
        except TimeoutError:
            raise self._timed_out(request, submitted=False) from None
        if self.session.state is SessionState.CLOSED:
            raise StoreClosedError(f"{describe(request)}: {self.closed_because}")
        return await self._submit_and_wait(request, deadline - loop.time())

    async def _submit_and_wait(self, request: Request, timeout_s: float) -> Any:
        """Waits with a timer on the answer itself: a fraction of what a timeout of the caller's task costs."""
        future = self._submit(request)
        timer = asyncio.get_running_loop().call_later(timeout_s, self._on_late, future, request)
        try:
            return await future
        finally:
            timer.cancel()

    def _on_late(self, future: asyncio.Future[Any], request: Request) -> None:
        if not future.done():
            future.set_exception(self._timed_out(request, submitted=True))

    def _timed_out(self, request: Request, submitted: bool) -> MetadataUnavailableError | OutcomeUnknownError:
        waited = f"{describe(request)}: no answer from the metadata store within {self._timeout:g} s"
        if submitted and not isinstance(request, Read):
            return OutcomeUnknownError(f"{waited}; it may or may not have been done")
        return MetadataUnavailableError(f"{waited} (session {self.session.state.value})")


class StoreObservation:
    """Counts each operation as it ends, as they are few. Looking a labelled counter up costs more than counting, so
    each is looked up once: kinds and outcomes are our own classes, and few."""

    def __init__(self, metrics: Metrics, session: Session) -> None:
        self._operations = metrics.counter(
            "magnetar_metadata_operations_total",
            "Operations on the metadata store that ended, by kind and by outcome: ok or the name of the error.",
            ("operation", "outcome"),
        )
        self._seconds = metrics.histogram(
            "magnetar_metadata_operation_seconds",
            "From the call to the answer, waiting for a lost connection included.",
            ("operation",),
        )
        self._counts: dict[tuple[type[Request], type[BaseException] | None], Counter] = {}
        self._times: dict[type[Request], Histogram] = {}
        self._changes = metrics.counter(
            "magnetar_metadata_session_changes_total", "Times a session came into this state.", ("state",)
        )
        self._stop: tuple[Callable[[], None], ...] = (
            metrics.gauge_callback(
                "magnetar_metadata_sessions_usable",
                "Sessions that can be used now; the others are disconnected or expired.",
                lambda: float(session.state.is_usable),
            ),
            session.listen(self._on_state),
        )

    def finished(self, request: Request, error: BaseException | None, seconds: float) -> None:
        kind, outcome = type(request), None if error is None else type(error)
        count = self._counts.get((kind, outcome))
        if count is None:
            name = "ok" if outcome is None else outcome.__name__
            count = self._counts[kind, outcome] = self._operations.labels(kind.__name__.lower(), name)
            self._times.setdefault(kind, self._seconds.labels(kind.__name__.lower()))
        count.inc()
        self._times[kind].observe(seconds)

    def _on_state(self, state: SessionState) -> None:
        self._changes.labels(state.value).inc()
        if state is SessionState.CLOSED:
            for stop in self._stop:
                stop()


def unanswered(request: Request) -> MetadataUnavailableError | OutcomeUnknownError:
    """Returns the error for a request that was submitted when the connection was lost."""
    if isinstance(request, Read):
        return MetadataUnavailableError(f"{describe(request)}: the connection was lost before the answer came")
    return OutcomeUnknownError(f"{describe(request)}: the connection was lost; it may or may not have been done")
