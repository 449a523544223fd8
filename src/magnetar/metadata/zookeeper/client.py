"""kazoo's client and handler for an event loop: how its thread waits, how results reach the loop, three corrections.

Order:     kazoo would start two more threads, one for finished requests and one for watch events. Here both go to the
           loop in the order in which they happened: the thread queues them, and wakes the loop once for all that came
           since. BufferedSocket reads everything that has arrived at once, and keeps writes until kazoo is about to
           wait: a system call per burst instead of several per request.
Limits:    kazoo sends itself a byte per queued request over a blocking pipe; if its thread is held up and the pipe full
           (some hundred bytes), that would block the event loop. Here the pipe never holds more than one.
Failure:   when a connection ends, kazoo fails sent requests and queued ones with the same error. Here queued ones get
           NotSentError: they were certainly not done. An answer that kazoo does not understand ends its thread; here
           the thread starts over with a new session.
Threads:   only `post`, `select`, the socket and the wake pair are called on kazoo's thread; callbacks run on the loop.
           kazoo checks its state and then queues; a request of a session that ends between the two would be lost. Here
           queueing and changes of state exclude each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Any, Protocol, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionLoss, KazooException, SystemZookeeperError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, Create
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

log = logging.getLogger(__name__)

_READ_BYTES = 65_536  # More than a TLS record, of at most 16 KiB.
_WRITE_BYTES = 65_536  # More bytes than this are written at once.
_MS = 1000
_EPHEMERAL = 1
_SEQUENTIAL = 2


class Lock(Protocol):
    def __enter__(self) -> object: ...
    def __exit__(self, *_exc: object) -> object: ...


MakeContext: TypeAlias = Callable[[], SSLContext]


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    def __init__(self, loop: asyncio.AbstractEventLoop, make_context: MakeContext | None) -> None:
        super().__init__()
        self._loop = loop
        self._make_context = make_context
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._loop_is_called = False

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Calls back on the loop, in the order of posting. It may be called from any thread."""
        self._posted.append((callback, args))
        if not self._loop_is_called:
            self._loop_is_called = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: no receiver is left.
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._loop_is_called = False  # First, so that a later `post` wakes the loop again.
        for _ in range(len(self._posted)):
            callback, args = self._posted.popleft()
            try:
                callback(*args)
            except Exception:
                log.exception("a callback of the ZooKeeper client failed")
        if self._posted and not self._loop_is_called:
            self._loop_is_called = True
            self._loop.call_soon(self._deliver)

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        self.post(callback.func, *callback.args)

    def async_result(self) -> Result:
        return Result()

    def create_socket_pair(self) -> tuple[Any, Any]:
        reader, writer = super().create_socket_pair()
        return make_wake_pair(reader, writer, self.lock_object())

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_tls: object
    ) -> BufferedSocket:
        """Makes our own TLS: kazoo's trusts the system's authorities besides the given ones, and leaks sockets."""
        plain = super().create_connection(address, timeout=timeout)
        try:
            socket = plain
            if self._make_context:
                socket = self._make_context().wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise
        return BufferedSocket(socket, timeout, self.timeout_exception)

    def select(
        self,
        readers: Sequence[BufferedSocket | WakeReader],
        writers: Sequence[BufferedSocket],
        _exceptional: Sequence[object],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Waits for something to read. Our sockets can always be written to: they keep what is written."""
        if writers:
            return [], list(writers), []
        ready = [reader for reader in readers if reader.pending()]
        if not ready:
            for reader in readers:
                reader.flush()
            ready = wait_ready(readers, timeout)
        return ready, [], []


class Result:
    """What kazoo sets when a request is finished: its `AsyncResult` without locks and without waiting threads.

    Each link is called exactly once: `set` and `rawlink` may run at the same time on two threads, and the one that
    takes a link out of the list calls it.
    """

    __slots__ = ("_links", "_ready", "exception", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: BaseException | None = None
        self._ready = False
        self._links: list[Callable[[Result], object]] = []

    def ready(self) -> bool:
        return self._ready

    def successful(self) -> bool:
        return self._ready and self.exception is None

    def set(self, value: Any = None) -> None:
        self.value = value
        self._finish()

    def set_exception(self, exception: BaseException) -> None:
        self.exception = exception
        self._finish()

    def get(self, block: bool = False, timeout: float | None = None) -> Any:
        """Returns a finished result; it never waits."""
        del block, timeout
        assert self._ready, "the result of a ZooKeeper request is taken before it has arrived"
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, link: Callable[[Result], object]) -> None:
        self._links.append(link)
        if self._ready:
            self._finish()

    def _finish(self) -> None:
        self._ready = True
        while self._links:
            try:
                link = self._links.pop()
            except IndexError:
                return
            link(self)


class BufferedSocket:
    def __init__(self, socket: Any, timeout: float | None, timeout_error: type[Exception]) -> None:
        self._socket = socket
        self._timeout = timeout
        self._timeout_error = timeout_error
        self._unread = memoryview(b"")
        self._unsent = bytearray()

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def getpeername(self) -> Any:
        return self._socket.getpeername()

    def close(self) -> None:
        self._socket.close()

    def pending(self) -> int:
        """Returns the bytes that can be read without the system. (TLS keeps none: we always take a whole record.)"""
        return len(self._unread)

    def recv(self, size: int) -> bytes:
        if not self._unread:
            self._unread = memoryview(self._receive())
        chunk = self._unread[:size]
        self._unread = self._unread[size:]
        return bytes(chunk)

    def _receive(self) -> bytes:
        while True:
            try:
                return bytes(self._socket.recv(_READ_BYTES))
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def send(self, data: bytes | memoryview) -> int:
        self._unsent += data
        if len(self._unsent) >= _WRITE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            else:
                del self._unsent[:sent]

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(None if self._timeout is None else self._timeout * _MS):
            raise self._timeout_error("the server neither reads nor answers")


class WakeReader:
    """Wakes kazoo's thread, which takes one wake-up per request it has sent."""

    def __init__(self, socket: Any, lock: Lock) -> None:
        self._socket = socket
        self._lock = lock
        self._wanted = 0

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def pending(self) -> int:
        return self._wanted

    def flush(self) -> None:
        """Does nothing: it is never written to."""

    def recv(self, _size: int) -> bytes:
        with self._lock:
            if self._wanted:
                self._wanted -= 1
                if not self._wanted:
                    self._socket.recv(1)
        return b"\0"

    def wake(self, socket: Any) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                socket.send(b"\0")

    def close(self) -> None:
        self._socket.close()


class WakeWriter:
    def __init__(self, socket: Any, reader: WakeReader) -> None:
        self._socket = socket
        self._reader = reader

    def send(self, data: bytes) -> int:
        self._reader.wake(self._socket)
        return len(data)

    def close(self) -> None:
        self._socket.close()


def make_wake_pair(reader: Any, writer: Any, lock: Lock) -> tuple[WakeReader, WakeWriter]:
    woken = WakeReader(reader, lock)
    return woken, WakeWriter(writer, woken)


def wait_ready(
    readers: Sequence[BufferedSocket | WakeReader], timeout: float | None
) -> list[BufferedSocket | WakeReader]:
    """Returns sockets with data to read, or with an error; none after the timeout."""
    poll = select.poll()
    by_number = {reader.fileno(): reader for reader in readers}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(None if timeout is None else timeout * _MS)]


