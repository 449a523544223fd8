"""The files of one journal: made, put in order when the journal opens, and removed when they are no longer needed.

Format:    `journal/` on the journal's disk; `journal/0000000000000001.journal` and so on.
Invariant: once the first file exists, one exists at every moment, also in a crash: without any, no file could show that
           something is missing. So a file that was never used stays, if it is the only one, until the next takes its
           name. Numbers continue after those of removed files: a removal whose sync failed may be undone by a power
           loss long after, and a file that comes back must have a lower number than all later ones.
Order:     what this process has read is durable before anything is promised about it. After a kill, or a failed sync,
           the page cache may show a group that the device does not have, and no later sync would write it. Each group
           is synced before the next one is written, so this can be the last group of the last file alone, a closing
           group included. It is written once more in its place, where it needs no room; a torn tail is cut off.
           Removals and the new file's name are changes of one directory, made in this order and synced together. After
           a crash a first part of them is done, or all.
           A file that is no longer needed becomes a spare, up to `spare_files_max` of them, and then the next file:
           groups that overwrite bytes change neither the file's size nor its blocks, which halves the time of their
           sync, and takes no new pages of memory. Its old name is removed durably before a byte of it is overwritten,
           so a spare of a former process is not used. Its new header is durable before it gets its new name. Its old
           groups, which follow the new ones, have another file id, so no reader takes them for its own.
Limits:    a reserve, a file of zeros, is given up by a start that finds the device full: a start needs a new file. It
           is filled again as soon as the device has room.
           RoomPolicy fills zeros in ahead of the groups: a sync that changes neither blocks nor size is quicker; by
           half, for small groups (docs/runtime.md). Every byte is then written twice, and no group is written during a
           step. So it is done only while groups are small: one step then lasts for many of them.
Read next: replay.py for how they are read
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from magnetar.errors import DiskFullError, JournalDamagedError
from magnetar.runtime.disk import Disk, File
from magnetar.runtime.runtime import Entropy
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    decode_group_header,
    encode_file_header,
    file_name,
    is_intact,
)
from magnetar.storage.journal.replay import Deliver, FoundFile, replay_files

log = logging.getLogger(__name__)

DIRECTORY: Final = "journal"
RESERVE_BYTES: Final = 64 * 2**10
"""Room for a start on a full device: two new files, and hundreds of fences until an operator makes room."""

_NEW: Final = f"{DIRECTORY}/new.tmp"
_RESERVE: Final = f"{DIRECTORY}/reserve"
_UNFINISHED: Final = ".tmp"
_SPARE: Final = ".spare"  # The end of a spare's name, after the name that it had.
_GROUPS_PER_STEP_MIN: Final = 128  # Less than one group in a hundred waits for a step: the 99th percentile does not.
_MEMORY: Final = 8  # About this many groups decide whether groups are small.


@dataclass(slots=True)
class JournalFile:
    """A file that this process writes."""

    file: File
    header: FileHeader
    path: str
    last_sequence: int | None = None
    room: int = 0
    """The end of the bytes to overwrite: zeros, or those of a former use."""

    @property
    def is_new(self) -> bool:
        """No group was written yet."""
        return self.file.size == FILE_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file that is written no more."""

    path: str
    last_sequence: int | None


