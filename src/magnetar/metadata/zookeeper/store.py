"""The ZooKeeper store: our requests as ZooKeeper's, its sessions as ours, at `zk://host:2181,host:2181/chroot`.

Order:     a request goes into kazoo's queue at once; its answer comes back through the handler and finishes the
           caller's future. If the caller has given up, the answer is dropped. kazoo's SUSPENDED is our DISCONNECTED and
           its LOST our EXPIRED; after that it makes a new session by itself.
Failure:   if a write is not certainly "not done", its outcome is unknown (`translate`).
Threads:   everything here runs on the event loop.
Read next: client.py (which requests were sent)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kazoo import exceptions as kazoo
from kazoo.protocol.states import KazooState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from magnetar.config.metadata import MetadataConfig, ZooKeeperConfig
from magnetar.errors import (
    AccessDeniedError,
    BadVersionError,
    ConfigError,
    InvalidPathError,
    MetadataError,
    MetadataUnavailableError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    StoreClosedError,
    TransactionFailedError,
)
from magnetar.metadata.paths import ROOT, ancestors_of, check_path
from magnetar.metadata.store import (
    Check,
    Children,
    Create,
    Delete,
    Get,
    MetadataStore,
    Node,
    Operation,
    OperationResult,
    Put,
    Request,
    Session,
    SessionState,
    Sync,
    Transact,
    Watcher,
    WatchEvent,
    WatchKind,
    call_watcher,
    describe,
    unanswered,
)
from magnetar.metadata.zookeeper.client import Client, LoopHandler, NotSentError, Result
from magnetar.runtime.runtime import Runtime

WATCH_KINDS = {
    "CREATED": WatchKind.CREATED,
    "CHANGED": WatchKind.CHANGED,
    "DELETED": WatchKind.DELETED,
    "CHILD": WatchKind.CHILDREN,
    "NONE": WatchKind.INTERRUPTED,
}

_Make: TypeAlias = Callable[[str], MetadataError]
# Refused by the server before anything was changed.
_REFUSED: dict[type[BaseException], tuple[_Make, str]] = {
    kazoo.NoNodeError: (NoNodeError, "the node, or the parent it needs, does not exist"),
    kazoo.NodeExistsError: (NodeExistsError, "the node exists already"),
    kazoo.BadVersionError: (BadVersionError, "the node has another version"),
    kazoo.NotEmptyError: (NotEmptyError, "the node has children; delete them first"),
    kazoo.NoChildrenForEphemeralsError: (
        NoChildrenForEphemeralsError,
        "the parent is ephemeral and cannot have children",
    ),
    kazoo.NoAuthError: (
        AccessDeniedError,
        "ZooKeeper denies it to us; check zookeeper.auth_digest against the access list of the node",
    ),
    kazoo.AuthFailedError: (AccessDeniedError, "ZooKeeper refuses our credentials; check zookeeper.auth_digest"),
    kazoo.SessionClosedRequireSaslError: (AccessDeniedError, "ZooKeeper asks for SASL, which we do not speak"),
    kazoo.InvalidACLError: (
        AccessDeniedError,
        "ZooKeeper refuses zookeeper.acl = creator; check zookeeper.auth_digest",
    ),
    kazoo.BadArgumentsError: (InvalidPathError, "ZooKeeper refuses the path"),
    kazoo.QuotaExceededError: (MetadataError, "a quota that an administrator has set in ZooKeeper is exceeded"),
    kazoo.UnimplementedError: (MetadataError, "this ZooKeeper server does not know the operation"),
    kazoo.ThrottledOpError: (MetadataUnavailableError, "ZooKeeper is overloaded and refused it"),
    kazoo.SessionMovedError: (MetadataUnavailableError, "the session has moved to another server"),
    kazoo.SessionExpiredError: (SessionExpiredError, "the session has expired"),
}


def translate(error: BaseException, request: Request, *, closing: bool) -> MetadataError:
    """Returns the error that the caller gets."""
    what = describe(request)
    if isinstance(error, NotSentError | kazoo.ConnectionClosedError):
        if closing:
            return StoreClosedError(f"{what}: the metadata store was closed")
        if isinstance(error, NotSentError) and error.session_expired:
            return SessionExpiredError(f"{what}: the session expired before it was sent")
        if isinstance(error, NotSentError) and error.access_denied:
            return AccessDeniedError(f"{what}: {_REFUSED[kazoo.AuthFailedError][1]}")
        return MetadataUnavailableError(f"{what}: the connection was lost before it was sent")
    if type(error) in _REFUSED:
        make, why = _REFUSED[type(error)]
        return make(f"{what}: {why}")
    unknown = unanswered(request)
    if not isinstance(error, kazoo.ConnectionLoss):
        unknown.add_note(f"ZooKeeper's answer: {error!r}")
    return unknown


def transaction_results(request: Transact, answers: Sequence[Any]) -> list[OperationResult] | MetadataError:
    """Returns each operation's result, or why one failed; the other operations report that they were rolled back."""
    for index, (operation, answer) in enumerate(zip(request.operations, answers, strict=True)):
        if isinstance(answer, Exception) and not isinstance(answer, kazoo.RolledBackError | kazoo.RuntimeInconsistency):
            return TransactionFailedError(index, _cause(operation, answer))
    if any(isinstance(answer, Exception) for answer in answers):
        return unanswered(request)
    return [_result(operation, answer) for operation, answer in zip(request.operations, answers, strict=True)]


