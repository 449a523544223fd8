"""A cache of nodes that is never knowingly wrong: an entry lives only while its watch does.

Invariant: an entry is dropped when its watch fires, whatever the reason: the node changed, the connection was lost, or
                      the session expired. A read in progress at that moment is returned to its caller but not kept.
           Limits:    `entries_max`; the entry that was not used for longest is dropped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from magnetar.metadata.store import MetadataStore, Node, SessionState, Watcher, WatchEvent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    hits: int
    misses: int
    entries: int


class _Entry:
    """A value being read or held; `valid` turns false when its watch fires, even before the value has arrived."""

    __slots__ = ("reading", "valid", "value")

    def __init__(self) -> None:
        self.valid = True
        self.value: Any = None
        self.reading: asyncio.Task[Any] | None = None

    def on_event(self, _event: WatchEvent) -> None:
        self.valid = False


class MetadataCache:
    def __init__(self, store: MetadataStore, *, entries_max: int) -> None:
        assert entries_max > 0
        self._store = store
        self._entries_max = entries_max
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._hits = 0
        self._misses = 0
        self._stop_listening = store.session.listen(self._on_session)

    async def get(self, path: str, *, expects_nothing: bool = False) -> Node | None:
        """As the store's `get`; absence is cached too."""
        return await self._through(
            ("value", path), lambda watch: self._store.get(path, watch=watch, expects_nothing=expects_nothing)
        )

    async def children(self, path: str) -> list[str]:
        """As the store's `children`; the list belongs to the caller."""
        names = await self._through(("children", path), lambda watch: self._store.children(path, watch=watch))
        return list(names)

    def drop(self, path: str) -> None:
        """Drops an entry, for a writer that wants to read its own change at once."""
        for kind in ("value", "children"):
            if entry := self._entries.pop((kind, path), None):
                entry.valid = False

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(self._hits, self._misses, len(self._entries))

    async def aclose(self) -> None:
        self._stop_listening()
        readings = [entry.reading for entry in self._entries.values() if entry.reading is not None]
        self._clear()
        for reading in readings:
            reading.cancel()
        if readings:
            await asyncio.wait(readings)

    async def _through(self, key: tuple[str, str], read: Callable[[Watcher], Coroutine[Any, Any, T]]) -> T:
        entry = self._entries.get(key)
        if entry is None or not entry.valid:
            self._misses += 1
            entry = self._begin(key, read)
        else:
            self._hits += 1
            self._entries.move_to_end(key)
        if entry.reading is not None:  # One read serves all callers that ask during it.
            return cast("T", await asyncio.shield(entry.reading))
        return cast("T", entry.value)

    def _begin(self, key: tuple[str, str], read: Callable[[Watcher], Coroutine[Any, Any, T]]) -> _Entry:
        entry = _Entry()
        entry.reading = asyncio.get_running_loop().create_task(read(entry.on_event), name=f"metadata-cache {key[1]}")
        entry.reading.add_done_callback(lambda done: self._end(key, entry, done))
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        return entry

    def _end(self, key: tuple[str, str], entry: _Entry, done: asyncio.Task[Any]) -> None:
        entry.reading = None
        if done.cancelled() or done.exception() is not None:
            entry.valid = False  # The waiting callers get the error; the next caller reads again.
        else:
            entry.value = done.result()
        if not entry.valid and self._entries.get(key) is entry:
            del self._entries[key]

    def _on_session(self, state: SessionState) -> None:
        if state in (SessionState.EXPIRED, SessionState.CLOSED):
            self._clear()

    def _clear(self) -> None:
        for entry in self._entries.values():
            entry.valid = False
        self._entries.clear()
