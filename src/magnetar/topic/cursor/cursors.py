"""Cursors: how far each subscription of a topic is, in memory and durably.

Acknowledgements change the memory at once, and cost no I/O (acks.py). `flush` returns when everything acknowledged
before the call is stored (flusher.py); `flush_soon` does not wait. A durable cursor has a storage (ledger_storage.py);
one that is not durable, for a reader, is never stored. Clients' names of subscriptions are used everywhere; they are
encoded only in paths.

Invariant: What is stored never moves back, except by `reset`. Only ledgers that every durable cursor has passed,
           durably, may be trimmed (`slowest_mark_delete`); `on_trimmed` follows.
Failure:   All cursors are opened with the topic, and each fences its previous owner. One that cannot be opened keeps
           the topic from being opened, so that nothing it needs is trimmed. What could not be stored is kept in memory
           and stored with the next flush. When another owner has a cursor, `on_fenced` is called and nothing is stored
           any more: the topic must be unloaded.
Read next: acks.py, flusher.py; docs/cursors.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.config.topic import CursorConfig
from magnetar.errors import CursorExistsError, CursorMissingError, MagnetarError, SubscriptionFencedError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckedParts, AckState
from magnetar.topic.cursor.codec import (
    Snapshot,
    decode_cursor_name,
    encode_cursor_name,
    long_properties,
    restore_acks,
    take_snapshot,
)
from magnetar.topic.cursor.flusher import CursorFlusher
from magnetar.topic.cursor.ledger_storage import CursorContext, LedgerCursorStorage, stored_cursors
from magnetar.topic.position import Position


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    mark_delete: Position
    stored_mark_delete: Position
    """The part that a crash cannot undo."""
    ranges: int
    """Runs of entries acknowledged after the mark-delete position."""
    partial_batches: int
    backlog_entries: int
    ledger_id: int
    """The id of the cursor's ledger, or -1."""
    ledger_last_entry: int
    """-1 while this owner has written nothing to it."""
    stores: int
    """States stored since it was opened."""
    store_failures: int


