"""The part that every store has in common: check, wait for a usable session, submit, and report honestly the outcome.

Purpose:   a subclass only carries requests (`_submit`) and moves the session. Operations are counted by kind and
           outcome, with their times, and the session's states.
Failure:   a request that was never submitted fails with MetadataUnavailableError. One that was submitted and not
           answered in time is unknown if it writes, and merely unavailable if it reads.
Read next: local.py, zookeeper/store.py
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

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
from magnetar.metadata.session import Session, SessionState
from magnetar.metadata.store import (
    ANY_VERSION,
    Children,
    Create,
    CreateMode,
    Delete,
    Get,
    MetadataStore,
    Node,
    Operation,
    OperationResult,
    Put,
    Read,
    Request,
    Sync,
    Transact,
    Watcher,
    describe,
)
from magnetar.runtime.metrics import Metrics

_PARENT_TRIES_MAX = 5  # Other clients delete the parents while we create below them: give up after this many rounds.


class BaseStore(MetadataStore):
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

    async def get(self, path: str, *, watch: Watcher | None = None) -> Node | None:
        check_path(path)
        node: Node | None = await self._call(Get(path, watch))
        return node

    async def children(self, path: str, *, watch: Watcher | None = None) -> list[str]:
        check_path(path)
        names: list[str] = await self._call(Children(path, watch))
        return names

    async def create(
        self, path: str, value: bytes = b"", *, mode: CreateMode = CreateMode.PERSISTENT, make_parents: bool = False
    ) -> str:
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
        request = Put(path, value, version)
        self._check_operation(request)
        new_version: int = await self._call(request)
        return new_version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        request = Delete(path, version)
        self._check_operation(request)
        await self._call(request)

    async def transact(self, operations: Sequence[Operation]) -> list[OperationResult]:
        for operation in operations:
            self._check_operation(operation)
        if sum(len(o.value) for o in operations if isinstance(o, Create | Put)) > self._value_bytes_max:
            raise ValueTooLargeError(f"the values of one transaction exceed {self._value_bytes_max} bytes together")
        if not operations:
            return []
        results: list[OperationResult] = await self._call(Transact(tuple(operations)))
        return results

    async def sync(self) -> None:
        await self._call(Sync())

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
