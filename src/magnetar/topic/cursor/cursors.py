"""Cursors: all cursors of one topic.

Clients' names of subscriptions are used everywhere; they are encoded only in paths.

Invariant: Only ledgers that every durable cursor has passed, durably, may be trimmed (`slowest_mark_delete`);
           `on_trimmed` follows.
Failure:   All cursors are opened with the topic, and each fences its previous owner. One that cannot be opened keeps
           the topic from being opened, so that nothing it needs is trimmed.
Read next: cursor.py; docs/cursors.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from magnetar.config.cursor import CursorConfig
from magnetar.errors import CursorExistsError, CursorMissingError, MagnetarError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckState
from magnetar.topic.cursor.codec import long_properties, restore_acks, take_snapshot
from magnetar.topic.cursor.cursor import Cursor
from magnetar.topic.cursor.storage import CursorStorages
from magnetar.topic.position import Position


class Cursors:
    """Is made by `open`; ended by `aclose`, `delete_all`, or `abandon`."""

    def __init__(
        self,
        topic: str,
        chain: LedgerChain,
        storages: CursorStorages,
        config: CursorConfig,
        on_fenced: Callable[[MagnetarError], None],
    ) -> None:
        """Is called by `open` only."""
        self._topic = topic
        self._chain = chain
        self._storages = storages
        self._config = config
        self._on_fenced = on_fenced
        self._cursors: dict[str, Cursor] = {}
        self._being_created: set[str] = set()

    @classmethod
    async def open(
        cls,
        topic: str,
        chain: LedgerChain,
        storages: CursorStorages,
        config: CursorConfig,
        *,
        on_fenced: Callable[[MagnetarError], None],
        is_new: bool = False,
    ) -> Cursors:
        """Opens all cursors that are stored. `chain` is the open log's.

        `on_fenced` is called when a cursor turns out to belong to another owner: the topic must be unloaded then
        (`abandon`). `is_new`: this owner has just made the topic, so no cursor can be stored.
        """
        cursors = cls(topic, chain, storages, config, on_fenced)
        if is_new:
            return cursors
        keys = await storages.keys()
        at_once = config.open_concurrency_max
        for start in range(0, len(keys), at_once):
            opening = [cursors._open_one(key) for key in keys[start : start + at_once]]
            for outcome in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        return cursors

    async def _open_one(self, key: str) -> None:
        name, state, storage = await self._storages.open(key)
        self._cursors[name] = Cursor(
            name,
            restore_acks(state, self._chain),
            self._chain,
            self._config,
            long_properties=long_properties(state),
            storage=storage,
            on_fenced=self._on_fenced,
        )

    # --- which exist -------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Cursor | None:
        return self._cursors.get(name)

    def __iter__(self) -> Iterator[Cursor]:
        """Iterates over durable and other cursors; those that come or go meanwhile may be missing."""
        return iter(list(self._cursors.values()))

    def __len__(self) -> int:
        return len(self._cursors)

    def slowest_mark_delete(self) -> Position | None:
        """Returns the position after which a durable cursor still needs entries, also after a crash. None without
        one."""
        stored = [cursor.stored_mark_delete for cursor in self._cursors.values() if cursor.is_durable]
        return min(stored, default=None)

    def on_trimmed(self) -> None:
        """Adapts all cursors after ledgers were dropped from the chain."""
        for cursor in self._cursors.values():
            cursor.on_trimmed()

    # --- new ones -----------------------------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        at: Position,
        *,
        properties: Mapping[str, str] | None = None,
        long_properties: Mapping[str, int] | None = None,
    ) -> Cursor:
        """Makes a durable cursor that begins with the entry at this position, or the first one after it.

        EARLIEST and LATEST are positions too. Raises CursorExistsError.
        """
        self._check_free(name)
        self._being_created.add(name)
        try:
            config = self._config
            acks = self._acks_at(at)
            snapshot = take_snapshot(acks, long_properties or {}, config)
            storage = await self._storages.create(name, snapshot, properties or {})
            cursor = self._cursors[name] = Cursor(
                name,
                acks,
                self._chain,
                config,
                long_properties=long_properties,
                storage=storage,
                on_fenced=self._on_fenced,
            )
        finally:
            self._being_created.discard(name)
        return cursor

    def create_non_durable(self, name: str, at: Position) -> Cursor:
        """Makes a cursor for a reader: it is never stored. Raises CursorExistsError."""
        self._check_free(name)
        cursor = self._cursors[name] = Cursor(name, self._acks_at(at), self._chain, self._config)
        return cursor

    def _acks_at(self, first: Position) -> AckState:
        return AckState(self._chain, self._chain.previous_position(first))

    def _check_free(self, name: str) -> None:
        if not name:
            raise CursorMissingError("a subscription needs a name: give it one")
        if name in self._cursors or name in self._being_created:
            raise CursorExistsError(f"the topic {self._topic} has a subscription {name!r} already")

    # --- ending -------------------------------------------------------------------------------------------------------

    async def delete(self, name: str) -> None:
        """Raises CursorMissingError. If it raises anything else, the cursor is unchanged."""
        cursor = self._cursors.get(name)
        if cursor is None:
            raise CursorMissingError(f"the topic {self._topic} has no subscription {name!r}")
        await cursor.delete()
        self._forget(cursor)

    async def delete_all(self) -> None:
        """Deletes all cursors of a topic that is deleted: their nodes are below the topic's."""
        for name in list(self._cursors):
            await self.delete(name)

    async def aclose(self) -> None:
        """Stores what is not stored yet. All are closed when it returns or raises the first error.

        If it is cancelled, `abandon` ends those that are left.
        """
        await self._end(Cursor.aclose, at_once=self._config.open_concurrency_max)

    async def abandon(self) -> None:
        """Ends all without storing anything: another broker has the topic, or closing took too long."""
        await self._end(Cursor.abandon, at_once=max(1, len(self)))  # None of them may begin a write meanwhile.

    async def _end(self, end: Callable[[Cursor], Coroutine[Any, Any, None]], *, at_once: int) -> None:
        cursors = list(self)
        first_error: BaseException | None = None
        for start in range(0, len(cursors), at_once):
            ending = cursors[start : start + at_once]
            for outcome in await asyncio.gather(*map(end, ending), return_exceptions=True):
                if isinstance(outcome, BaseException) and first_error is None:
                    first_error = outcome
            for cursor in ending:  # Not earlier: a later `abandon` must find what is left.
                self._forget(cursor)
        if first_error is not None:
            raise first_error

    def _forget(self, cursor: Cursor) -> None:
        if self._cursors.get(cursor.name) is cursor:
            del self._cursors[cursor.name]
