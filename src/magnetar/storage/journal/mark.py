"""Mark: the sequence number up to which a journal is no longer needed, kept in every ledger directory.

Invariant: everything up to and including the mark is durable in entry logs and index, in all directories, before the
           mark is moved. The lowest mark over all directories is in force: a crash during a move leaves some of them
           late, and replaying too much does no harm. A directory without a mark counts as 0. A journal that a mark
           names as in use was opened and has had a file at every moment since: if it has none, they were lost. So the
           first mark, 0, is written when the first files are durable, and before the first request.
Format:    each journal has its own mark; the file `lastmark` has all of them, so that they move together. Big-endian,
           one journal:
               magic u32 | version 1 u32 | sequence u64 | crc32c u32
           several, each by its directory:
               magic u32 | version 2 u32 | count u16 | (is retired u8 | sequence u64 | length u16 | directory)* | crc32c
           The file is written under another name, synced and renamed, so a whole one always exists. A retired journal
           is written no more, and nothing of it is needed. The total, which the index remembers, is the sum over all
           journals, retired ones included: it only grows. With one journal it is that journal's mark.
Read next: replay.py
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from magnetar.errors import FileMissingError, MarkDamagedError
from magnetar.runtime.disk import Disk

NAME: Final = "lastmark"
ONLY: Final = ""
"""The journal of a bookie that has one: its mark is kept without a directory."""

_MAGIC: Final = 0x4D4E4C4D  # "MNLM"
_HEAD: Final = struct.Struct(">II")
_MARK: Final = struct.Struct(">IIQ")
_COUNT: Final = struct.Struct(">H")
_JOURNAL: Final = struct.Struct(">BQH")
_CHECKSUM: Final = struct.Struct(">I")
_FILE_BYTES_MAX: Final = 2**20  # Hundreds of journals, each with the longest path.


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one file: by journal, in the order in which they were configured."""

    in_use: Mapping[str, int]
    retired: Mapping[str, int] = field(default_factory=dict)

    def of(self, journal: str) -> int:
        return self.in_use.get(journal, self.retired.get(journal, 0))


NO_MARKS: Final = Marks({})


class JournalMark:
    """Made by `open`. The directories belong to the caller."""

    def __init__(self, directories: Mapping[str, Disk], journals: Sequence[str], marks: dict[str, Marks]) -> None:
        """For `open` only."""
        self._directories = directories
        self._journals = journals
        self._marks = marks
        self._written: dict[str, None] = {}
        """Directories whose mark this process wrote. A mark that was found may be lost with the next power loss: its
        writer may have stopped because the directory could not be synced."""

    @classmethod
    async def open(cls, directories: Mapping[str, Disk], journals: Sequence[str] = (ONLY,)) -> JournalMark:
        """Takes the ledger directories, each under its name for messages, and the directories of the journals.

        A mark without a directory belongs to the first journal: to add journals, name the old one first.
        """
        assert directories, "a bookie has a ledger directory"
        assert journals, "a bookie has a journal"
        marks = {root: _named(await _read(root, disk), journals[0]) for root, disk in directories.items()}
        return cls(directories, journals, marks)

    @property
    def sequence(self) -> int:
        """The total that is in force; with one journal, its mark."""
        return self.total(self.positions)

    @property
    def positions(self) -> dict[str, int]:
        """The numbers after which the replay of each journal begins."""
        return {journal: self._in_force(journal) for journal in self._journals}

    @property
    def has_same_journals(self) -> bool:
        """Reports whether the last move named these journals, in this order."""
        return all(tuple(marks.in_use) == tuple(self._journals) for marks in self._marks.values())

    @property
    def begun(self) -> set[str]:
        """Journals that must have a file. A retired one may be empty, whatever its mark."""
        return {journal for marks in self._marks.values() for journal in marks.in_use}

    @property
    def left_behind(self) -> dict[str, int]:
        """Journals that were in use, are not named any more, and may have records that are needed."""
        found = [journal for marks in self._marks.values() for journal in marks.in_use]
        return {journal: self._in_force(journal) for journal in found if journal not in self._journals}

    def total(self, positions: Mapping[str, int]) -> int:
        """Returns the total with these positions of the journals in use."""
        return sum(positions.values()) + sum(self._others().values())

    async def move_all(self, positions: Mapping[str, int]) -> None:
        """When it returns, the marks are durable in every directory. They never go back. One call at a time.

        Journals that are not named are retired: nothing of them is needed any more.
        """
        for journal, sequence in positions.items():
            known = self._in_force(journal)
            assert sequence >= known, f"the mark of {journal} is at {known} and cannot go back to {sequence}"
        others = self._others()
        for directory, disk in self._directories.items():
            known_here = self._marks[directory]
            wanted = Marks(
                {journal: max(sequence, known_here.of(journal)) for journal, sequence in positions.items()}, others
            )
            is_same = wanted == known_here and list(wanted.in_use) == list(known_here.in_use)
            if not is_same or directory not in self._written:
                await _write(disk, encode_marks(wanted))
                self._marks[directory] = wanted
                self._written[directory] = None

    def _in_force(self, journal: str) -> int:
        return min([marks.of(journal) for marks in self._marks.values()])

    def _others(self) -> dict[str, int]:
        """The last marks of journals that are not in use now."""
        known = [journal for marks in self._marks.values() for journal in (*marks.in_use, *marks.retired)]
        return {journal: self._in_force(journal) for journal in known if journal not in self._journals}


