"""kazoo's handler for an event loop: how its thread waits, and how what it finds reaches the loop.

kazoo would start two more threads, one for finished requests and one for watch events. Here both go to the loop in the
order in which they happened: the thread leaves them in a queue, and wakes the loop once for everything that came since.
Threads: only `post`, `select` and the objects of transport.py are called on kazoo's thread; callbacks run on the loop.
Read next: transport.py (the socket), client.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Any, TypeAlias

from kazoo.handlers.threading import SequentialThreadingHandler

from magnetar.metadata.zookeeper.transport import BufferedSocket, WakeReader, make_wake_pair, wait_ready

log = logging.getLogger(__name__)

MakeContext: TypeAlias = Callable[[], SSLContext]


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    def __init__(self, loop: asyncio.AbstractEventLoop, make_context: MakeContext | None) -> None:
        super().__init__()
        self._loop = loop
        self._make_context = make_context
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._loop_is_called = False

    # --- to the loop --------------------------------------------------------------------------------------------------

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Calls back on the loop, in the order of posting. From any thread."""
        self._posted.append((callback, args))
        if not self._loop_is_called:
            self._loop_is_called = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody is left to be told.
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._loop_is_called = False  # First: what is posted from here on calls again.
        for _ in range(len(self._posted)):
            callback, args = self._posted.popleft()
            try:
                callback(*args)
            except Exception:
                log.exception("a callback of the ZooKeeper client failed")
        if self._posted and not self._loop_is_called:
            self._loop_is_called = True
            self._loop.call_soon(self._deliver)

    # --- what kazoo asks of a handler ---------------------------------------------------------------------------------

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
        """TLS is ours, not kazoo's, which trusts the system's authorities besides the given ones, and leaks sockets."""
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
        """Waits for something to read. A socket of ours can always be written to: it keeps what is written."""
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

    Each link is called exactly once: `set` and `rawlink` may run at the same time on two threads, and whoever takes a
    link out of the list calls it.
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
        """Only for a finished result: nobody waits here."""
        del block, timeout
        assert self._ready, "the result of a ZooKeeper request is taken before it is there"
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
