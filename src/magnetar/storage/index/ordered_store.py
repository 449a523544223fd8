"""OrderedStore: sorted keys and values on disk, the little that the location index needs of a database.

Purpose:   what the index means is written once (location_index.py) and runs on RocksDB in production and on a sorted
           list in the simulator: only these few calls depend on a library with its own threads and files.
Invariant: `write` is all or nothing and durable when it returns. A write that a crash interrupts happened or did not.
Failure:   an error is an error: no call answers that a key is missing because something could not be read.
Threads:   every call blocks; the index makes them on its lanes. Reads and a write may run at the same time.
Read next: rocksdb_store.py, memory_store.py, and magnetar/testing/contracts/location_index.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Changes:
    """Changes, applied in the order of the fields, so that a range can be emptied and refilled at once."""

    removed_ranges: list[tuple[bytes, bytes]] = field(default_factory=list)
    """First key, and the end, which is not included."""
    removed: list[bytes] = field(default_factory=list)
    put: list[tuple[bytes, bytes]] = field(default_factory=list)


class OrderedStore(ABC):
    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def ascending(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields from `first` up to and without `end`, with or without what is written during the iteration."""

    @abstractmethod
    def descending(self, last: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields from `last` down to `first`, both included."""

    @abstractmethod
    def write(self, changes: Changes) -> None:
        """Raises DiskFullError if nothing was done and a new try is allowed, SyncFailedError if it is not."""

    @abstractmethod
    def close(self) -> None:
        """Closes the store. Repeated calls are harmless."""
