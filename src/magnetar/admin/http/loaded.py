"""LoadedAdmin: the application and the HTTP protocol that serves it. Importing this imports the whole HTTP stack.

Limits:    Requests at a time, and connections, which count as such; the seconds that a connection may wait for its next
           whole request. The HTTP library limits idle connections only, and a request head that never ends would stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from uvicorn.config import Config as HttpConfig
from uvicorn.server import ServerState

from magnetar.admin.http.app import AdminApp
from magnetar.admin.http.call import AdminContext
from magnetar.admin.routes import all_routes
from magnetar.admin.stats.rates import RateBook
from magnetar.broker.broker import Broker
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.web_guard import WebGuard

_REQUESTS_AT_A_TIME_MAX = 200
_IDLE_SECONDS_MAX = 65  # Just above what clients and proxies usually keep a connection for.
_QUIET_SECONDS_MAX = (
    75  # Longer than an idle connection is kept by the library, so that it says goodbye in its own way.
)
_LOOK_SECONDS = 5
_LIBRARY_LOGS = ("uvicorn.error", "uvicorn.access")


class HttpConnection(Protocol):
    """A connection of the HTTP library. Each whole request is a new cycle."""

    transport: asyncio.Transport

    @property
    def cycle(self) -> HttpCycle | None: ...


class HttpCycle(Protocol):
    @property
    def response_complete(self) -> bool: ...


class QuietConnections:
    """Finds connections on which no request has become whole for too long. The caller closes them."""

    def __init__(self) -> None:
        self._since: dict[HttpConnection, tuple[HttpCycle | None, float]] = {}

    def overdue(self, connections: Iterable[HttpConnection], now_s: float) -> list[HttpConnection]:
        """Must be called every few seconds with all open connections."""
        before, self._since = self._since, {}
        found = []
        for connection in connections:
            cycle = connection.cycle
            if cycle is not None and not cycle.response_complete:
                continue  # It is being answered, which has a limit of its own.
            last, since_s = before.get(connection, (cycle, now_s))
            if last is not cycle:
                since_s = now_s
            self._since[connection] = (cycle, since_s)
            if now_s - since_s > _QUIET_SECONDS_MAX:
                found.append(connection)
        return found


class LoadedAdmin:
    """Is made on the loop; ended by `aclose`."""

    def __init__(
        self, metrics: Metrics, health: Callable[[], Health], guard: WebGuard, broker: Callable[[], Broker | None]
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._broker = broker
        self._context: AdminContext | None = None
        for name in _LIBRARY_LOGS:  # Errors of clients need no log, and app.py logs ours.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._config = HttpConfig(
            AdminApp(all_routes(), self._context_of_broker, guard),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            interface="asgi3",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=_REQUESTS_AT_A_TIME_MAX,
            timeout_keep_alive=_IDLE_SECONDS_MAX,
        )
        self._config.load()
        self._state = ServerState()
        self._loop = asyncio.get_running_loop()
        self._quiet = QuietConnections()
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._close_quiet)

    def new_protocol(self) -> asyncio.Protocol:
        make = self._config.http_protocol_class
        protocol = make(config=self._config, server_state=self._state, app_state={}, _loop=self._loop)  # type: ignore[call-arg]
        assert isinstance(protocol, asyncio.Protocol)
        return protocol

    def _close_quiet(self) -> None:
        connections = cast("list[HttpConnection]", list(self._state.connections))
        for connection in self._quiet.overdue(connections, self._loop.time()):
            connection.transport.abort()
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._close_quiet)

    def _context_of_broker(self) -> AdminContext | None:
        broker = self._broker()
        if self._context is None and broker is not None:
            rates = RateBook(broker.service)
            rates.start()
            self._context = AdminContext(broker, self._metrics, self._health, rates)
        return self._context

    async def aclose(self, timeout_s: float) -> None:
        """Gives requests that are in progress this long to end."""
        self._looking.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = list(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._context is not None:
            await self._context.rates.aclose()
