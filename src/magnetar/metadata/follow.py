"""Following a node: its present state, and then every later one, without a gap.

Invariant: states may be skipped when changes come faster than they are read, never the last one. A lost connection or
           session only delays: the state is read again when the session is usable. The stream ends when its owner
           closes it or the store.

    async with aclosing(follow_value(store, "/bookies")) as states:
        async for node in states: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from magnetar.errors import MetadataUnavailableError, NoNodeError, SessionExpiredError, StoreClosedError
from magnetar.metadata.store import MetadataStore, Node, SessionState, Watcher, WatchEvent

State = TypeVar("State")

_RETRY_DELAY_S = 0.1  # Between two reads that failed although the session looked usable.
_UNREAD = object()


def follow_value(store: MetadataStore, path: str) -> AsyncGenerator[Node | None, None]:
    """Yields the node, or None while it does not exist."""

    async def read(watch: Watcher) -> Node | None:
        return await store.get(path, watch=watch)

    return _follow(store, read)


def follow_children(store: MetadataStore, path: str) -> AsyncGenerator[list[str] | None, None]:
    """Yields the sorted names below the node, or None while it does not exist."""

    async def read(watch: Watcher) -> list[str] | None:
        while True:
            try:
                return await store.children(path, watch=watch)
            except NoNodeError:
                if await store.get(path, watch=watch) is None:
                    return None  # Its creation is watched now.

    return _follow(store, read)


async def _follow(store: MetadataStore, read: Callable[[Watcher], Awaitable[State]]) -> AsyncGenerator[State, None]:
    changed = asyncio.Event()

    def on_event(_event: WatchEvent) -> None:
        changed.set()

    last: object = _UNREAD
    while True:
        changed.clear()
        try:
            state = await read(on_event)
        except StoreClosedError:
            return
        except (MetadataUnavailableError, SessionExpiredError):
            if await store.session.wait_usable_or_closed() is SessionState.CLOSED:
                return
            await asyncio.sleep(_RETRY_DELAY_S)
            continue
        if state != last:
            last = state
            yield state
        await changed.wait()