def _cause(operation: Operation, answer: Exception) -> MetadataError:
    what = f"{type(operation).__name__.lower()} {operation.path}"
    make, why = _REFUSED.get(type(answer), (MetadataError, repr(answer)))
    return make(f"{what}: {why}")


def _result(operation: Operation, answer: Any) -> OperationResult:
    match operation:
        case Create():
            return str(answer)
        case Put():
            return int(answer.version)
        case Delete() | Check():
            return None


def node_of(value: bytes | None, stat: Any) -> Node:
    """Returns the node. Another client may have made it without any value: for us that is an empty one."""
    return Node(value or b"", stat.version, stat.ctime, stat.mtime, stat.ephemeralOwner)


SCHEME = "zk://"
DEFAULT_PORT = 2181
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
_PORT_MAX = 65_535

_WATCH_TRIES_MAX = (
    10  # A node that appears and disappears between our two requests: after this many rounds the read fails.
)

_CLOSE_GRACE_S = 5.0  # Beyond the session timeout, for a server that does not answer the close request.


@dataclass(frozen=True, slots=True)
class Address:
    servers: tuple[str, ...]
    """Each as host:port."""
    chroot: str = ""
    """Empty, or the absolute path below which all our nodes are."""

    @classmethod
    def parse(cls, url: str) -> Address:
        if not url.startswith(SCHEME):
            raise ConfigError(f"metadata.url {url!r} does not begin with {SCHEME}")
        servers, slash, rest = url.removeprefix(SCHEME).partition("/")
        chroot = f"{slash}{rest}".rstrip("/")
        try:
            check_path(chroot or ROOT)
        except InvalidPathError as error:
            raise ConfigError(f"metadata.url {url!r}: the chroot is not a path: {error}") from None
        return cls(tuple(_server(part.strip(), url) for part in servers.split(",")), chroot)

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.servers)}{self.chroot}"


def _server(text: str, url: str) -> str:
    found = _SERVER.fullmatch(text)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if not found or not 0 < port <= _PORT_MAX:
        raise ConfigError(f"metadata.url {url!r}: {text!r} is not host:port; use zk://host1:2181,host2:2181/chroot")
    return f"{found['host']}:{port}"


