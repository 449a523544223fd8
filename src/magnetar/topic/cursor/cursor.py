"""Cursor: how far a subscription is in a topic, in memory and durably.

Acknowledgements change the memory at once, and cost no I/O (acks.py). `flush` returns when everything acknowledged
before the call is stored (flusher.py); `flush_soon` does not wait. A durable cursor has a storage (storage.py); one
that is not durable, for a reader, is never stored.

Invariant: What is stored never moves back, except by `reset`.
Failure:   What could not be stored is kept in memory and stored with the next flush. When another owner has the cursor,
           `on_fenced` of `Cursors` is called and nothing is stored any more: the topic must be unloaded.
Read next: cursors.py (all of a topic), acks.py, flusher.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from magnetar.config.cursor import CursorConfig
from magnetar.errors import MagnetarError, SubscriptionFencedError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckState
from magnetar.topic.cursor.codec import Snapshot, take_snapshot
from magnetar.topic.cursor.flusher import CursorFlusher
from magnetar.topic.cursor.storage import CursorStorage
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
        storage: CursorStorage | None = None,
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