_RETRY_DELAY_S = 0.05
_RETRY_DELAY_MAX_S = 2.0  # A server that runs again is found this soon.
_NEW_START_DELAY_S = 0.5
_KAZOO_LOGGER = logging.getLogger("magnetar.metadata.zookeeper.kazoo")
_KAZOO_LOGGER.setLevel(logging.INFO)  # Below that kazoo prints whole requests: passwords and values among them.


class NotSentError(KazooException):  # type: ignore[misc]
    """The request was still in our queue when the connection or the session ended."""

    def __init__(self, state: str) -> None:
        super().__init__(f"not sent ({state})")
        self.session_expired = state == KeeperState.EXPIRED_SESSION
        self.access_denied = state == KeeperState.AUTH_FAILED


class Client(KazooClient):  # type: ignore[misc]
    def __init__(self, servers: str, *, timeout_ms: int, handler: LoopHandler, **options: Any) -> None:
        self._gate = handler.lock_object()
        self.granted_timeout_ms = timeout_ms
        self.trouble = ""
        """The reason why the last attempt to connect failed."""
        retry = KazooRetry(
            max_tries=-1, delay=_RETRY_DELAY_S, max_delay=_RETRY_DELAY_MAX_S, sleep_func=handler.sleep_func
        )
        super().__init__(
            servers,
            timeout=timeout_ms / 1000,
            handler=handler,
            connection_retry=retry,
            command_retry=KazooRetry(max_tries=0, sleep_func=handler.sleep_func),
            logger=_KAZOO_LOGGER,
            **options,
        )
        self._connection = Connection(self, self._conn_retry.copy(), logger=_KAZOO_LOGGER)

    @property
    def is_stopping(self) -> bool:
        return bool(self._stopped.is_set())

    def create_node(self, path: str, value: bytes, *, is_ephemeral: bool, is_sequential: bool) -> Result:
        """As `create_async`. That one makes functions which refer to each other: some forty objects for each node,
        which only the cycle collector frees."""
        result: Result = self.handler.async_result()
        flags = _EPHEMERAL * is_ephemeral | _SEQUENTIAL * is_sequential
        whole_path = f"{self.chroot}{path}".rstrip("/") or "/"
        self._call(Create(whole_path, value, self.default_acl, flags), result)
        return result

    def _call(self, request: Any, result: Any) -> Any:
        with self._gate:
            return super()._call(request, result)

    def _session_callback(self, state: str) -> None:
        with self._gate:
            super()._session_callback(state)

    def _notify_pending(self, state: str) -> None:
        while self._pending:
            _request, result, _xid = self._pending.popleft()
            if result:
                result.set_exception(ConnectionLoss())
        while self._queue:
            _request, result = self._queue.popleft()
            if result:
                result.set_exception(NotSentError(state))


class Connection(ConnectionHandler):  # type: ignore[misc]
    client: Client

    def zk_loop(self) -> None:
        while True:
            try:
                super().zk_loop()
            except Exception:
                log.exception("the conversation with ZooKeeper went wrong; starting over with a new session")
            if self.client.is_stopping:
                return
            self.handler.sleep_func(_NEW_START_DELAY_S)

    def _connect(self, host: str, address: str, port: int) -> Any:
        try:
            return super()._connect(host, address, port)
        except Exception as error:
            self.client.trouble = f"{host}:{port}: {error}"
            raise

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            granted, _zxid = answer
            self.client.granted_timeout_ms = granted.time_out
        return answer

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        if header.err and header.err not in EXCEPTIONS:  # Newer than kazoo: its meaning for the request is not known.
            log.warning("ZooKeeper answered with error %d, which kazoo does not know", header.err)
            header = header._replace(err=SystemZookeeperError.code)
        return super()._read_response(header, buffer, offset)