class ArmedWatch:
    """A watcher as kazoo gets it: an object of its own, armed once, because kazoo keeps a set of watchers per path.

    kazoo forgets all watches when the connection is lost, and calls each with an event of type NONE: the watcher gets
    the change, or the interruption. A read that failed, or whose caller has given up, arms nothing: its watch is muted.
    """

    __slots__ = ("_path", "_watcher")

    def __init__(self, path: str, watcher: Watcher) -> None:
        self._path = path
        self._watcher: Watcher | None = watcher

    def mute(self) -> None:
        self._watcher = None

    def __call__(self, event: Any) -> None:
        """Runs on the loop."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            call_watcher(watcher, WatchEvent(WATCH_KINDS[event.type], self._path))


async def connect_zookeeper(metadata: MetadataConfig, config: ZooKeeperConfig, runtime: Runtime) -> ZooKeeperStore:
    """Connects a new session; a missing chroot is made. `runtime` is not needed: kazoo brings its own thread."""
    del runtime
    store = ZooKeeperStore(Address.parse(metadata.url), metadata, config)
    try:
        await store.connect()
    except BaseException:
        await store.aclose()
        raise
    return store


class ZooKeeperStore(MetadataStore):
    def __init__(self, address: Address, metadata: MetadataConfig, config: ZooKeeperConfig) -> None:
        super().__init__(Session(0, metadata.session_timeout_ms, SessionState.DISCONNECTED), metadata)
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._address = address
        self._tls = config.tls
        self._connect_timeout = metadata.connect_timeout_ms / 1000
        self._closed: asyncio.Future[None] | None = None
        self._handler = LoopHandler(loop, functools.partial(_tls_context, config) if config.tls else None)
        self.client = Client(
            ",".join(address.servers),
            timeout_ms=metadata.session_timeout_ms,
            handler=self._handler,
            default_acl=CREATOR_ALL_ACL if config.acl == "creator" else OPEN_ACL_UNSAFE,
            auth_data=[("digest", config.auth_digest)] if config.auth_digest else None,
        )
        self.client.add_listener(self._on_state_in_thread)
        self._send: dict[type[Request], Callable[[Any, asyncio.Future[Any]], None]] = {
            Get: self._get,
            Children: self._children,
            Create: self._create,
            Put: self._put,
            Delete: self._delete,
            Transact: self._transact,
            Sync: self._sync,
        }

    # --- connecting and closing ---------------------------------------------------------------------------------------

    async def connect(self) -> None:
        self.client.start_async()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self.session.wait_usable_or_closed()
                await self._enter_chroot()
        except TimeoutError:
            raise MetadataUnavailableError(self._explain_silence()) from None

    async def _enter_chroot(self) -> None:
        """Makes the chroot. This is also the first real request: only now ZooKeeper reports whether it accepts our
        credentials."""
        chroot = self._address.chroot
        if await self.get(chroot or ROOT) is None:  # kazoo sees the whole tree until the chroot exists.
            for path in [*ancestors_of(chroot), chroot]:
                await self._make_if_missing(path)
        self.client.chroot = chroot

    async def _make_if_missing(self, path: str) -> None:
        if await self.get(path) is None:  # We may not be allowed to create a node even if it exists.
            with contextlib.suppress(NodeExistsError):
                await self._call(Create(path))

    def _explain_silence(self) -> str:
        servers = ", ".join(self._address.servers)
        seconds = f"{self._connect_timeout:g} s"
        last = f" The last attempt: {self.client.trouble}." if self.client.trouble else ""
        ports = "those for TLS" if self._tls else "not those for TLS"
        return (
            f"no ZooKeeper server of {servers} accepted a session within {seconds}.{last} Check that a server runs"
            f" there, that most of its ensemble does, and that the ports in metadata.url are {ports}."
        )

    async def aclose(self) -> None:
        if self._closed is None:
            self._closed = self._loop.create_future()
            self.session.move(SessionState.CLOSED)
            self._handler.spawn(self._stop_in_thread, self._closed)
        await asyncio.wait({self._closed}, timeout=self.session.timeout_ms / 1000 + _CLOSE_GRACE_S)

    def _stop_in_thread(self, closed: asyncio.Future[None]) -> None:
        """Closes kazoo. Requests sent before are still answered: the close request is the last of the session."""
        try:
            self.client.stop()
            self.client.close()
        finally:
            self._handler.post(closed.set_result, None)

    # --- the session --------------------------------------------------------------------------------------------------

    def _on_state_in_thread(self, state: str) -> None:
        session_id, _password = self.client.client_id or (0, b"")
        self._handler.post(self._on_state, state, session_id, self.client.granted_timeout_ms)

    def _on_state(self, state: str, session_id: int, timeout_ms: int) -> None:
        session = self.session
        if session.state is SessionState.CLOSED:
            return
        if state == KazooState.SUSPENDED:
            session.move(SessionState.DISCONNECTED)
        elif state == KazooState.LOST:
            session.move(SessionState.EXPIRED)
        elif session.state is SessionState.EXPIRED:
            session.timeout_ms = timeout_ms
            session.move(SessionState.REESTABLISHED, session_id=session_id)
        else:
            session.id, session.timeout_ms = session_id, timeout_ms
            session.move(SessionState.CONNECTED)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send[type(request)](request, future)
        return future

    def _deliver(self, result: Any, done: Callable[..., None], *args: object) -> None:
        """Calls `done(result, *args)` on the loop when the answer arrives."""
        post = self._handler.post
        result.rawlink(lambda finished: post(done, finished, *args))

    def _create(self, request: Create, future: asyncio.Future[Any]) -> None:
        mode = request.mode
        result = self.client.create_node(
            request.path, request.value, is_ephemeral=mode.is_ephemeral, is_sequential=mode.is_sequential
        )
        self._deliver(result, self._answer, request, future, self.client.unchroot)

    def _put(self, request: Put, future: asyncio.Future[Any]) -> None:
        result = self.client.set_async(request.path, request.value, request.version)
        self._deliver(result, self._answer, request, future, _version)

    def _delete(self, request: Delete, future: asyncio.Future[Any]) -> None:
        self._deliver(self.client.delete_async(request.path, request.version), self._answer, request, future, _nothing)

    def _sync(self, request: Sync, future: asyncio.Future[Any]) -> None:
        self._deliver(self.client.sync_async("/"), self._answer, request, future, _nothing)

    def _answer(
        self, result: Result, request: Request, future: asyncio.Future[Any], convert: Callable[[Any], Any]
    ) -> None:
        if future.done():
            return
        if result.exception is not None:
            self._fail(result.exception, request, future)
        else:
            future.set_result(convert(result.value))

    def _fail(self, error: BaseException, request: Request, future: asyncio.Future[Any]) -> None:
        closing = self.session.state is SessionState.CLOSED
        future.set_exception(translate(error, request, closing=closing))

    def _transact(self, request: Transact, future: asyncio.Future[Any]) -> None:
        transaction = self.client.transaction()
        for operation in request.operations:
            match operation:
                case Create(path, value, mode):
                    transaction.create(path, value, ephemeral=mode.is_ephemeral, sequence=mode.is_sequential)
                case Put(path, value, version):
                    transaction.set_data(path, value, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        self._deliver(transaction.commit_async(), self._answer_transaction, request, future)

    def _answer_transaction(self, result: Result, request: Transact, future: asyncio.Future[Any]) -> None:
        if future.done():
            return
        if result.exception is not None:
            self._fail(result.exception, request, future)
        elif isinstance(results := transaction_results(request, result.value), Exception):
            future.set_exception(results)
        else:
            future.set_result(results)

    # --- reads and their watches --------------------------------------------------------------------------------------

    def _children(self, request: Children, future: asyncio.Future[Any]) -> None:
        watch = ArmedWatch(request.path, request.watch) if request.watch else None
        self._deliver(
            self.client.get_children_async(request.path, watch), self._answer_children, request, future, watch
        )

    def _answer_children(
        self, result: Result, request: Children, future: asyncio.Future[Any], watch: ArmedWatch | None
    ) -> None:
        if watch and (future.done() or result.exception is not None):
            watch.mute()
        self._answer(result, request, future, sorted)

    def _get(self, request: Get, future: asyncio.Future[Any], tries: int = 1) -> None:
        watch = ArmedWatch(request.path, request.watch) if request.watch else None
        if watch is not None and request.expects_nothing and tries == 1:
            self._watch_missing(request, future, watch, tries)
            return
        self._deliver(self.client.get_async(request.path, watch), self._answer_get, request, future, watch, tries)

    def _answer_get(
        self, result: Result, request: Get, future: asyncio.Future[Any], watch: ArmedWatch | None, tries: int
    ) -> None:
        if isinstance(result.exception, kazoo.NoNodeError) and not future.done():
            if watch is None:
                future.set_result(None)
            else:
                self._watch_missing(request, future, watch, tries)
            return
        if watch and (future.done() or result.exception is not None):
            watch.mute()
        self._answer(result, request, future, _node)

    def _watch_missing(self, request: Get, future: asyncio.Future[Any], watch: ArmedWatch, tries: int) -> None:
        """Asks whether the node exists, which arms a watch; ZooKeeper arms nothing at a read of a missing node."""
        result = self.client.exists_async(request.path, watch)
        self._deliver(result, self._answer_missing, request, future, watch, tries)

    def _answer_missing(
        self, result: Result, request: Get, future: asyncio.Future[Any], watch: ArmedWatch, tries: int
    ) -> None:
        is_still_missing = result.exception is None and result.value is None
        if future.done() or not is_still_missing:
            watch.mute()  # The next read arms a new one.
        if future.done():
            return
        if is_still_missing:
            future.set_result(None)
        elif result.exception is not None:
            self._fail(result.exception, request, future)
        elif tries < _WATCH_TRIES_MAX:
            self._get(request, future, tries + 1)
        else:
            future.set_exception(
                MetadataUnavailableError(f"{request.path} appears and disappears while it is being watched")
            )


def _version(stat: Any) -> int:
    return int(stat.version)


def _nothing(_value: Any) -> None:
    return None


def _node(answer: Any) -> Any:
    return node_of(*answer)


def _tls_context(config: ZooKeeperConfig) -> ssl.SSLContext:
    """Makes a context for each connection, on kazoo's thread: renewed certificates are picked up."""
    context = ssl.create_default_context(cafile=config.tls_ca_file or None)
    if not config.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.tls_cert_file:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file or None)
    return context
