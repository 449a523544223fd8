"""A file system for SQLite that remembers every write and sync, so that a power loss can be replayed at any point.

What is durable at a crash: for each file, everything before its last sync, and of the writes after it any subset, the
last of them possibly torn at a sector. That is less than most disks promise.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import apsw

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Write:
    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """Taken as durable at once: SQLite syncs the directory with the first sync of the log it makes next."""

    file: str


@dataclass(frozen=True, slots=True)
class Synced:
    file: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Not the disk's: the caller was told that this number is stored."""

    number: int


Step = Write | Truncate | Deleted | Synced | Acknowledged


class Recorder(apsw.VFS):
    """Passes everything on to the system's files and keeps the list of steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.name = f"recorder-{id(self):x}"
        super().__init__(self.name, "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _RecordedFile(self.steps, name, flags)

    def xDelete(self, name: str, sync_directory: bool) -> None:  # noqa: N802
        super().xDelete(name, sync_directory)
        self.steps.append(Deleted(Path(name).name))


class _RecordedFile(apsw.VFSFile):
    def __init__(self, steps: list[Step], name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        full_name = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._steps = steps
        self._name = Path(full_name).name if full_name else ""

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._steps.append(Write(self._name, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._steps.append(Truncate(self._name, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._steps.append(Synced(self._name))


@dataclass(slots=True)
class _Image:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)

    def sync(self) -> None:
        for step in self.pending:
            _apply(self.durable, step)
        self.pending.clear()


def _apply(content: bytearray, step: Write | Truncate) -> None:
    if isinstance(step, Truncate):
        del content[step.size :]
        return
    if len(content) < step.offset:
        content.extend(bytes(step.offset - len(content)))
    content[step.offset : step.offset + len(step.data)] = step.data


def lose_power(steps: list[Step], after: int, directory: Path, choices: random.Random) -> int:
    """Writes what is left after so many steps into the directory; returns the last number acknowledged by then."""
    images: dict[str, _Image] = {}
    acknowledged = 0
    for step in steps[:after]:
        match step:
            case Acknowledged(number):
                acknowledged = number
            case Deleted(file):
                images.pop(file, None)
            case Synced(file):
                images.setdefault(file, _Image()).sync()
            case Write(file) | Truncate(file):
                images.setdefault(file, _Image()).pending.append(step)
    for name, image in images.items():
        _survive(image, choices)
        (directory / name).write_bytes(image.durable)
    return acknowledged


def _survive(image: _Image, choices: random.Random) -> None:
    """Any subset of the unsynced writes reached the disk, in any way."""
    keep = choices.choice((0.0, 0.5, 1.0))
    for step in image.pending:
        if choices.random() >= keep:
            continue
        if isinstance(step, Write) and choices.random() < 0.3:
            torn = choices.randrange(0, len(step.data) + 1, SECTOR)
            step = Write(step.file, step.offset, step.data[:torn])
        _apply(image.durable, step)
