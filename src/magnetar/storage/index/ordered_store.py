"""OrderedStore: sorted keys and values on disk, the little that the location index needs of a database.

Purpose:   what the index means is written once (location_index.py) and runs on RocksDB in production and on a sorted
           list, `MemoryStore`, in the simulator: only these few calls depend on a library with its own threads and
           files. A `MemoryImage` is the disk and outlives the process: after a crash another store is opened on it.
Invariant: `write` is all or nothing and durable when it returns. A write that a crash interrupts happened or did not:
           in memory it has its effect at one moment, on the index's lane.
Failure:   an error is an error: no call answers that a key is missing because something could not be read.
           `fail_next_write` and `flip_bit` stand for a full disk, a failed sync and a damaged file.
Threads:   every call blocks; the index makes them on its lanes. Reads and a write may run at the same time.
Read next: rocksdb_store.py, and tests/contracts/location_index.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from magnetar.errors import ClosedError, MagnetarError


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


class MemoryImage:
    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.writes = 0
        self.fail_next_write: MagnetarError | None = None

    def flip_bit(self, key: bytes, bit: int) -> None:
        value = bytearray(self.values[key])
        value[bit // 8] ^= 1 << bit % 8
        self.values[key] = bytes(value)


class MemoryStore(OrderedStore):
    def __init__(self, image: MemoryImage | None = None) -> None:
        self._image = image if image is not None else MemoryImage()
        self._is_closed = False

    def get(self, key: bytes) -> bytes | None:
        return self._open_image().values.get(key)

    def ascending(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        image = self._open_image()
        for key in image.keys[bisect_left(image.keys, first) : bisect_left(image.keys, end)]:
            yield key, image.values[key]

    def descending(self, last: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        image = self._open_image()
        for index in range(bisect_right(image.keys, last) - 1, bisect_left(image.keys, first) - 1, -1):
            key = image.keys[index]
            yield key, image.values[key]

    def write(self, changes: Changes) -> None:
        image = self._open_image()
        if image.fail_next_write is not None:
            error, image.fail_next_write = image.fail_next_write, None
            raise error
        for first, end in changes.removed_ranges:
            begin, behind = bisect_left(image.keys, first), bisect_left(image.keys, end)
            for key in image.keys[begin:behind]:
                del image.values[key]
            del image.keys[begin:behind]
        for key in changes.removed:
            if image.values.pop(key, None) is not None:
                del image.keys[bisect_left(image.keys, key)]
        for key, value in changes.put:
            if key not in image.values:
                insort(image.keys, key)
            image.values[key] = value
        image.writes += 1

    def close(self) -> None:
        self._is_closed = True

    def _open_image(self) -> MemoryImage:
        if self._is_closed:
            raise ClosedError("the location index is closed")
        return self._image
