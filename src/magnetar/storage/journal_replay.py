"""Replay: reads what former lives left in the journal, and tells a torn tail from damage.

Torn:      bytes that are no group, at the end of the last file in use, with no intact group of that file behind them. A
           write is followed by its sync before the next one begins, so a crash can tear only the last one.
Damaged:   every other thing that is no group; a gap in the sequence numbers; a file that is missing. The error names
           file and offset, and nothing on the disk has been changed by then.
Headers:   a file is made when the one before is ready to be written, its header durable. So a crash may have torn that
           of the last file only, and not that of the only one if the journal was begun.
Begun:     a journal has a file from its first life on, at every moment. If there is none at all, no file shows what is
           missing; that the journal was begun, the marks know (journal_mark.py).
End:       zeros up to the end of a file. That is room that was prepared and not used.
In use:    a file with anything but zeros behind its header. A file is prepared ahead and written only when the one
           before is complete; so one that is not in use says nothing about the tail of the one before.
Reused:    a file that was used before, as its header says, has groups of its former use behind its own. They have
           another file id. It is in use when it has a group of its own; a group that is missing at its end is noticed
           when the next file does not go on from there.
Mark:      gaps that lie wholly at or below it do no harm: those records are no longer needed. So a file that ends there
           says nothing about what follows it.
Limit:     damage in the very last group looks like a torn write, unless the journal was closed behind it, or opened
           again since: a closing group, or the floor in the next file's header, shows that something is missing. The
           same holds for any number of last groups of the last file in use that are cut off, or zeros by now: that is
           how its end looks. And if only a file is left that was prepared behind the one in use, nothing tells of that
           one.
Read next: journal_files.py for what is done about a torn tail
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.errors import FileMissingError, JournalDamagedError
from magnetar.runtime.disk import Disk
from magnetar.storage.journal_format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    GROUP_MAGIC_BYTES,
    FileHeader,
    GroupHeader,
    JournalRecord,
    decode_file_header,
    decode_group_header,
    decode_records,
    file_number,
    is_intact,
)
from magnetar.storage.journal_window import Window

Deliver = Callable[[JournalRecord], None]


@dataclass(slots=True)
class FoundFile:
    """What one file turned out to hold."""

    path: str
    number: int
    is_in_use: bool
    is_intact: bool
    """The header is."""
    first_sequence: int | None = None
    """Of its first group; None: it has none."""
    last_sequence: int | None = None
    """None: it has no records."""
    needed_from: int = FILE_HEADER_BYTES
    """Offset of the first group that has a record behind the mark."""
    end: int = FILE_HEADER_BYTES
    """Behind the last intact group."""
    is_closed: bool = False
    """It ends with a closing group: all of it was synced, and there is nothing behind."""


class Replayed(NamedTuple):
    files: list[FoundFile]
    """Those in use, and those that are not but have one in use behind them."""
    unused: list[FoundFile]
    """Behind the last one in use."""
    next_sequence: int


class _Chain:
    """Which sequence number comes next, over all files."""

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.next: int | None = None
        self.end: tuple[str, int] | None = None
        """Behind the last group: path and offset, if something stands there that is no group of its file."""

    def accepts(self, first: int) -> bool:
        if first == self.next:
            return True
        begins_anew = self.next is None or first > self.next
        return begins_anew and first <= self.mark + 1

    def reaches(self, floor: int) -> bool:
        """Whether all below the floor has been seen, or is no longer needed."""
        return floor <= max(self.mark + 1, self.next or 0)

    def missing(self, first: int) -> str:
        expected = max(self.mark + 1, self.next or 0)
        if first > expected:
            return f"records {expected} to {first - 1} are missing; they must stand before it"
        return f"it begins with record {first} where record {expected} must stand"

    def gap(self, path: str, offset: int, first: int) -> JournalDamagedError:
        """Something is missing before this record. If another file may have held it, that one is named."""
        if self.end is not None and first > max(self.mark + 1, self.next or 0):
            path, offset = self.end
            return JournalDamagedError(
                path, offset, f"this is no intact group, and later files show that it was one; {_ADVICE}"
            )
        return JournalDamagedError(path, offset, f"{self.missing(first)}; {_ADVICE}")


async def replay_files(disk: Disk, directory: str, mark: int, deliver: Deliver, *, is_begun: bool = False) -> Replayed:
    """Delivers every record behind the mark, in order. Changes nothing on the disk.

    `is_begun`: there must be a file.
    """
    names = await journal_names(disk, directory)
    if is_begun and not names:
        raise JournalDamagedError(
            directory, None, f"all its files are gone, and with them what was written last; {_ADVICE}"
        )
    found = [await _look_at(disk, f"{directory}/{name}") for name in names]
    used_count = max((index for index, file in enumerate(found, 1) if file.is_in_use), default=0)
    chain = _Chain(mark)
    before: FoundFile | None = None
    for index, file in enumerate(found, 1):
        if not file.is_intact and (index < len(found) or (is_begun and index == 1)):
            raise JournalDamagedError(file.path, 0, f"its header is wrong, though it was durable once; {_ADVICE}")
        await _replay_file(disk, file, chain, deliver, may_be_torn=index >= used_count)
        if before is not None and file.number != before.number + 1:
            _check_hole(before, file, chain)
        before = file
    return Replayed(found[:used_count], found[used_count:], max(chain.next or 0, mark + 1))


async def journal_names(disk: Disk, directory: str) -> list[str]:
    """In order; no names if there is no such directory."""
    try:
        names = [name for name in sorted(await disk.list(directory)) if name.endswith(".journal")]
    except FileMissingError:
        return []
    for name in names:
        if file_number(name) is None:
            raise JournalDamagedError(f"{directory}/{name}", 0, "this is no name of a journal file: move it elsewhere")
    return names


async def _look_at(disk: Disk, path: str) -> FoundFile:
    file = await disk.open(path)
    try:
        window = Window(file)
        header = decode_file_header(await window.at(0, FILE_HEADER_BYTES), path)
        number = file_number(path.rpartition("/")[2])
        assert number is not None, "only such names are listed"
        return FoundFile(path, number, is_in_use=await _is_in_use(window, header), is_intact=header is not None)
    finally:
        await file.aclose()


async def _is_in_use(window: Window, header: FileHeader | None) -> bool:
    """A file that is used again has an intact header from the moment it has its name."""
    if header is None or not header.is_reused:
        return not await window.is_zero_from(FILE_HEADER_BYTES)
    if await intact_group(window, header.file_id, FILE_HEADER_BYTES) is not None:
        return True
    return await later_group(window, header.file_id, FILE_HEADER_BYTES + 1) is not None


async def intact_group(window: Window, file_id: int, offset: int) -> tuple[GroupHeader, memoryview] | None:
    """The group of this file that begins here."""
    header = decode_group_header(await window.at(offset, GROUP_HEADER_BYTES))
    if header is None or header.file_id != file_id or offset + header.size > window.size:
        return None
    group = await window.at(offset, header.size)
    return (header, group) if is_intact(header, group) else None


async def later_group(window: Window, file_id: int, offset: int, first_sequence: int = 0) -> int | None:
    """Where an intact group of this file begins, here or behind, whose records have such numbers or greater ones."""
    found = await window.find(GROUP_MAGIC_BYTES, offset)
    while found is not None:
        group = await intact_group(window, file_id, found)
        if group is not None and group[0].first_sequence >= first_sequence:
            return found
        found = await window.find(GROUP_MAGIC_BYTES, found + 1)
    return None


async def _replay_file(disk: Disk, found: FoundFile, chain: _Chain, deliver: Deliver, *, may_be_torn: bool) -> None:
    if not found.is_intact:
        if found.is_in_use:
            raise JournalDamagedError(
                found.path, 0, f"its header is wrong, though records were written behind it; {_ADVICE}"
            )
        return
    file = await disk.open(found.path)
    try:
        window = Window(file)
        header = decode_file_header(await window.at(0, FILE_HEADER_BYTES), found.path)
        if header is None:
            raise JournalDamagedError(found.path, 0, f"its header was intact a moment ago, and is not; {_ADVICE}")
        if not chain.reaches(header.floor):
            raise chain.gap(found.path, 0, header.floor)
        await _Reader(window, header, found, chain, deliver).run(may_be_torn)
    finally:
        await file.aclose()


def _check_hole(before: FoundFile, found: FoundFile, chain: _Chain) -> None:
    """Files between these two are missing. They were no longer needed if what follows begins below the mark, or if
    nothing of the one before them is needed either: then it has come back, as its removal was not durable."""
    if (before.last_sequence or 0) <= chain.mark:
        return
    if found.first_sequence is None or found.first_sequence > chain.mark + 1:
        raise JournalDamagedError(found.path, 0, f"the files between {before.path} and this one are missing; {_ADVICE}")


_ADVICE = "restore the journal directory, if there is a copy of it"


class _Reader:
    """Walks through the groups of one file."""

    def __init__(self, window: Window, header: FileHeader, found: FoundFile, chain: _Chain, deliver: Deliver) -> None:
        self._window = window
        self._file_id = header.file_id
        self._is_reused = header.is_reused
        self._found = found
        self._chain = chain
        self._deliver = deliver

    async def run(self, may_be_torn: bool) -> None:
        while (group := await intact_group(self._window, self._file_id, self._found.end)) is not None:
            self._take(*group)
        end = self._found.end
        if await self._window.is_zero_from(end):
            return
        if not may_be_torn and not self._is_reused:
            raise self._damage("this is no intact group, and later files show that it was one")
        later = await later_group(self._window, self._file_id, end + 1, self._chain.next or 0)
        if later is not None:
            raise self._damage(f"this is no intact group, but there is one behind it, at offset {later}")
        self._chain.end = self._found.path, end
        if not self._is_reused:
            self._found.is_closed = False  # Not closed by the last life, then.

    def _take(self, header: GroupHeader, group: memoryview) -> None:
        found, mark = self._found, self._chain.mark
        if not self._chain.accepts(header.first_sequence):
            raise self._chain.gap(found.path, found.end, header.first_sequence)
        self._chain.end = None
        self._chain.next = header.first_sequence + header.records
        if found.first_sequence is None:
            found.first_sequence = header.first_sequence
        if header.records:
            found.last_sequence = self._chain.next - 1
            if found.last_sequence <= mark:
                found.needed_from = found.end + header.size
            else:
                self._deliver_records(header, group)
        found.is_closed = not header.records
        found.end += header.size

    def _deliver_records(self, header: GroupHeader, group: memoryview) -> None:
        try:
            records = decode_records(header, group)
        except ValueError as error:
            raise self._damage(f"the group is intact, but {error}") from error
        for record in records:
            if record.sequence > self._chain.mark:
                self._deliver(record)

    def _damage(self, what: str) -> JournalDamagedError:
        return JournalDamagedError(self._found.path, self._found.end, f"{what}; {_ADVICE}")
