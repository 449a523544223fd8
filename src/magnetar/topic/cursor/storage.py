"""CursorStorage: where the states of a topic's durable cursors are kept, as cursors see it.

Another kind of storage is another module with these two interfaces, and one line in broker/topics/persistent.py, which
makes the storages of a topic.

Invariant: What is stored never moves back: a storage that another owner uses refuses to store (CursorFencedError).
Order:     flusher.py makes one call at a time for each cursor.
Read next: ledger_storage.py (in ledgers and metadata, as Pulsar does), flusher.py, cursors.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from magnetar.topic.cursor.codec import Snapshot
from magnetar.topic.proto.managed_ledger_pb2 import PositionInfo


class CursorStorage(Protocol):
    """Stores one cursor. Ended by `close`, `delete`, or `abandon`."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The subscription's properties, as they are stored."""

    @property
    def last_active_ms(self) -> int:
        """When the subscription was last used, as far as that is stored; 0 if unknown."""

    @property
    def ledger_id(self) -> int:
        """The ledger that has the state, or -1."""

    @property
    def ledger_last_entry(self) -> int:
        """The last entry that this owner wrote to that ledger, or -1."""

    async def store(self, snapshot: Snapshot) -> None:
        """Is durable when it returns. CursorFencedError; after any other error the state may or may not be stored."""

    async def set_properties(self, properties: Mapping[str, str]) -> None: ...

    async def set_last_active(self, last_active_ms: int) -> None: ...

    @property
    def needs_cleanup(self) -> bool:
        """Whether `clean_up` has something to do now."""

    async def clean_up(self) -> None:
        """Deletes what an earlier `store` has left. What cannot be deleted now is tried again later."""

    async def close(self, snapshot: Snapshot, *, is_stored: bool) -> None:
        """Stores this state, unless `is_stored`, and ends the storage, also if it raises."""

    async def delete(self) -> None:
        """Ends the cursor's existence; some of its data may still exist when it returns."""

    async def delete_data(self) -> None:
        """Deletes what `delete` has left. Data that cannot be deleted is logged and left."""

    async def abandon(self) -> None:
        """Ends the storage without storing anything: another broker has the cursor, or it is deleted."""


class StoredCursor(NamedTuple):
    name: str
    """The subscription's name, not encoded."""
    state: PositionInfo
    """What was stored last."""
    storage: CursorStorage


class CursorStorages(Protocol):
    """The storages of all cursors of one topic."""

    async def keys(self) -> Sequence[str]:
        """Returns the keys by which `open` finds the stored cursors."""

    async def open(self, key: str) -> StoredCursor:
        """Fences every owner before this one. CursorMissingError; CursorFencedError if another owner opens it too."""

    async def create(self, name: str, snapshot: Snapshot, properties: Mapping[str, str]) -> CursorStorage:
        """Stores a new cursor with this state. CursorExistsError."""