class Cursor:
    """Is made and ended by `Cursors`."""

    def __init__(
        self,
        name: str,
        acks: AckState,
        chain: LedgerChain,
        config: CursorConfig,
        *,
        long_properties: Mapping[str, int] | None = None,
        storage: LedgerCursorStorage | None = None,
        on_fenced: Callable[[MagnetarError], None] | None = None,
    ) -> None:
        """With a storage it is durable; `acks` and `long_properties` are what is stored there."""
        self.name = name
        """The subscription's name, not encoded."""
        self._acks = acks
        self._chain = chain
        self._config = config
        self._long_properties = dict(long_properties or {})
        self._properties: Mapping[str, str] = {} if storage is None else storage.properties
        self._is_resetting = False
        self._flusher: CursorFlusher | None = None
        if storage is not None:
            on_fenced = on_fenced or (lambda _error: None)
            self._flusher = CursorFlusher(name, storage, config, self._snapshot, lambda: self._acks.version, on_fenced)

    def _snapshot(self) -> Snapshot:
        return take_snapshot(self._acks, self._long_properties, self._config)

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        return self._flusher is not None

    @property
    def mark_delete(self) -> Position:
        """The position up to which everything is acknowledged."""
        return self._acks.mark_delete

    @property
    def stored_mark_delete(self) -> Position:
        """The mark-delete position that a crash cannot undo. For a cursor that is not durable: its mark-delete
        position."""
        return self._acks.mark_delete if self._flusher is None else self._flusher.stored_mark_delete

    @property
    def has_gaps(self) -> bool:
        """Whether anything after the mark-delete position is acknowledged: if not, no entry need be filtered."""
        return self._acks.has_gaps

    @property
    def is_stored(self) -> bool:
        """Whether there is nothing to flush."""
        return self._flusher is None or self._flusher.is_stored

    @property
    def is_storable(self) -> bool:
        """Whether all that is acknowledged out of order fits into what is stored.

        If not, some of it would be delivered again after a crash. Computed from the state: not for every entry.
        """
        if not self._acks.has_gaps:
            return True
        ranges, batches = self._acks.range_count(), len(self._acks.batches)
        return ranges <= self._config.ranges_stored_max and batches <= self._config.batches_stored_max

    @property
    def last_acknowledged(self) -> Position:
        """The last position at which something is acknowledged, even in part."""
        return self._acks.last_acknowledged

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the subscription (`set_properties`)."""
        return self._properties

    @property
    def long_properties(self) -> Mapping[str, int]:
        """The properties of the position, which are stored with it (`set_long_properties`)."""
        return self._long_properties

    def is_acknowledged(self, position: Position) -> bool:
        return self._acks.is_acknowledged(position)

    def ack_set_of(self, position: Position) -> Sequence[int] | None:
        """Returns 64-bit words for a batch that is acknowledged in part, a bit set per message that is not; otherwise
        None."""
        return self._acks.ack_set_of(position)

    def next_unacknowledged(self, position: Position) -> Position:
        """Returns the first entry at or after this position that is not acknowledged, or the chain's `end`."""
        return self._acks.next_unacknowledged(position)

    def backlog_entries(self) -> int:
        """Counts the entries that are not acknowledged. Computed from the state: not for the hot path."""
        return self._acks.backlog_entries()

    def acked_parts(self, parts_max: int) -> AckedParts | None:
        """Returns a copy of what is acknowledged after the mark-delete position; None if it has more parts."""
        return self._acks.acked_parts(parts_max)

    def backlog_bytes_estimate(self) -> int:
        return self._acks.backlog_bytes_estimate()

    def acknowledged_ranges(self) -> list[tuple[Position, Position]]:
        """Returns the runs after the mark-delete position: first and last position of each. For people."""
        return list(self._acks.ranges())

    def statistics(self) -> CursorStatistics:
        flusher = self._flusher
        return CursorStatistics(
            mark_delete=self.mark_delete,
            stored_mark_delete=self.stored_mark_delete,
            ranges=self._acks.range_count(),
            partial_batches=len(self._acks.batches),
            backlog_entries=self.backlog_entries(),
            ledger_id=-1 if flusher is None else flusher.storage.ledger_id,
            ledger_last_entry=-1 if flusher is None else flusher.storage.ledger_last_entry,
            stores=0 if flusher is None else flusher.stores,
            store_failures=0 if flusher is None else flusher.failures,
        )

    # --- acknowledging: at once, in memory ----------------------------------------------------------------------------
    # During a reset, acknowledgements concern messages from before it, and change nothing.

    def acknowledge(self, positions: Sequence[Position]) -> int:
        """Returns how many of these entries were not acknowledged before. Positions that do not exist are ignored."""
        return 0 if self._is_resetting else self._acks.acknowledge(positions)

    def acknowledge_batch(self, position: Position, still_unacked: Sequence[int], batch_size: int) -> bool:
        """Acknowledges the messages of a batch whose bit is not set in these 64-bit words; a batch size of 0 is
        unknown.

        Returns whether the whole entry is acknowledged now.
        """
        return not self._is_resetting and self._acks.acknowledge_batch(position, still_unacked, batch_size)

    def acknowledge_to(
        self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0
    ) -> None:
        """Acknowledges everything up to this position; if its entry is a batch, all but `still_unacked` of it."""
        if not self._is_resetting:
            self._acks.acknowledge_to(position, still_unacked, batch_size)

    def set_long_properties(self, properties: Mapping[str, int]) -> None:
        """Replaces them. They are stored with the next flush, in one step with the position as it is then."""
        self._long_properties = dict(properties)
        self._acks.version += 1

    def on_trimmed(self) -> None:
        """Adapts the state after ledgers were dropped from the chain."""
        self._acks.settle()

    # --- storing ------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns when everything acknowledged before the call is stored. Cancelling it cancels the wait only.

        Raises CursorNotStoredError, CursorFencedError or CursorClosedError.
        """
        if (stored := self.flush_nowait()) is not None:
            await asyncio.shield(stored)

    def flush_nowait(self) -> asyncio.Future[None] | None:
        """Returns a future that all callers of one write share, or None if nothing is to be stored.

        The write begins in the next turn of the loop at the earliest, with all that is acknowledged until then.
        """
        return None if self._flusher is None else self._flusher.flush_nowait()

    def flush_soon(self) -> None:
        """Stores later, once for all that is acknowledged until then: at most once per `mark_delete_interval_ms`."""
        if self._flusher is not None:
            self._flusher.flush_soon()

    async def reset(self, position: Position, still_unacked: Sequence[int] | None = None, batch_size: int = 0) -> None:
        """Makes this position the next to be delivered, or the first entry after it; EARLIEST and LATEST are positions
        too.

        With `still_unacked`, only these messages of its batch are delivered, if that entry still exists. Durable when
        it returns; if it raises, nothing has changed here. Long properties are forgotten: they belonged to the old
        position.
        """
        if self._is_resetting:
            raise SubscriptionFencedError(f"the subscription {self.name} is being reset already: try again after that")
        self._is_resetting = True
        try:
            acks = AckState(self._chain, self._chain.previous_position(position))
            if still_unacked and self._chain.contains(position):
                acks.acknowledge_batch(position, still_unacked, batch_size)

            def make() -> Snapshot:
                acks.version = self._acks.version + 1
                return take_snapshot(acks, {}, self._config)

            def adopt() -> None:
                self._acks, self._long_properties = acks, {}

            if self._flusher is None:
                adopt()
            else:
                await self._flusher.replace(make, adopt)
        finally:
            self._is_resetting = False

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replaces the subscription's properties. Durable when it returns."""
        if self._flusher is not None:
            await self._flusher.set_properties(properties)
        self._properties = dict(properties)

    @property
    def stored_last_active_ms(self) -> int:
        """When the subscription was last used, according to its node; 0 if unknown."""
        return 0 if self._flusher is None else self._flusher.storage.last_active_ms

    async def store_last_active(self, last_active_ms: int) -> None:
        """Stores the time in its node, as Pulsar does. Durable when it returns."""
        if self._flusher is not None:
            await self._flusher.set_last_active(last_active_ms)

    # --- ending (by Cursors) ------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stores what is not stored yet, and closes. The cursor is closed even if this raises."""
        if self._flusher is not None:
            await self._flusher.close()

    async def delete(self) -> None:
        """Deletes it, also where it is stored. If it raises, nothing has changed."""
        if self._flusher is not None:
            await self._flusher.delete()

    async def abandon(self) -> None:
        """Ends it without storing anything: another broker has the topic."""
        if self._flusher is not None:
            await self._flusher.abandon()


