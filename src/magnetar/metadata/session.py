"""A session with a metadata store: the lifetime of ephemeral nodes, as explicit states.

Order:     CONNECTED → DISCONNECTED → CONNECTED    the same session; ephemeral nodes still exist
           any → EXPIRED → REESTABLISHED           a new session took its place; ephemeral nodes are deleted
           any → CLOSED                            ended by its owner or a broken store; nothing follows
Invariant: every change reaches every listener once, in order, on the event loop; the state is already changed when a
           listener is called. While DISCONNECTED, it is unknown whether the session still lives.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import TypeAlias


class SessionState(enum.Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    REESTABLISHED = "re-established"
    CLOSED = "closed"

    @property
    def is_usable(self) -> bool:
        return self in (SessionState.CONNECTED, SessionState.REESTABLISHED)


SessionListener: TypeAlias = Callable[[SessionState], None]

_NEXT: dict[SessionState, frozenset[SessionState]] = {
    SessionState.CONNECTED: frozenset({SessionState.DISCONNECTED, SessionState.EXPIRED, SessionState.CLOSED}),
    SessionState.DISCONNECTED: frozenset({SessionState.CONNECTED, SessionState.EXPIRED, SessionState.CLOSED}),
    SessionState.EXPIRED: frozenset({SessionState.REESTABLISHED, SessionState.CLOSED}),
    SessionState.REESTABLISHED: frozenset({SessionState.DISCONNECTED, SessionState.EXPIRED, SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}


class Session:
    """The session as users watch it; the store that owns it moves it."""

    def __init__(self, session_id: int, timeout_ms: int, state: SessionState = SessionState.CONNECTED) -> None:
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.state = state
        self.generation = 0
        """Grows when a new session takes the place of an expired one."""
        self._listeners: dict[int, SessionListener] = {}
        self._listeners_made = 0
        self._waiters: list[asyncio.Future[None]] = []

    def listen(self, listener: SessionListener) -> Callable[[], None]:
        """Calls the listener at every change from now on; the returned function ends that."""
        self._listeners_made += 1
        key = self._listeners_made
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    async def wait_usable_or_closed(self) -> SessionState:
        """Returns at once when usable. The caller brings the timeout."""
        while not self.state.is_usable and self.state is not SessionState.CLOSED:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.state

    def move(self, state: SessionState, *, session_id: int | None = None) -> None:
        """Changes the state; only the store calls it. A new session id comes with REESTABLISHED."""
        if state is self.state:
            return
        assert state in _NEXT[self.state], f"a session cannot go from {self.state.value} to {state.value}"
        self.state = state
        if state is SessionState.REESTABLISHED:
            assert session_id is not None
            self.id = session_id
            self.generation += 1
        for listener in list(self._listeners.values()):
            listener(state)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
