"""Roster: the bookies of the cluster as auto-recovery sees them: registered, read-only or draining.

Failure:   While the metadata cannot be reached, the last known state is kept: bookies do not vanish because we cannot
           see them. A node that cannot be read for good ends the process's auto-recovery (`wait_failed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from magnetar.errors import MetadataError, MetadataUnavailableError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import RecoveryPaths, bookies_in
from magnetar.metadata.follow import follow_children, follow_value
from magnetar.metadata.store import MetadataStore, Node
from magnetar.runtime.gather import cancel_all

State = TypeVar("State")


class Roster:
    """Begun by `start`, ended by `aclose`. Does not own the store."""

    def __init__(self, store: MetadataStore, paths: BookKeeperPaths, *, timeout_s: float) -> None:
        self._store = store
        self._paths = paths
        self._nodes = RecoveryPaths(paths)
        self._timeout_s = timeout_s
        self.writable: frozenset[BookieId] = frozenset()
        self.read_only: frozenset[BookieId] = frozenset()
        self.draining: frozenset[BookieId] = frozenset()
        self.is_disabled = False
        self.changes = 0
        """Grows with every change."""
        self._listeners: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._unread = 0
        self._read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: asyncio.Future[MetadataError] = asyncio.get_running_loop().create_future()

    @property
    def registered(self) -> frozenset[BookieId]:
        return self.writable | self.read_only

    def is_serving(self, bookie: BookieId) -> bool:
        return bookie in self.writable or bookie in self.read_only

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener after every change from now on; the returned function ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def start(self) -> None:
        """Returns when everything was read once."""
        self._begin(follow_children(self._store, self._paths.available), self._on_writable)
        self._begin(follow_children(self._store, self._paths.readonly), self._on_read_only)
        self._begin(follow_children(self._store, self._nodes.draining), self._on_draining)
        self._begin(follow_value(self._store, self._nodes.disable), self._on_disable)
        waits: list[asyncio.Future[Any]] = [self._read, self._failure]
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise MetadataUnavailableError(
                f"the bookies of the cluster could not be read within {self._timeout_s:g} s"
            ) from None
        if self._failure.done():
            raise self._failure.result()

    async def wait_failed(self) -> MetadataError:
        return await asyncio.shield(self._failure)

    async def registered_at_ms(self, bookie: BookieId) -> int | None:
        """Returns when the bookie registered, by the clock of the metadata store; None if it is not registered."""
        for read_only in (False, True):
            node = await self._store.get(self._paths.registration(bookie, readonly=read_only))
            if node is not None:
                return node.created_ms
        return None

    async def aclose(self) -> None:
        tasks, self._tasks = self._tasks, []
        await cancel_all(tasks)

    def _begin(self, states: AsyncGenerator[State, None], take: Callable[[State], None]) -> None:
        self._unread += 1
        work = self._follow(states, take)
        self._tasks.append(asyncio.get_running_loop().create_task(work, name="recovery-roster"))

    async def _follow(self, states: AsyncGenerator[State, None], take: Callable[[State], None]) -> None:
        is_first = True
        try:
            async with aclosing(states):
                async for state in states:
                    take(state)
                    if is_first:
                        is_first = False
                        self._on_read_once()
                    self._tell()
        except MetadataError as error:
            if not self._failure.done():
                self._failure.set_result(error)

    def _on_read_once(self) -> None:
        self._unread -= 1
        if not self._unread and not self._read.done():
            self._read.set_result(None)

    def _tell(self) -> None:
        self.changes += 1
        for listener in list(self._listeners):
            listener()

    def _on_writable(self, names: list[str] | None) -> None:
        self.writable = frozenset(bookies_in(names or []))

    def _on_read_only(self, names: list[str] | None) -> None:
        self.read_only = frozenset(bookies_in(names or []))

    def _on_draining(self, names: list[str] | None) -> None:
        self.draining = frozenset(bookies_in(names or []))

    def _on_disable(self, node: Node | None) -> None:
        self.is_disabled = node is not None
