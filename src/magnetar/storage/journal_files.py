"""The files of one journal: made, put in order when the journal opens, and removed when nobody needs them.

Directory: `journal/` on the journal's disk; `journal/0000000000000001.journal` and so on.
Rewriting: what the last life left unclosed is written anew, under its name, before anything is promised about it. That
           cuts a torn tail off. And it makes durable what this life has read: after a kill, or a failed sync, the page
           cache may show a group that the device does not have, and no later sync of the old file would write it.
Order:     removals, the rename and the new file's name are changes of one directory, made in this order and synced
           together. Only the first part of them, or all, is there after a crash.
Read next: journal_replay.py for how they are read
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.runtime.disk import Disk, File
from magnetar.runtime.entropy import Entropy
from magnetar.storage.journal_format import FILE_HEADER_BYTES, FileHeader, encode_file_header, file_name
from magnetar.storage.journal_replay import Deliver, FoundFile, replay_files
from magnetar.storage.journal_window import PIECE_BYTES

DIRECTORY: Final = "journal"

_REWRITTEN: Final = f"{DIRECTORY}/rewritten.tmp"


@dataclass(slots=True)
class JournalFile:
    """One that this life writes."""

    file: File
    header: FileHeader
    last_sequence: int | None = None
    room: int = 0
    """Zeros are filled in up to here."""

    @property
    def is_new(self) -> bool:
        """No group was written yet."""
        return self.file.size == FILE_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class OldFile:
    """One that nobody writes any more."""

    path: str
    last_sequence: int | None


class JournalFiles:
    def __init__(self, disk: Disk, entropy: Entropy) -> None:
        self.next_sequence = 1
        self.old: list[OldFile] = []
        self._disk = disk
        self._entropy = entropy
        self._last_number = 0

    async def open(self, mark: int, deliver: Deliver) -> None:
        """Replays, then leaves only whole files that are known to be durable."""
        await self._disk.make_dir(DIRECTORY)
        await self._disk.sync_dir()
        replayed = await replay_files(self._disk, DIRECTORY, mark, deliver)
        for unused in reversed(replayed.unused):  # From the end: a crash leaves no hole.
            await self._disk.remove(unused.path)
        if replayed.files:
            last = replayed.files[-1]
            self._last_number = last.number
            if not last.is_closed:
                await self._rewrite(last)
        self.old = [OldFile(file.path, file.last_sequence) for file in replayed.files]
        self.next_sequence = replayed.next_sequence

    async def create(self, floor: int) -> JournalFile:
        """A new file, ready to be written: its header and its name are durable."""
        self._last_number += 1
        header = FileHeader(self._last_number, self._entropy.random.getrandbits(64), floor)
        file = await self._disk.open(f"{DIRECTORY}/{file_name(header.number)}", create=True)
        try:
            assert not file.size, f"{file.path} was not there when the journal was opened"
            await file.append_and_sync([encode_file_header(header)])
            await self._disk.sync_dir(DIRECTORY)
        except BaseException:
            await file.aclose()
            raise
        return JournalFile(file, header)

    async def retire(self, file: JournalFile) -> None:
        """It is complete."""
        self.old.append(OldFile(file.file.path, file.last_sequence))
        await file.file.aclose()

    async def forget_through(self, sequence: int) -> int:
        """Removes the old files that have nothing behind this number, durably; returns how many. One call at a time."""
        count = 0
        while self.old and (self.old[0].last_sequence or 0) <= sequence:
            await self._disk.remove(self.old[0].path)
            del self.old[0]
            count += 1
        if count:
            await self._disk.sync_dir(DIRECTORY)
        return count

    async def _rewrite(self, found: FoundFile) -> None:
        source = await self._disk.open(found.path)
        try:
            copy = await self._disk.open(_REWRITTEN, create=True)
            try:
                await copy.truncate(0)
                await _copy(source, 0, FILE_HEADER_BYTES, copy)
                await _copy(source, found.needed_from, found.end, copy)
                await copy.sync()
            finally:
                await copy.aclose()
        finally:
            await source.aclose()
        await self._disk.rename(_REWRITTEN, found.path)


async def _copy(source: File, start: int, end: int, target: File) -> None:
    while start < end:
        piece = await source.read(start, min(PIECE_BYTES, end - start))
        await target.append([piece])
        start += len(piece)
