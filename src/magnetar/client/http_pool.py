"""The connections of an HTTP client: made, lent to one request at a time, kept for a while, closed.

Read next: http.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.client.http_connection import HttpConnection
from magnetar.errors import BrokerUnavailableError

_IDLE_S_MAX: Final = 10.0  # Far below the 65 s of the server, which counts idle connections among its 200, too.
_CONNECT_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpPool:
    """Made on a running loop."""

    def __init__(self, connections_max: int) -> None:
        self.room = asyncio.Semaphore(connections_max)
        """Held by whoever uses a connection."""
        self._idle: dict[Address, list[tuple[HttpConnection, float]]] = {}
        self._used: dict[HttpConnection, None] = {}
        self._reaper: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def kept(self) -> int:
        return sum(map(len, self._idle.values()))

    def take_idle(self, address: Address) -> HttpConnection | None:
        kept = self._idle.get(address, [])
        oldest = asyncio.get_running_loop().time() - _IDLE_S_MAX
        while kept:
            connection, since = kept.pop()
            if since >= oldest and not connection.is_closed:
                self._used[connection] = None
                return connection
            connection.abort()
        return None

    async def connect(self, address: Address) -> HttpConnection:
        """BrokerUnavailableError, of which nothing was sent."""
        if self._is_closed:
            raise BrokerUnavailableError("this HTTP client is closed")
        try:
            async with asyncio.timeout(_CONNECT_S_MAX):
                connection = await HttpConnection.connect(address.host, address.port)
        except TimeoutError:
            raise BrokerUnavailableError(f"no connection to {address} within {_CONNECT_S_MAX:g} s") from None
        except (OSError, UnicodeError) as error:  # The latter for a name that no host can have.
            why = getattr(error, "strerror", None) or error
            raise BrokerUnavailableError(
                f"nobody answers at http://{address} ({why}): is the broker running, and is this "
                "the address of its HTTP port (adminUrl)?"
            ) from error
        self._used[connection] = None
        return connection

    def give_back(self, address: Address, connection: HttpConnection, is_whole: bool) -> None:
        """`is_whole`: the answer was taken to its end, and another request may follow."""
        self._used.pop(connection, None)
        if not is_whole or self._is_closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(address, []).append((connection, loop.time()))
        if self._reaper is None:
            self._reaper = loop.call_later(_IDLE_S_MAX, self._reap)

    def _reap(self) -> None:
        """Closes what nobody has used for long; the timer runs only while there is something to close."""
        loop = asyncio.get_running_loop()
        self._reaper = None
        oldest = loop.time() - _IDLE_S_MAX
        for address, kept in list(self._idle.items()):
            self._idle[address] = [(connection, since) for connection, since in kept if since > oldest]
            for connection, since in kept:
                if since <= oldest:
                    connection.abort()
        if self.kept:
            self._reaper = loop.call_later(_IDLE_S_MAX / 2, self._reap)

    def close(self) -> None:
        """Who uses a connection loses it."""
        self._is_closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        idle, self._idle = self._idle, {}
        for connection in [*(each for kept in idle.values() for each, _ in kept), *self._used]:
            connection.abort()
