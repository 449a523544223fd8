"""OrderedStore: sorted keys and values on disk, the little that the location index needs of a database.

Why:       what the index means is written once (location_index.py) and runs on RocksDB in production and on a sorted
           list in the simulator: the library with its own threads and files is behind these few calls.
Invariant: `write` is all or nothing and durable when it returns. A write that a crash interrupts happened or did not.
           An error is an error: no call answers "not there" because something could not be read.
Blocking:  every call; the index makes them on its lanes. Reads and a write may run at the same time.
Read next: rocksdb_store.py, memory_store.py, and magnetar/testing/contracts/location_index.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Changes:
    """Applied in this order, so that a range can be emptied and refilled at once."""

    removed_ranges: list[tuple[bytes, bytes]] = field(default_factory=list)
    """First key, and the key behind the last."""
    removed: list[bytes] = field(default_factory=list)
    put: list[tuple[bytes, bytes]] = field(default_factory=list)


class OrderedStore(ABC):
    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def ascending(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """From `first` on, up to and without `end`. As of now, or with what is written meanwhile: either."""

    @abstractmethod
    def descending(self, last: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """From `last` down to `first`, both included."""

    @abstractmethod
    def write(self, changes: Changes) -> None:
        """DiskFullError: nothing was done, and it may be tried again. SyncFailedError: never."""

    @abstractmethod
    def close(self) -> None:
        """Again is harmless."""
