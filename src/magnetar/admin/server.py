"""AdminServer: the broker's HTTP port. It listens at once; the application is loaded when the first client connects.

The HTTP stack and all handlers cost some megabytes and a good part of a second, which a server that only carries
messages need not pay. Loading runs on a lane of its own, so that messages flow meanwhile. A `_Door` keeps what a
connection sends before that, up to a limit, and then hands the connection over.

Limits:    Connections, requests at a time, idle seconds; admin/http/app.py limits a body's size and a request's time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from magnetar.broker.broker import Broker
from magnetar.runtime.descriptors import note_refused, takes_from_reserve
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.uncancelled import end_task
from magnetar.runtime.web_guard import WebGuard

if TYPE_CHECKING:
    from magnetar.admin.http.app import LoadedAdmin

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1_000
_CLOSE_SECONDS_MAX: Final = 5.0
_HEARD_BYTES_MAX: Final = 64 * 1024  # The limit of one connection, before it is handed over.


class AdminServer:
    """Is begun by `start`, gets its broker by `attach`, and is ended by `aclose`."""

    def __init__(self, metrics: Metrics, health: Callable[[], Health], guard: WebGuard, runtime: Runtime) -> None:
        self._metrics = metrics
        self._health = health
        self._guard = guard
        self._runtime = runtime
        self._server: asyncio.Server | None = None
        self._loading: asyncio.Task[None] | None = None
        self._loaded: LoadedAdmin | None = None
        self._broker: Broker | None = None
        self._waiting: dict[_Door, None] = {}
        self._turned_away = 0

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Door(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def attach(self, broker: Broker) -> None:
        """Serves requests from now on; before, they are answered with 503."""
        self._broker = broker

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await end_task(self._loading)
        for door in list(self._waiting):
            door.transport.abort()
        if self._loaded is not None:
            await self._loaded.aclose(_CLOSE_SECONDS_MAX)

    def on_waiting(self, door: _Door) -> None:
        if takes_from_reserve(door.transport):
            self._turned_away += 1
            note_refused(self._turned_away, "admin")
            door.transport.abort()
            return
        if self._loaded is not None:
            door.hand_over(self._loaded.new_protocol())
            return
        if len(self._waiting) >= CONNECTIONS_MAX:
            door.transport.abort()
            return
        self._waiting[door] = None
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load(), name="admin-load")

    def on_gone(self, door: _Door) -> None:
        self._waiting.pop(door, None)

    async def _load(self) -> None:
        lane = self._runtime.offload(name="admin-load")
        try:
            make = await lane(_import_loaded)
            self._loaded = make(self._metrics, self._health, self._guard, lambda: self._broker)
        except Exception:
            log.exception("the admin interface could not be loaded")
            for door in list(self._waiting):
                door.transport.abort()
            self._loading = None  # The next client tries again.
            return
        finally:
            await lane.aclose()
        waiting, self._waiting = list(self._waiting), {}
        for door in waiting:
            door.hand_over(self._loaded.new_protocol())


class _Door(asyncio.Protocol):
    """Keeps a connection until it can be handed over."""

    transport: asyncio.Transport

    def __init__(self, server: AdminServer) -> None:
        self._server = server
        self._heard = bytearray()
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._server.on_waiting(self)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if len(self._heard) > _HEARD_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._server.on_gone(self)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if self._is_paused:
            self.transport.resume_reading()
        if self._heard:
            protocol.data_received(bytes(self._heard))


def _import_loaded() -> Callable[[Metrics, Callable[[], Health], WebGuard, Callable[[], Broker | None]], LoadedAdmin]:
    from magnetar.admin.http.app import LoadedAdmin

    return LoadedAdmin
