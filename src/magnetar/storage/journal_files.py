"""The files of one journal: made, put in order when the journal opens, and removed when nobody needs them.

Directory: `journal/` on the journal's disk; `journal/0000000000000001.journal` and so on.
Rewriting: what the last life left unclosed is written anew, under its name, before anything is promised about it. That
           cuts a torn tail off. And it makes durable what this life has read: after a kill, or a failed sync, the page
           cache may show a group that the device does not have, and no later sync of the old file would write it.
Always:    once the first file is there, there is one at every moment, whatever crashes: without any, no file could
           show that something is missing. So one that was never used stays, if there are no others, until the next
           one takes its name.
Order:     removals, the rename and the new file's name are changes of one directory, made in this order and synced
           together. Only the first part of them, or all, is there after a crash.
Numbers:   go on behind those that are gone. A removal that was not synced, as when its sync failed, may be undone by a
           power loss long after: a file that comes back must stand before whatever was written since.
Spares:    a file that nobody needs any more becomes a spare, up to `spare_files_max` of them, and then the next file:
           groups that overwrite bytes change neither the file's size nor its blocks, which halves the time of their
           sync, and takes no new pages of memory. Its old name is gone for good before a byte of it is overwritten,
           so one of a former life is not used. Its new header is durable before it gets its new name. What a former
           use left behind the groups has another file id, so no reader takes it for a group.
Read next: journal_replay.py for how they are read
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from magnetar.errors import DiskFullError, FileMissingError
from magnetar.runtime.disk import Disk, File
from magnetar.runtime.entropy import Entropy
from magnetar.storage.journal_format import FILE_HEADER_BYTES, FileHeader, encode_file_header, file_name
from magnetar.storage.journal_replay import Deliver, FoundFile, replay_files
from magnetar.storage.journal_window import PIECE_BYTES

DIRECTORY: Final = "journal"

_REWRITTEN: Final = f"{DIRECTORY}/rewritten.tmp"
_NEW: Final = f"{DIRECTORY}/new.tmp"
_SPARE: Final = ".spare"  # The end of a spare's name; before it stands the name that it had.


@dataclass(slots=True)
class JournalFile:
    """One that this life writes."""

    file: File
    header: FileHeader
    path: str
    last_sequence: int | None = None
    room: int = 0
    """There are bytes to overwrite up to here: zeros, or those of a former use."""

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
    def __init__(self, disk: Disk, entropy: Entropy, spare_files_max: int = 0) -> None:
        self.next_sequence = 1
        self.old: list[OldFile] = []
        self._disk = disk
        self._entropy = entropy
        self._last_number = 0
        self._replaced: str | None = None  # A file that was never used, and has no other beside it.
        self._spares: list[str] = []
        self._spares_max = spare_files_max

    async def open(self, mark: int, deliver: Deliver, *, is_begun: bool) -> None:
        """Replays, then leaves only whole files that are known to be durable, and perhaps one that `create` replaces.

        `is_begun`: `create` has returned in a former life.
        """
        if not is_begun:
            await self._disk.make_dir(DIRECTORY)
            await self._disk.sync_dir()
        replayed = await replay_files(self._disk, DIRECTORY, mark, deliver, is_begun=is_begun)
        removed = replayed.unused if replayed.files else replayed.unused[1:]
        for unused in reversed(removed):  # From the end: a crash leaves no hole.
            await self._disk.remove(unused.path)
        if replayed.files:
            last = replayed.files[-1]
            self._last_number = last.number
            if not last.is_closed:
                await self._rewrite(last)
        elif replayed.unused:
            self._last_number = replayed.unused[0].number - 1
            self._replaced = replayed.unused[0].path
        self.old = [OldFile(file.path, file.last_sequence) for file in replayed.files]
        self.next_sequence = replayed.next_sequence
        await self._remove_leftovers()

    async def _remove_leftovers(self) -> None:
        """Spares of a former life: perhaps it was killed, or its sync failed, before their new names were durable. Then
        they are still journal files on the device, and a byte written to one would be damage. And a file that had
        not got its name yet."""
        for name in await self._disk.list(DIRECTORY):
            path = f"{DIRECTORY}/{name}"
            if name.endswith(_SPARE) or path == _NEW:
                await self._disk.remove(path)

    async def create(self, floor: int) -> JournalFile:
        """A file ready to be written: its header and its name are durable."""
        self._last_number += 1
        spare = self._spares.pop(0) if self._spares else None
        header = FileHeader(self._last_number, self._entropy.random.getrandbits(64), floor, spare is not None)
        path = f"{DIRECTORY}/{file_name(header.number)}"
        aside = spare or (_NEW if path == self._replaced else path)
        file = await self._disk.open(aside, create=spare is None, reuse=spare is not None)
        try:
            assert not file.size, f"{file.path} was not there when the journal was opened"
            await file.append_and_sync([encode_file_header(header)])
            if aside != path:
                await self._disk.rename(aside, path)
            await self._disk.sync_dir(DIRECTORY)
        except BaseException:
            await file.aclose()
            raise
        return JournalFile(file, header, path)

    async def retire(self, file: JournalFile) -> None:
        """It is complete."""
        self.old.append(OldFile(file.path, file.last_sequence))
        await file.file.aclose()

    async def forget_through(self, sequence: int) -> int:
        """Puts the old files away that have nothing behind this number, durably; returns how many. One call at a time.

        From the beginning: a crash leaves no hole.
        """
        count = 0
        spares: list[str] = []
        while self.old and (self.old[0].last_sequence or 0) <= sequence:
            path = self.old[0].path
            if len(self._spares) + len(spares) < self._spares_max:
                spares.append(f"{path}{_SPARE}")
                await self._disk.rename(path, spares[-1])
            else:
                await self._disk.remove(path)
            del self.old[0]
            count += 1
        if count:
            await self._disk.sync_dir(DIRECTORY)
            self._spares += spares  # Only now: nobody may find a file under its old name that is being overwritten.
        return count

    async def _rewrite(self, found: FoundFile) -> None:
        try:
            await self._write_anew(found)
        except DiskFullError as error:
            with contextlib.suppress(FileMissingError):
                await self._disk.remove(_REWRITTEN)  # It would take the room that is freed for the next try.
            needed = found.end - found.needed_from + FILE_HEADER_BYTES
            raise DiskFullError(f"{error} (starting takes {needed:,} bytes, to copy the last journal file)") from error
        await self._disk.rename(_REWRITTEN, found.path)

    async def _write_anew(self, found: FoundFile) -> None:
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


async def _copy(source: File, start: int, end: int, target: File) -> None:
    while start < end:
        piece = await source.read(start, min(PIECE_BYTES, end - start))
        await target.append([piece])
        start += len(piece)
