"""Cursors: all cursors of one topic.

Opened:    with the topic, all of them: each fences whoever wrote to its ledger before. One that cannot be opened keeps
           the topic from being opened, so that nothing it needs is trimmed.
Trimming:  only what every durable cursor has passed, durably, may go (`slowest_mark_delete`); afterwards `on_trimmed`.
Names:     of subscriptions as clients give them; encoded only in paths.
Read next: cursor.py; docs/cursors.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from magnetar.errors import CursorExistsError, CursorMissingError, MagnetarError, NoNodeError
from magnetar.topic.acks import AckState
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor import Cursor
from magnetar.topic.cursor_home import CursorHome
from magnetar.topic.cursor_info import (
    decode_cursor_name,
    encode_cursor_name,
    long_properties,
    restore_acks,
    take_snapshot,
)
from magnetar.topic.cursor_ledger import CursorParts
from magnetar.topic.info_store import info_path
from magnetar.topic.position import Position


class Cursors:
    """Made by `open`; ended by `aclose`, `delete_all`, or `abandon`."""

    def __init__(
        self, topic: str, chain: LedgerChain, parts: CursorParts, on_fenced: Callable[[MagnetarError], None]
    ) -> None:
        """For `open` only."""
        self._topic = topic
        self._chain = chain
        self._parts = parts
        self._on_fenced = on_fenced
        self._cursors: dict[str, Cursor] = {}
        self._being_created: set[str] = set()

    @classmethod
    async def open(
        cls,
        topic: str,
        chain: LedgerChain,
        parts: CursorParts,
        *,
        on_fenced: Callable[[MagnetarError], None],
        is_new: bool = False,
    ) -> Cursors:
        """`topic` is the managed ledger's name, as of `TopicLog.open`; `chain` is the open log's. `on_fenced` is called
        when a cursor turns out to belong to another owner: the topic must be unloaded then (`abandon`). `is_new`: this
        owner has made the topic's node, so that nothing is below it."""
        cursors = cls(topic, chain, parts, on_fenced)
        if is_new:
            return cursors
        try:
            encoded_names = await parts.store.children(info_path(topic))
        except NoNodeError:
            encoded_names = []
        at_once = parts.config.open_concurrency_max
        for start in range(0, len(encoded_names), at_once):
            opening = [cursors._open_one(name) for name in encoded_names[start : start + at_once]]
            for outcome in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        return cursors

    async def _open_one(self, encoded_name: str) -> None:
        home, state = await CursorHome.open(self._topic, encoded_name, self._parts)
        name = decode_cursor_name(encoded_name)
        self._cursors[name] = Cursor(
            name,
            restore_acks(state, self._chain),
            self._chain,
            self._parts.config,
            long_properties=long_properties(state),
            home=home,
            on_fenced=self._on_fenced,
        )

    # --- which there are ----------------------------------------------------------------------------------------------

    def get(self, name: str) -> Cursor | None:
        return self._cursors.get(name)

    def __iter__(self) -> Iterator[Cursor]:
        """Durable and not; those that come or go meanwhile may be missing."""
        return iter(list(self._cursors.values()))

    def __len__(self) -> int:
        return len(self._cursors)

    def slowest_mark_delete(self) -> Position | None:
        """What lies behind it is still needed by a durable cursor, also after a crash. None: there is none."""
        stored = [cursor.stored_mark_delete for cursor in self._cursors.values() if cursor.is_durable]
        return min(stored, default=None)

    def on_trimmed(self) -> None:
        """Ledgers were dropped from the chain."""
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
        """A durable one, whose first entry is the one at this position or the first behind it; EARLIEST and LATEST are
        positions too. CursorExistsError."""
        self._check_free(name)
        self._being_created.add(name)
        try:
            config = self._parts.config
            acks = self._acks_at(at)
            snapshot = take_snapshot(acks, long_properties or {}, config)
            home = await CursorHome.create(
                self._topic, encode_cursor_name(name), snapshot, properties or {}, self._parts
            )
            cursor = self._cursors[name] = Cursor(
                name, acks, self._chain, config, long_properties=long_properties, home=home, on_fenced=self._on_fenced
            )
        finally:
            self._being_created.discard(name)
        return cursor

    def create_non_durable(self, name: str, at: Position) -> Cursor:
        """For a reader: never stored, and gone with `delete`. CursorExistsError."""
        self._check_free(name)
        cursor = self._cursors[name] = Cursor(name, self._acks_at(at), self._chain, self._parts.config)
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
        """CursorMissingError. If it raises anything else, the cursor is as it was."""
        cursor = self._cursors.get(name)
        if cursor is None:
            raise CursorMissingError(f"the topic {self._topic} has no subscription {name!r}")
        await cursor.delete()
        self._forget(cursor)

    async def delete_all(self) -> None:
        """For a topic that is deleted: its node can go only after those of its cursors."""
        for name in list(self._cursors):
            await self.delete(name)

    async def aclose(self) -> None:
        """Stores what is not stored yet. All are closed when it returns or raises: the first error, if any. If it is
        cancelled, `abandon` ends those that are left."""
        await self._end(Cursor.aclose, at_once=self._parts.config.open_concurrency_max)

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
            for cursor in ending:  # Not before: whoever gives up the rest must find it.
                self._forget(cursor)
        if first_error is not None:
            raise first_error

    def _forget(self, cursor: Cursor) -> None:
        if self._cursors.get(cursor.name) is cursor:
            del self._cursors[cursor.name]
