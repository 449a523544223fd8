"""MemoryStore: the counterpart of RocksDB for the simulator and for tests.

Invariant: a MemoryImage is the disk and outlives the process: after a crash another MemoryStore is opened on it.
Failure:   a write has its effect at one moment, on the index's lane: a lane that died before it leaves nothing, one
           that died after it leaves everything, reported or not. `fail_next_write` and `flip_bit` stand for a full
           disk, a failed sync and a damaged file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from magnetar.errors import ClosedError, MagnetarError
from magnetar.storage.index.ordered_store import Changes, OrderedStore


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
