"""kazoo's client, with three corrections.

Failure:   when a connection ends, kazoo fails sent requests and queued ones with the same error. Here queued ones get
           NotSentError: they were certainly not done. An answer that kazoo does not understand ends its thread; here
           the thread starts over with a new session.
Threads:   kazoo checks its state and then queues; a request of a session that ends between the two would be lost. Here
           queueing and changes of state exclude each other.
"""

from __future__ import annotations

import logging
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionLoss, KazooException, SystemZookeeperError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from magnetar.metadata.zookeeper.handler import LoopHandler

log = logging.getLogger(__name__)

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
