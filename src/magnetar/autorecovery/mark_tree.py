"""MarkTree: the marks as a worker sees them, read again only where they changed.

Purpose:   a worker must not poll, and a tree with many marks is too large to read at every change.
Order:     a directory is read with a watch, and kept until the watch fires. `walk` visits the directories in random
           order, so that the workers of a cluster begin at different marks. `wait_changed` returns when anything that
           was read has changed since `begin`, or when `poke` was called since then.
Limits:    one watch for each directory and for the list of locks. When the last mark below a directory is cleared, the
           directory is deleted, so that an idle worker has a handful of watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

from magnetar.errors import NoNodeError
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import MARK_DEPTH, locks_root, mark_name, marked_ledger, marks_root
from magnetar.metadata.paths import join
from magnetar.metadata.store import MetadataStore, WatchEvent


class MarkTree:
    def __init__(self, store: MetadataStore, paths: BookKeeperPaths, random: Random) -> None:
        self._store = store
        self._root = marks_root(paths)
        self._locks = locks_root(paths)
        self._random = random
        self._known: dict[str, list[str]] = {}
        self._changed = asyncio.Event()

    @property
    def is_changed(self) -> bool:
        return self._changed.is_set()

    def poke(self) -> None:
        """Makes the next wait end: something that is not in the tree has changed."""
        self._changed.set()

    async def wait_changed(self, timeout_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def begin(self) -> None:
        """Notes that everything is looked at from now on."""
        self._changed.clear()

    async def walk(self) -> AsyncIterator[LedgerId]:
        """Yields the marked ledgers that no worker has locked."""
        async for ledger_id in self._walk(self._root, MARK_DEPTH):
            yield ledger_id

    async def _walk(self, path: str, depth: int) -> AsyncIterator[LedgerId]:
        names = await self._children(path)
        self._random.shuffle(names)
        for name in names:
            if depth > 0:
                async for ledger_id in self._walk(join(path, name), depth - 1):
                    yield ledger_id
            elif (found := marked_ledger(name)) is not None and not await self._is_locked(found):
                yield found

    async def _is_locked(self, ledger_id: LedgerId) -> bool:
        return mark_name(ledger_id) in await self._children(self._locks)

    async def _children(self, path: str) -> list[str]:
        known = self._known.get(path)
        if known is not None:
            return list(known)
        has_changed = False

        def on_event(_event: WatchEvent) -> None:
            nonlocal has_changed
            has_changed = True
            self._known.pop(path, None)
            self._changed.set()

        try:
            known = await self._store.children(path, watch=on_event)
        except NoNodeError:  # Its last mark was cleared.
            return []
        if not has_changed:  # The watch may fire before this task continues.
            self._known[path] = known
        return list(known)
