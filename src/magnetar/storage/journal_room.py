"""RoomPolicy: when zeros are filled in ahead of the groups, so that syncing a group has no metadata to write.

Gain:      a sync that changes neither blocks nor size is quicker; by half, for small groups (docs/runtime.md).
Cost:      every byte is written twice, and nothing else is written meanwhile. So it is done only while groups are
           small: then a step lasts for many of them, and the disk has bandwidth to spare.
"""

from __future__ import annotations

from typing import Final

_GROUPS_PER_STEP_MIN: Final = 128  # Less than one group in a hundred waits for a step: the 99th percentile does not.
_MEMORY: Final = 8  # About so many groups decide whether groups are small.


class RoomPolicy:
    def __init__(self, step_bytes: int, file_bytes_max: int) -> None:
        """A step of 0 bytes: never."""
        self._step_bytes = step_bytes
        self._file_bytes_max = file_bytes_max
        self._average_bytes = 0.0  # No group yet.

    def note_group(self, size: int) -> None:
        if self._average_bytes:
            self._average_bytes += (size - self._average_bytes) / _MEMORY
        else:
            self._average_bytes = size

    def wanted(self, end: int, room: int) -> int | None:
        """Up to where a file that ends here, and has zeros up to `room`, should be filled; None: as it is."""
        if self._average_bytes * _GROUPS_PER_STEP_MIN > self._step_bytes:
            return None
        if end + self._average_bytes <= room or end + self._average_bytes > self._file_bytes_max:
            return None
        return min(end + self._step_bytes, self._file_bytes_max)

    def give_up(self) -> None:
        self._step_bytes = 0