def encode_marks(marks: Marks) -> bytes:
    if len(marks.in_use) == 1 and not marks.retired:
        (sequence,) = marks.in_use.values()
        return _sealed(_MARK.pack(_MAGIC, 1, sequence))
    parts = [_HEAD.pack(_MAGIC, 2), _COUNT.pack(len(marks.in_use) + len(marks.retired))]
    for is_retired, group in ((False, marks.in_use), (True, marks.retired)):
        for journal, sequence in group.items():
            name = journal.encode()
            parts.append(_JOURNAL.pack(is_retired, sequence, len(name)) + name)
    return _sealed(b"".join(parts))


def decode_marks(data: bytes) -> Marks | None:
    """Returns None if it is damaged, or not a mark."""
    body = data[: -_CHECKSUM.size]
    if len(data) < _HEAD.size + _CHECKSUM.size or _sealed(body) != data:
        return None
    match _HEAD.unpack_from(body):
        case (magic, 1) if magic == _MAGIC and len(body) == _MARK.size:
            return Marks({ONLY: _MARK.unpack(body)[2]})
        case (magic, 2) if magic == _MAGIC:
            return _decode_journals(body)
        case _:
            return None


def _decode_journals(body: bytes) -> Marks | None:
    groups: tuple[dict[str, int], dict[str, int]] = ({}, {})
    try:
        (count,) = _COUNT.unpack_from(body, _HEAD.size)
        offset = _HEAD.size + _COUNT.size
        for _ in range(count):
            is_retired, sequence, length = _JOURNAL.unpack_from(body, offset)
            offset += _JOURNAL.size + length
            groups[bool(is_retired)][body[offset - length : offset].decode()] = sequence
    except (struct.error, UnicodeDecodeError):  # The checksum is right, so this is a bug of the writer.
        return None
    return Marks(*groups) if offset == len(body) else None


def _sealed(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(crc32c(body))


def _named(marks: Marks, first: str) -> Marks:
    if ONLY not in marks.in_use:
        return marks
    return Marks({first: marks.in_use[ONLY]})


async def _read(directory: str, disk: Disk) -> Marks:
    try:
        file = await disk.open(NAME)
    except FileMissingError:
        return NO_MARKS
    try:
        marks = decode_marks(await file.read(0, _FILE_BYTES_MAX))
    finally:
        await file.aclose()
    if marks is None:
        raise MarkDamagedError(
            f"{directory}/{NAME} is damaged, so the start of the journal's replay is unknown: copy {NAME} "
            "from another ledger directory of this bookie; if there is none, let the bookie use all that the journal "
            "still has: magnetar bookie limbo --metadata URL, with the same directories"
        )
    return marks


async def _write(disk: Disk, content: bytes) -> None:
    unfinished = f"{NAME}.tmp"
    file = await disk.open(unfinished, create=True)
    try:
        await file.truncate(0)
        await file.append_and_sync([content])
    finally:
        await file.aclose()
    await disk.rename(unfinished, NAME)
    await disk.sync_dir()