class Cursors:
    """Is made by `open`; ended by `aclose`, `delete_all`, or `abandon`."""

    def __init__(
        self,
        topic: str,
        chain: LedgerChain,
        context: CursorContext,
        on_fenced: Callable[[MagnetarError], None],
    ) -> None:
        """Is called by `open` only."""
        self._topic = topic
        self._chain = chain
        self._context = context
        self._config = context.config
        self._on_fenced = on_fenced
        self._cursors: dict[str, Cursor] = {}
        self._being_created: set[str] = set()

    @classmethod
    async def open(
        cls,
        topic: str,
        chain: LedgerChain,
        context: CursorContext,
        *,
        on_fenced: Callable[[MagnetarError], None],
        is_new: bool = False,
    ) -> Cursors:
        """Opens all cursors that are stored. `topic` is the name of the open log, and `chain` is its chain.

        `on_fenced` is called when a cursor turns out to belong to another owner: the topic must be unloaded then
        (`abandon`). `is_new`: this owner has just made the topic, so no cursor can be stored.
        """
        cursors = cls(topic, chain, context, on_fenced)
        if is_new:
            return cursors
        keys = await stored_cursors(topic, context)
        at_once = context.config.open_concurrency_max
        for start in range(0, len(keys), at_once):
            opening = [cursors._open_one(key) for key in keys[start : start + at_once]]
            for outcome in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        return cursors

    async def _open_one(self, key: str) -> None:
        storage, state = await LedgerCursorStorage.open(self._topic, key, self._context)
        name = decode_cursor_name(key)
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
            storage = await LedgerCursorStorage.create(
                self._topic, encode_cursor_name(name), snapshot, properties or {}, self._context
            )
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
