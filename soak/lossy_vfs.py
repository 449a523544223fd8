"""A file system for SQLite that remembers every write and sync, so that a power loss can be replayed at any point.

Durable:   at a crash, each file has everything before its last sync, and of the writes after it any subset, each of
           them possibly torn at a sector. That is less than most disks promise.
Faults:    while it is armed, an operation fails at random with the code that SQLite's own file system has for it. A
           failed write may have been done in part. A failed sync has made nothing durable.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

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


class Faults:
    """Decides which operations of the file system fail. It injects nothing until `rate` is set."""

    def __init__(self, choices: random.Random) -> None:
        self.rate = 0.0
        """Of operations that fail."""
        self.injected: Counter[str] = Counter()
        self._choices = choices

    def strike(self, *names: str) -> None:
        """Raises one of these SQLite errors, or returns."""
        if self._choices.random() < self.rate:
            self.fail(*names)

    def fail(self, *names: str) -> NoReturn:
        name = self._choices.choice(names)
        self.injected[name] += 1
        raise apsw.exception_for(int(getattr(apsw, name)))

    def strike_write(self, data: bytes) -> bytes | None:
        """Returns what a failing write leaves on the disk; None: it does not fail."""
        if self._choices.random() >= self.rate:
            return None
        return bytes(data[: self._choices.randrange(len(data))]) if self._choices.random() < 0.5 else b""


class Recorder(apsw.VFS):
    """Passes everything on to the system's files and keeps the list of steps."""

    def __init__(self, faults: Faults | None = None, steps: list[Step] | None = None) -> None:
        """`steps`: what became of the files before; None: there are none."""
        self.steps: list[Step] = steps or []
        self.faults = faults or Faults(random.Random(0))
        self.name = f"recorder-{id(self):x}"
        super().__init__(self.name, "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        self.faults.strike("SQLITE_CANTOPEN")
        return _RecordedFile(self.steps, self.faults, name, flags)

    def xDelete(self, name: str, sync_directory: bool) -> None:  # noqa: N802
        self.faults.strike("SQLITE_IOERR_DELETE")
        super().xDelete(name, sync_directory)
        self.steps.append(Deleted(Path(name).name))


class _RecordedFile(apsw.VFSFile):
    def __init__(
        self, steps: list[Step], faults: Faults, name: apsw.URIFilename | str | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        full_name = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._steps = steps
        self._faults = faults
        self._name = Path(full_name).name if full_name else ""

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._faults.strike("SQLITE_IOERR_READ")
        return bytes(super().xRead(amount, offset))

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        left = self._faults.strike_write(data)
        done = bytes(data) if left is None else left
        if done:
            super().xWrite(done, offset)
            self._steps.append(Write(self._name, offset, done))
        if left is not None:
            self._faults.fail("SQLITE_IOERR_WRITE", "SQLITE_FULL", "SQLITE_FULL")  # After the first, the store stops.

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._faults.strike("SQLITE_IOERR_TRUNCATE")
        super().xTruncate(size)
        self._steps.append(Truncate(self._name, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._faults.strike("SQLITE_IOERR_FSYNC")
        super().xSync(flags)
        self._steps.append(Synced(self._name))


class LossyConnection:
    """A connection on a recorder, with the errors and the silent close that the standard library's has.

    SQLite says nothing about a checkpoint after a commit that fails: the commit is done all the same. apsw would raise
    what the file system raised then. So checkpoints are begun here, and their errors end here.
    """

    def __init__(self, path: str, recorder: Recorder, *, checkpoint_pages: int) -> None:
        self._checkpoint_pages = checkpoint_pages
        self._log_pages = 0
        try:
            self._connection = apsw.Connection(path, vfs=recorder.name)
        except apsw.Error as error:
            raise _as_sqlite3(error) from error
        self._connection.set_wal_hook(self._on_commit)

    def execute(self, sql: str, arguments: tuple[object, ...] = ()) -> LossyCursor:
        try:
            found = LossyCursor(self._connection.execute(sql, arguments))
        except apsw.Error as error:
            raise _as_sqlite3(error) from error
        if sql == "COMMIT" and self._log_pages >= self._checkpoint_pages:
            with contextlib.suppress(apsw.Error):
                self._connection.wal_checkpoint()
        return found

    def _on_commit(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._log_pages = pages
        return int(apsw.SQLITE_OK)

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    def close(self) -> None:
        try:
            self._connection.close()
        except apsw.Error:  # sqlite3.Connection.close() has nothing to say about a failed checkpoint either.
            self._connection.close(True)


class LossyCursor:
    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor

    def fetchone(self) -> Any:
        try:
            return self._cursor.fetchone()
        except apsw.Error as error:
            raise _as_sqlite3(error) from error

    def fetchall(self) -> list[Any]:
        try:
            return list(self._cursor.fetchall())
        except apsw.Error as error:
            raise _as_sqlite3(error) from error


def _as_sqlite3(error: apsw.Error) -> sqlite3.Error:
    code = int(getattr(error, "extendedresult", 0)) or int(getattr(error, "result", 0))
    is_damage = code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    translated = (sqlite3.DatabaseError if is_damage else sqlite3.OperationalError)(
        str(error) or f"disk I/O error {code}"
    )
    translated.sqlite_errorcode = code
    return translated


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


def durable(directory: Path) -> list[Step]:
    """Steps after which exactly these files are on the disk."""
    files = sorted(directory.iterdir())
    return [step for path in files for step in (Write(path.name, 0, path.read_bytes()), Synced(path.name))]


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
