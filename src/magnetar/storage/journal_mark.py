"""Mark: the sequence number up to which the journal is no longer needed, kept in every ledger directory.

Promise:   everything up to and including the mark is durable in entry logs and index, in all directories. Whoever moves
           the mark has made sure of that first.
In force:  the lowest over all directories. A crash while it is being moved leaves some of them behind, and replaying
           too much does no harm. A directory without a mark counts as 0.
File:      `lastmark`: magic u32 | version u32 | sequence u64 | crc32c u32, big-endian
           Written under another name, synced and renamed: there is always a whole one.
Read next: journal_replay.py
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from crc32c import crc32c

from magnetar.errors import FileMissingError, MarkDamagedError
from magnetar.runtime.disk import Disk

DEFAULT_NAME: Final = "lastmark"

_MAGIC: Final = 0x4D4E4C4D  # "MNLM"
_VERSION: Final = 1
_MARK: Final = struct.Struct(">IIQ")
_CHECKSUM: Final = struct.Struct(">I")
_FILE_BYTES: Final = _MARK.size + _CHECKSUM.size


class JournalMark:
    """Made by `open`. The directories belong to the caller."""

    def __init__(self, directories: Mapping[str, Disk], name: str, marks: dict[str, int]) -> None:
        """For `open` only."""
        self._directories = directories
        self._name = name
        self._marks = marks

    @classmethod
    async def open(cls, directories: Mapping[str, Disk], name: str = DEFAULT_NAME) -> JournalMark:
        """The ledger directories, each under the name that messages give it; with several journals, one name each."""
        assert directories, "a bookie has a ledger directory"
        marks = {directory: await _read(directory, disk, name) for directory, disk in directories.items()}
        return cls(directories, name, marks)

    @property
    def sequence(self) -> int:
        return min(self._marks.values())

    async def move(self, sequence: int) -> None:
        """When it returns, the mark is durable in every directory. It never goes back. One call at a time."""
        assert sequence >= self.sequence, f"the mark is at {self.sequence} and cannot go back to {sequence}"
        for directory, disk in self._directories.items():
            if self._marks[directory] < sequence:
                await _write(disk, self._name, sequence)
                self._marks[directory] = sequence


def encode_mark(sequence: int) -> bytes:
    head = _MARK.pack(_MAGIC, _VERSION, sequence)
    return head + _CHECKSUM.pack(crc32c(head))


def decode_mark(data: bytes) -> int | None:
    """None: damaged, or not a mark."""
    if len(data) != _FILE_BYTES:
        return None
    magic, version, sequence = _MARK.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _MARK.size)
    is_ours = (magic, version) == (_MAGIC, _VERSION)
    return int(sequence) if is_ours and crc32c(data[: _MARK.size]) == checksum else None


async def _read(directory: str, disk: Disk, name: str) -> int:
    try:
        file = await disk.open(name)
    except FileMissingError:
        return 0
    try:
        sequence = decode_mark(await file.read(0, _FILE_BYTES + 1))
    finally:
        await file.aclose()
    if sequence is None:
        raise MarkDamagedError(
            f"{directory}/{name} is damaged, so nobody knows where the journal must be replayed from: copy {name} "
            "from another ledger directory of this bookie; if there is none, give this bookie up: format it, "
            "and auto-recovery copies its entries from others"
        )
    return sequence


async def _write(disk: Disk, name: str, sequence: int) -> None:
    unfinished = f"{name}.tmp"
    file = await disk.open(unfinished, create=True)
    try:
        await file.truncate(0)
        await file.append_and_sync([encode_mark(sequence)])
    finally:
        await file.aclose()
    await disk.rename(unfinished, name)
    await disk.sync_dir()
