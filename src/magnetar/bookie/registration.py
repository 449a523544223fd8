"""Registration: the ephemeral node by which clients find a bookie, `available/ID` or `available/readonly/ID`.

Order:     one task compares the wanted state with the actual one, and removes the difference; everything that may
           change either (a wanted mode, the session, the node itself) only wakes it. So no order of events is
           forgotten.
Invariant: a change of mode creates the new node and deletes the other in one transaction. Apache creates first and
           deletes then; here no client sees both or none. The same transaction checks that the cookie exists: a bookie
           whose cookie was deleted has been declared dead, and does not come back after a lost session.
Failure:   a node under our id that another session owns is never adopted and never deleted: it belongs to our former
           process, whose session must end first, or to another bookie with our id. The bookie waits for its end, up to
           twice the session timeout, and then gives up. Disconnected: the bookie serves on; fencing keeps writers
           apart, not this node. Re-established: the node is missing, register again. Closed: no client can find this
           bookie any more, so it must stop.
Read next: metadata/store.py, read_only.py (the wanted mode)
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable

from magnetar.errors import (
    BadVersionError,
    BookieRegisteredError,
    CookieMismatchError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionExpiredError,
    StoreClosedError,
    TransactionFailedError,
)
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.service_info import BookieServiceInfo, encode_service_info
from magnetar.metadata.store import (
    Check,
    Create,
    CreateMode,
    Delete,
    MetadataStore,
    Node,
    Operation,
    SessionState,
    WatchEvent,
    WatchKind,
)

log = logging.getLogger(__name__)

_RETRY_DELAY_S = 0.1  # Between two attempts that failed although the session looked usable.
_TIMEOUTS_TO_WAIT = 2  # The session of a killed process may have been active just before.
_PASSING = (MetadataUnavailableError, SessionExpiredError, OutcomeUnknownError)
_CHANGED_MEANWHILE = (NodeExistsError, NoNodeError, BadVersionError)


class RegistrationState(enum.Enum):
    STARTING = "starting"
    REGISTERED = "registered"
    CHANGING = "changing"
    """Changing to the other mode, or the node was deleted by another client."""
    DISCONNECTED = "disconnected"
    """The node may or may not exist."""
    LOST = "lost"
    """The session has ended and the node with it."""
    FAILED = "failed"
    CLOSED = "closed"


class Registration:
    """Made with a connected store; begun by `start`, ended by `aclose`. Does not own the store."""

    def __init__(
        self,
        store: MetadataStore,
        paths: BookKeeperPaths,
        bookie: BookieId,
        info: BookieServiceInfo,
        *,
        read_only: bool = False,
    ) -> None:
        self.state = RegistrationState.STARTING
        self.registrations = 0
        """How often a node was made."""
        self._store = store
        self._paths = paths
        self._bookie = bookie
        self._value = encode_service_info(info)
        self.is_read_only = read_only
        """The wanted mode; the registered one follows."""
        self._wake = asyncio.Event()
        self._moved: asyncio.Future[None] | None = None
        self._failure: asyncio.Future[MetadataError] = asyncio.get_running_loop().create_future()
        self._unlisten: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, timeout_s: float | None = None) -> None:
        """Returns when clients can find the bookie; raises the reason if they cannot."""
        assert self.state is RegistrationState.STARTING
        self._unlisten = self._store.session.listen(self._on_session)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="bookie-registration")
        try:
            async with asyncio.timeout(timeout_s or 2 * self._wait_limit_s()):
                await self.wait_registered()
        except TimeoutError:
            await self.aclose()
            raise MetadataUnavailableError(
                f"bookie {self._bookie} could not be registered in time: the metadata store does not answer"
            ) from None
        except BaseException:
            await self.aclose()
            raise

    def set_read_only(self, read_only: bool) -> None:
        """Returns at once; `wait_registered` returns when it is so in the store."""
        if read_only != self.is_read_only:
            self.is_read_only = read_only
            self._move(RegistrationState.CHANGING, only_from=RegistrationState.REGISTERED)
            self._wake.set()

    async def wait_registered(self) -> None:
        """Returns when the wanted node exists, as far as the store has reported. The caller brings the timeout."""
        while self.state is not RegistrationState.REGISTERED:
            if self.state is RegistrationState.FAILED:
                raise self._failure.result()
            if self.state is RegistrationState.CLOSED:
                raise StoreClosedError(f"the registration of bookie {self._bookie} was closed")
            if self._moved is None:
                self._moved = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._moved)

    async def wait_failed(self) -> MetadataError:
        """Returns when the bookie cannot be found any more and must stop; the reason is for the log."""
        return await asyncio.shield(self._failure)

    async def aclose(self) -> None:
        """Makes the bookie unknown to clients. If the store does not answer, the end of the session does it."""
        if self.state is RegistrationState.CLOSED:
            return
        self._move(RegistrationState.CLOSED)
        if self._unlisten is not None:
            self._unlisten()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._store.session.state.is_usable:
            return
        try:
            await self._remove_own_nodes()
        except MetadataError as error:
            log.info("bookie %s stays registered until its session ends: %s", self._bookie, error)

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                await self._attempt()
                await self._wake.wait()
        except MetadataError as error:
            self._fail(error)

    async def _attempt(self) -> None:
        """Repeats until the wanted node exists, or another party must act first."""
        while True:
            if await self._store.session.wait_usable_or_closed() is SessionState.CLOSED:
                raise StoreClosedError("the session with the metadata store was closed")
            with contextlib.suppress(*_CHANGED_MEANWHILE, *_PASSING):
                if await self._mend():
                    return
            await asyncio.sleep(_RETRY_DELAY_S)

    async def _mend(self) -> bool:
        """Looks at both nodes once, makes at most one transaction, and reports whether everything is as wanted now."""
        generation, read_only = self._store.session.generation, self.is_read_only
        wanted = self._paths.registration(self._bookie, readonly=read_only)
        other = self._paths.registration(self._bookie, readonly=not read_only)
        await self._make_parents()
        await self._wait_out(wanted)
        await self._wait_out(other)
        if await self._own(wanted) is None:
            await self._create(wanted, other, await self._own(other))
        node = await self._store.get(wanted, watch=self._on_node)
        is_current = (generation, read_only) == (self._store.session.generation, self.is_read_only)
        if node is None or not self._is_free(node) or not is_current or not self._store.session.state.is_usable:
            return False
        self._move(RegistrationState.REGISTERED)
        log.info("bookie %s is registered, %s", self._bookie, "read-only" if read_only else "writable")
        return True

    async def _create(self, wanted: str, other: str, old: Node | None) -> None:
        operations: list[Operation] = [
            Check(self._paths.cookie(self._bookie)),
            Create(wanted, self._value, CreateMode.EPHEMERAL),
        ]
        if old is not None:
            operations.append(Delete(other, old.version))
        try:
            await self._store.transact(operations)
        except TransactionFailedError as error:
            if error.index == 0:
                raise CookieMismatchError(
                    f"the cookie of bookie {self._bookie} was deleted from the metadata: it was declared dead, and "
                    "must not come back by itself; restart it to see what can be done"
                ) from error
            raise error.cause from None
        self.registrations += 1

    async def _make_parents(self) -> None:
        if await self._store.get(self._paths.readonly) is None:
            await self._store.create(self._paths.readonly, make_parents=True)

    async def _own(self, path: str) -> Node | None:
        """Returns our node, if it exists. Others' nodes have ended; if one comes now, the next look sees it."""
        node = await self._store.get(path)
        if node is not None and not self._is_free(node):
            raise NodeExistsError(f"{path} belongs to session {node.owner:#x}")
        return node

    async def _wait_out(self, path: str) -> None:
        """Returns when the node is deleted or ours."""
        node = await self._store.get(path)
        try:
            async with asyncio.timeout(self._wait_limit_s()):
                while not self._is_free(node):
                    changed = asyncio.Event()
                    node = await self._store.get(path, watch=_setter(changed))
                    if not self._is_free(node):
                        log.info("%s belongs to another session; waiting for its end", path)
                        await changed.wait()
        except TimeoutError:
            assert node is not None
            raise BookieRegisteredError(
                f"another process is registered as bookie {self._bookie} ({path}, session {node.owner:#x}): "
                "stop it, or give this bookie another id (--id) and directory"
            ) from None

    def _is_free(self, node: Node | None) -> bool:
        return node is None or node.owner == self._store.session.id

    async def _remove_own_nodes(self) -> None:
        for read_only in (False, True):
            path = self._paths.registration(self._bookie, readonly=read_only)
            node = await self._store.get(path)
            if node is not None and node.owner == self._store.session.id:
                with contextlib.suppress(NoNodeError):
                    await self._store.delete(path, node.version)

    def _wait_limit_s(self) -> float:
        return _TIMEOUTS_TO_WAIT * self._store.session.timeout_ms / 1000

    def _on_session(self, state: SessionState) -> None:
        if self.state is not RegistrationState.STARTING:
            match state:
                case SessionState.DISCONNECTED:
                    self._move(RegistrationState.DISCONNECTED)
                case SessionState.EXPIRED:
                    self._move(RegistrationState.LOST)
        self._wake.set()

    def _on_node(self, event: WatchEvent) -> None:
        wanted = self._paths.registration(self._bookie, readonly=self.is_read_only)
        if event.kind is not WatchKind.INTERRUPTED and event.path != wanted:
            return  # The node that a change of mode has deleted.
        self._move(RegistrationState.CHANGING, only_from=RegistrationState.REGISTERED)
        self._wake.set()

    def _fail(self, error: MetadataError) -> None:
        self._move(RegistrationState.FAILED)
        self._failure.set_result(error)
        log.error("bookie %s cannot be found by clients any more: %s", self._bookie, error)

    def _move(self, state: RegistrationState, *, only_from: RegistrationState | None = None) -> None:
        if self.state in (RegistrationState.FAILED, RegistrationState.CLOSED) and state is not RegistrationState.CLOSED:
            return
        if only_from is not None and self.state is not only_from:
            return
        self.state = state
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.set_result(None)


def _setter(event: asyncio.Event) -> Callable[[WatchEvent], None]:
    return lambda _: event.set()
