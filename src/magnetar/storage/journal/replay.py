"""Replay reads the records of former processes from the journal, and distinguishes a torn tail from damage.

Invariant: bytes that are not a group are a torn tail if they are at the end of the last file in use, and no intact
           group of that file follows. A write is followed by its sync before the next one begins, so a crash can tear
           only the last one.
Order:     a file is made, its header durable, when the one before is ready to be written. So a crash may tear the
           header of the last file only, and not that of the only one if the journal was begun. A journal has a file at
           every moment since its first start; the marks know whether it was begun (mark.py).
Format:    zeros up to the end of a file are room that was prepared and not used. A file with anything but zeros after
           its header is in use. A file is prepared ahead and written only when the one before is complete; so one that
           is not in use says nothing about the tail of the one before. A file that is used again, as its header says,
           has groups of its former use after its own, with another file id: it is in use when it has a group of its
           own, and a group that is missing at its end is noticed when the next file does not continue from there.
Failure:   any other bytes that are not a group are damage, and so is a gap in the sequence numbers, or a missing file.
           The error names file and offset, and nothing on the disk has been changed by then. Gaps that lie wholly at
           or below the mark do no harm: those records are no longer needed. So a file that ends there says nothing
           about what follows it.
Limits:    damage in the very last group looks like a torn write, unless the journal was closed after it, or opened
           again since: a closing group, or the floor in the next file's header, shows that something is missing. The
           same holds for any number of last groups of the last file in use that are cut off, or zeros now: the normal
           end looks the same. And if only a file remains that was prepared after the one in use, nothing shows that
           the one in use is missing.
Read next: files.py for what is done about a torn tail
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.errors import FileMissingError, JournalDamagedError
from magnetar.runtime.disk import Disk, File
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    FILE_ID_OFFSET,
    GROUP_HEADER_BYTES,
    FileHeader,
    GroupHeader,
    JournalRecord,
    decode_file_header,
    decode_group_header,
    decode_records,
    file_id_bytes,
    file_number,
    is_intact,
)

PIECE_BYTES: Final = 4 * 2**20

_ZEROS: Final = bytes(PIECE_BYTES)


class Window:
    """A file read in large pieces, because each read is a hand-over to the disk's thread.

    It takes memory for one piece, or one group if that is larger; never more than the file has.
    """

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
    """The number of its first group; None if it has no group."""
    last_sequence: int | None = None
    """None: it has no records."""
    last_group: int = FILE_HEADER_BYTES
    """Offset of the last intact group; equal to `end` if it has none."""
    end: int = FILE_HEADER_BYTES
    """The end of the last intact group."""


class Replayed(NamedTuple):
    files: list[FoundFile]
    """Files in use, and unused files with one in use after them."""
    unused: list[FoundFile]
    """Files after the last one in use."""
    next_sequence: int


class _Chain:
    """Knows which sequence number comes next, over all files."""

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.next: int | None = None
        self.end: tuple[str, int] | None = None
        """Path and offset of bytes after the last group that are not a group of its file."""

    def accepts(self, first: int) -> bool:
        if first == self.next:
            return True
        begins_anew = self.next is None or first > self.next
        return begins_anew and first <= self.mark + 1

    def reaches(self, floor: int) -> bool:
        """Reports whether every record below the floor was seen, or is no longer needed."""
        return floor <= max(self.mark + 1, self.next or 0)

    def missing(self, first: int) -> str:
        expected = max(self.mark + 1, self.next or 0)
        if first > expected:
            return f"records {expected} to {first - 1} are missing; they must stand before it"
        return f"it begins with record {first} where record {expected} must stand"

    def gap(self, path: str, offset: int, first: int) -> JournalDamagedError:
        """Returns an error for records that are missing before this one. It names another file that may have held
        them."""
        if self.end is not None and first > max(self.mark + 1, self.next or 0):
            path, offset = self.end
            return JournalDamagedError(
                path, offset, f"this is no intact group, and later files show that it was one; {_ADVICE}"
            )
        return JournalDamagedError(path, offset, f"{self.missing(first)}; {_ADVICE}")


async def replay_files(disk: Disk, directory: str, mark: int, deliver: Deliver, *, is_begun: bool = False) -> Replayed:
    """Delivers every record after the mark, in order. Changes nothing on the disk.

    `is_begun`: a file must exist.
    """
    names = await journal_names(disk, directory)
    if is_begun and not names:
        raise JournalDamagedError(
            directory, None, f"all its files are missing, and with them the last records; {_ADVICE}"
        )
    found = [await _inspect(disk, f"{directory}/{name}") for name in names]
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
    """Returns the names in order; none if the directory does not exist."""
    try:
        names = [name for name in sorted(await disk.list(directory)) if name.endswith(".journal")]
    except FileMissingError:
        return []
    for name in names:
        if file_number(name) is None:
            raise JournalDamagedError(
                f"{directory}/{name}", 0, "this is not the name of a journal file: move it elsewhere"
            )
    return names


async def _inspect(disk: Disk, path: str) -> FoundFile:
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
    """Reports whether a group was written. A file that is used again has an intact header once it has its name."""
    if header is None or not header.is_reused:
        return not await window.is_zero_from(FILE_HEADER_BYTES)
    if await intact_group(window, header.file_id, FILE_HEADER_BYTES) is not None:
        return True
    return await later_group(window, header.file_id, FILE_HEADER_BYTES + 1) is not None


async def intact_group(window: Window, file_id: int, offset: int) -> tuple[GroupHeader, memoryview] | None:
    """Returns the group of this file that begins here."""
    header = decode_group_header(await window.at(offset, GROUP_HEADER_BYTES))
    if header is None or header.file_id != file_id or offset + header.size > window.size:
        return None
    group = await window.at(offset, header.size)
    return (header, group) if is_intact(header, group) else None


async def later_group(window: Window, file_id: int, offset: int, first_sequence: int = 0) -> int | None:
    """Returns the place of an intact group of this file, here or later, whose records have such numbers or greater
    ones.

    The search is for the file id, which is random and which no client knows. So no payload looks like a group, and each
    byte is read about once, whatever clients have written.
    """
    pattern = file_id_bytes(file_id)
    found = await window.find(pattern, offset + FILE_ID_OFFSET)
    while found is not None:
        group = await intact_group(window, file_id, found - FILE_ID_OFFSET)
        if group is not None and group[0].first_sequence >= first_sequence:
            return found - FILE_ID_OFFSET
        found = await window.find(pattern, found + 1)
    return None


async def _replay_file(disk: Disk, found: FoundFile, chain: _Chain, deliver: Deliver, *, may_be_torn: bool) -> None:
    if not found.is_intact:
        if found.is_in_use:
            raise JournalDamagedError(
                found.path, 0, f"its header is wrong, though records were written after it; {_ADVICE}"
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
    """Allows missing files if the next file begins below the mark, or if nothing of the one before them is needed
    either: then that one has come back, as its removal was not durable."""
    if (before.last_sequence or 0) <= chain.mark:
        return
    if found.first_sequence is None or found.first_sequence > chain.mark + 1:
        raise JournalDamagedError(found.path, 0, f"the files between {before.path} and this one are missing; {_ADVICE}")


_ADVICE = "restore the journal directory, if there is a copy of it"


class _Reader:
    """Reads the groups of one file in order."""

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
            raise self._damage(f"this is not an intact group, but an intact one follows at offset {later}")
        self._chain.end = self._found.path, end

    def _take(self, header: GroupHeader, group: memoryview) -> None:
        found = self._found
        if not self._chain.accepts(header.first_sequence):
            raise self._chain.gap(found.path, found.end, header.first_sequence)
        self._chain.end = None
        self._chain.next = header.first_sequence + header.records
        if found.first_sequence is None:
            found.first_sequence = header.first_sequence
        if header.records:
            found.last_sequence = self._chain.next - 1
            if found.last_sequence > self._chain.mark:
                self._deliver_records(header, group)
        found.last_group = found.end
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
