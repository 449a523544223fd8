"""The store: our requests as ZooKeeper's, and its sessions as ours.

Everything here runs on the event loop. A request goes into kazoo's queue at once; its answer comes back through the
handler and finishes the caller's future. A caller that gave up is not missed: what comes for it is dropped.
Session:   kazoo's SUSPENDED is our DISCONNECTED and its LOST our EXPIRED; after that it makes a new session by itself.
Read next: translate.py (which error means what), client.py (what was sent and what was not), watch.py
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Callable
from typing import Any

from kazoo import exceptions as kazoo
from kazoo.protocol.states import KazooState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from magnetar.config.metadata import MetadataConfig
from magnetar.config.zookeeper import ZooKeeperConfig
from magnetar.errors import MetadataUnavailableError, NodeExistsError
from magnetar.metadata.base import BaseStore
from magnetar.metadata.paths import ROOT, ancestors_of
from magnetar.metadata.requests import Children, Get, Request, Sync, Transact
from magnetar.metadata.session import Session, SessionState
from magnetar.metadata.store import Check, Create, Delete, Put
from magnetar.metadata.zookeeper.address import Address
from magnetar.metadata.zookeeper.client import Client
from magnetar.metadata.zookeeper.handler import LoopHandler, Result
from magnetar.metadata.zookeeper.translate import node_of, transaction_results, translate
from magnetar.metadata.zookeeper.watch import ArmedWatch
from magnetar.runtime.runtime import Runtime

_WATCH_TRIES_MAX = 10  # A node that comes and goes between our two questions: after so many rounds the read fails.
_CLOSE_GRACE_S = 5.0  # Beyond the session timeout, for a server that does not answer our farewell.


async def connect_zookeeper(metadata: MetadataConfig, config: ZooKeeperConfig, runtime: Runtime) -> ZooKeeperStore:
    """A new session; the chroot is made if it is missing. `runtime` is not needed: kazoo brings its own thread."""
    del runtime
    store = ZooKeeperStore(Address.parse(metadata.url), metadata, config)
    try:
        await store.connect()
    except BaseException:
        await store.aclose()
        raise
    return store


class ZooKeeperStore(BaseStore):
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
        """Also the first real request: ZooKeeper says only now whether it accepts our credentials."""
        chroot = self._address.chroot
        if await self.get(chroot or ROOT) is None:  # kazoo sees the whole tree until the chroot is there.
            for path in [*ancestors_of(chroot), chroot]:
                await self._make_if_missing(path)
        self.client.chroot = chroot

    async def _make_if_missing(self, path: str) -> None:
        if await self.get(path) is None:  # Not just tried: we may not be allowed to create what is there already.
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
        """What was sent before is still answered: the farewell is the last request of the session."""
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
        """Calls `done(result, *args)` on the loop when there is an answer."""
        post = self._handler.post
        result.rawlink(lambda finished: post(done, finished, *args))

    def _create(self, request: Create, future: asyncio.Future[Any]) -> None:
        mode = request.mode
        result = self.client.create_async(
            request.path, request.value, ephemeral=mode.is_ephemeral, sequence=mode.is_sequential
        )
        self._deliver(result, self._answer, request, future, str)

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
        """ZooKeeper arms nothing when it finds no node to read; asking whether it exists does arm."""
        result = self.client.exists_async(request.path, watch)
        self._deliver(result, self._answer_missing, request, future, watch, tries)

    def _answer_missing(
        self, result: Result, request: Get, future: asyncio.Future[Any], watch: ArmedWatch, tries: int
    ) -> None:
        is_still_missing = result.exception is None and result.value is None
        if future.done() or not is_still_missing:
            watch.mute()  # Whoever reads again arms a new one.
        if future.done():
            return
        if is_still_missing:
            future.set_result(None)
        elif result.exception is not None:
            self._fail(result.exception, request, future)
        elif tries < _WATCH_TRIES_MAX:
            self._get(request, future, tries + 1)
        else:
            future.set_exception(MetadataUnavailableError(f"{request.path} comes and goes while we try to watch it"))


def _version(stat: Any) -> int:
    return int(stat.version)


def _nothing(_value: Any) -> None:
    return None


def _node(answer: Any) -> Any:
    return node_of(*answer)


def _tls_context(config: ZooKeeperConfig) -> ssl.SSLContext:
    """Made for every connection, on kazoo's thread: renewed certificates are picked up."""
    context = ssl.create_default_context(cafile=config.tls_ca_file or None)
    if not config.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.tls_cert_file:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file or None)
    return context