class JournalFiles:
    def __init__(self, disk: Disk, entropy: Entropy, spare_files_max: int = 0) -> None:
        self.next_sequence = 1
        self.old: list[OldFile] = []
        self._disk = disk
        self._entropy = entropy
        self._last_number = 0
        self._replaced: str | None = None  # A file that was never used and was the only one.
        self._has_reserve = False
        self._spares: list[str] = []
        self._spares_max = spare_files_max

    async def open(self, mark: int, deliver: Deliver, *, is_begun: bool) -> JournalFile:
        """Replays, then leaves only whole files that are known to be durable; returns a new one to be written.

        `is_begun`: this call has returned once, perhaps in a former process.
        """
        if not is_begun:
            await self._disk.make_dir(DIRECTORY)
            await self._disk.sync_dir()
        replayed = await replay_files(self._disk, DIRECTORY, mark, deliver, is_begun=is_begun)
        removed = replayed.unused if replayed.files else replayed.unused[1:]
        for unused in reversed(removed):  # From the end: a crash leaves no hole.
            await self._disk.remove(unused.path)
        await self._remove_leftovers()
        if replayed.files:
            self._last_number = replayed.files[-1].number
            await self._make_durable(replayed.files[-1])
        elif replayed.unused:
            self._last_number = replayed.unused[0].number - 1
            self._replaced = replayed.unused[0].path
        self.old = [OldFile(file.path, file.last_sequence) for file in replayed.files]
        self.next_sequence = replayed.next_sequence
        current = await self._create_in_reserve(self.next_sequence)
        try:
            await self._keep_reserve()
        except BaseException:
            await current.file.aclose()
            raise
        return current

    async def _remove_leftovers(self) -> None:
        """Removes files that did not get their name yet, and spares of a former process: if it was killed, or its sync
        failed, before their new names were durable, they are still journal files on the device, and a byte written to
        one would be damage."""
        for name in await self._disk.list(DIRECTORY):
            path = f"{DIRECTORY}/{name}"
            if name.endswith((_SPARE, _UNFINISHED)):
                await self._disk.remove(path)
            elif path == _RESERVE:
                self._has_reserve = await self._is_whole(path)

    async def _is_whole(self, reserve: str) -> bool:
        file = await self._disk.open(reserve)
        try:
            return file.size >= RESERVE_BYTES
        finally:
            await file.aclose()

    async def create(self, floor: int) -> JournalFile:
        """Returns a file ready to be written: its header and its name are durable. DiskFullError: nothing has
        changed."""
        self._last_number += 1
        spare = self._spares.pop(0) if self._spares else None
        header = FileHeader(self._last_number, self._entropy.random.getrandbits(64), floor, spare is not None)
        path = f"{DIRECTORY}/{file_name(header.number)}"
        aside = spare or (_NEW if path == self._replaced else path)
        file = await self._disk.open(aside, create=spare is None, reuse=spare is not None)
        try:
            assert not file.size, f"{file.path} did not exist when the journal was opened"
            await file.append_and_sync([encode_file_header(header)])
            if aside != path:
                await self._disk.rename(aside, path)
            await self._disk.sync_dir(DIRECTORY)
        except DiskFullError:
            await file.aclose()
            await self._disk.remove(aside)  # An empty file with another one after it would be damage.
            self._last_number -= 1
            raise
        except BaseException:
            await file.aclose()
            raise
        return JournalFile(file, header, path)

    async def retire(self, file: JournalFile) -> None:
        """Notes that the file is complete."""
        self.old.append(OldFile(file.path, file.last_sequence))
        await file.file.aclose()

    async def forget_through(self, sequence: int) -> int:
        """Removes the old files without records after this number, durably; returns how many. One call at a time.

        It begins with the oldest: a crash leaves no hole.
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
            await self._keep_reserve()
            self._spares += spares  # Only now: no reader may find a file under its old name that is being overwritten.
        return count

    async def _make_durable(self, found: FoundFile) -> None:
        """Cuts off a torn tail, and writes the last group once more. Both take no room."""
        file = await self._disk.open(found.path)
        try:
            if file.size > found.end:
                await file.truncate(found.end)
            group = await file.read(found.last_group, found.end - found.last_group)
            header = decode_group_header(group)
            if group and (header is None or not is_intact(header, group)):
                raise JournalDamagedError(
                    found.path, found.last_group, "this group was intact a moment ago; start again"
                )
            await file.write_again(found.last_group, group)
        finally:
            await file.aclose()

    async def _create_in_reserve(self, floor: int) -> JournalFile:
        """As `create`; on a device that is nearly full it gives the reserve up first."""
        if self._has_reserve and (await self._disk.usage()).free_bytes < RESERVE_BYTES:
            log.warning("the journal's device is full: the bookie starts in the room of its reserve")
            self._has_reserve = False
            await self._disk.remove(_RESERVE)
        try:
            return await self.create(floor)
        except DiskFullError as error:
            raise DiskFullError(
                f"{error}. The journal's reserve for a start is used up: make at least {RESERVE_BYTES:,} bytes of room "
                "on this device, and start the bookie again"
            ) from error

    async def _keep_reserve(self) -> None:
        """Fills the reserve again if it was given up and the device has twice its room."""
        if self._has_reserve or (await self._disk.usage()).free_bytes < 2 * RESERVE_BYTES:
            return
        file = await self._disk.open(_RESERVE, create=True)
        try:
            await file.truncate(0)
            await file.preallocate(RESERVE_BYTES)
            self._has_reserve = True
        except DiskFullError:
            log.warning("the journal's device has no room for a reserve: make room before the bookie is restarted")
        finally:
            await file.aclose()


class RoomPolicy:
    def __init__(self, step_bytes: int, file_bytes_max: int) -> None:
        """With a step of 0 bytes, nothing is filled."""
        self._step_bytes = step_bytes
        self._file_bytes_max = file_bytes_max
        self._average_bytes = 0.0  # No group yet.

    def note_group(self, size: int) -> None:
        if self._average_bytes:
            self._average_bytes += (size - self._average_bytes) / _MEMORY
        else:
            self._average_bytes = size

    def wanted(self, end: int, room: int) -> int | None:
        """Returns the new end of the zeros for a file that ends at `end` and has zeros up to `room`; None: no
        change."""
        if self._average_bytes * _GROUPS_PER_STEP_MIN > self._step_bytes:
            return None
        if end + self._average_bytes <= room or end + self._average_bytes > self._file_bytes_max:
            return None
        return min(end + self._step_bytes, self._file_bytes_max)

    def give_up(self) -> None:
        self._step_bytes = 0
