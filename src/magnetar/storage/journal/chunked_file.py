"""Window: a file read in large pieces, because each read is a hand-over to the disk's thread.

Limits:    memory for one piece, or one group if that is larger; never more than the file has.
"""

from __future__ import annotations

from typing import Final

from magnetar.runtime.disk import File

PIECE_BYTES: Final = 4 * 2**20

_ZEROS: Final = bytes(PIECE_BYTES)


class Window:
    def __init__(self, file: File) -> None:
        self.path = file.path
        self.size = file.size
        self._file = file
        self._start = 0
        self._piece = b""
        self._data = memoryview(self._piece)

    async def at(self, offset: int, length: int) -> memoryview:
        """Returns bytes of the file; fewer only at its end."""
        length = max(0, min(length, self.size - offset))
        if offset < self._start or offset + length > self._start + len(self._data):
            self._piece = await self._file.read(offset, max(length, PIECE_BYTES))
            self._data = memoryview(self._piece)
            self._start = offset
        begin = offset - self._start
        return self._data[begin : begin + length]

    async def is_zero_from(self, offset: int) -> bool:
        """Reports whether only zeros follow; also true at the end."""
        while offset < self.size:
            piece = await self.at(offset, PIECE_BYTES)
            if piece != _ZEROS[: len(piece)]:
                return False
            offset += len(piece)
        return True

    async def find(self, pattern: bytes, offset: int) -> int | None:
        """Returns the first place of the pattern at this offset or after it.

        The piece in memory is searched before anything is read: a file that is used again is full of old groups, and a
        search for each of them begins after the one before.
        """
        while offset + len(pattern) <= self.size:
            await self.at(offset, len(pattern))
            found = self._piece.find(pattern, offset - self._start)
            if found >= 0:
                return self._start + found
            offset = self._start + len(self._piece) - len(pattern) + 1
        return None
