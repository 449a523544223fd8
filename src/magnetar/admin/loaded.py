"""LoadedAdmin: the application and the HTTP protocol in front of it. Importing this imports the whole HTTP stack."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from uvicorn.config import Config as HttpConfig
from uvicorn.server import ServerState

from magnetar.admin.app import AdminApp
from magnetar.admin.context import AdminContext
from magnetar.admin.routes import all_routes
from magnetar.admin.stats.rates import RateBook
from magnetar.bookie.http import Health
from magnetar.broker.broker import Broker
from magnetar.runtime.metrics import Metrics

_REQUESTS_AT_A_TIME_MAX = 200
_IDLE_SECONDS_MAX = 65  # Just above what clients and proxies usually keep a connection for.
_LIBRARY_LOGS = ("uvicorn.error", "uvicorn.access")


class LoadedAdmin:
    """Made on the loop; ended by `aclose`."""

    def __init__(self, metrics: Metrics, health: Callable[[], Health], broker: Callable[[], Broker | None]) -> None:
        self._metrics = metrics
        self._health = health
        self._broker = broker
        self._context: AdminContext | None = None
        for name in _LIBRARY_LOGS:  # What clients do wrong is no trouble of ours.
            logging.getLogger(name).setLevel(logging.ERROR)
        self._config = HttpConfig(
            AdminApp(all_routes(), self._context_of_broker),
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

    def new_protocol(self) -> asyncio.Protocol:
        make = self._config.http_protocol_class
        protocol = make(config=self._config, server_state=self._state, app_state={}, _loop=self._loop)  # type: ignore[call-arg]
        assert isinstance(protocol, asyncio.Protocol)
        return protocol

    def _context_of_broker(self) -> AdminContext | None:
        broker = self._broker()
        if self._context is None and broker is not None:
            rates = RateBook(broker.service)
            rates.start()
            self._context = AdminContext(broker, self._metrics, self._health, rates)
        return self._context

    async def aclose(self, timeout_s: float) -> None:
        """Requests that are under way get so long to end."""
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
