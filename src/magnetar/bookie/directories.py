"""The directories of a bookie: held by one process at a time, each with a few small files about the bookie itself.

Format:    `dir` D: D/journal and D/ledgers (entry logs and index); or directories named one by one, on as many devices.
           lock           held while the process lives (in every directory)
           VERSION        the cookie (in every directory; Apache's name and format)
           port           the port in use (in the first ledger directory)
           BOOKIE_STATUS  read-only by an operator (in the ledger directories; Apache's name and format)
           REPAIRING      something is lost, and the bookie must not start before limbo.py is done: in a directory that
                          is being repaired; in the first ledger directory, after a rebuild of the index that could not
                          find all ledgers
Invariant: a small file has its old or its new content: it is written aside, synced, renamed, and its name synced.
Read next: identity.py
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Final, Self

from magnetar.config.bookie import BookieConfig
from magnetar.errors import ConfigError, DiskError, FileMissingError
from magnetar.runtime.disk import Disk
from magnetar.runtime.runtime import Runtime

LOCK_FILE: Final = "lock"
COOKIE_FILE: Final = "VERSION"
PORT_FILE: Final = "port"
STATUS_FILE: Final = "BOOKIE_STATUS"
REPAIR_FILE: Final = "REPAIRING"
_ASIDE: Final = ".tmp"
_SMALL_FILE_BYTES_MAX: Final = 2**18 + 1  # A cookie has at most 2**18; one more shows that a file is too long.

_ABOUT_THE_BOOKIE: Final = (COOKIE_FILE, PORT_FILE, STATUS_FILE, REPAIR_FILE)
NOT_DATA: Final = frozenset(
    {LOCK_FILE, "lost+found", *_ABOUT_THE_BOOKIE, *(f"{name}{_ASIDE}" for name in _ABOUT_THE_BOOKIE)}
)
"""Names that an unused directory may have: ours, and those of a fresh file system."""


@dataclass(frozen=True, slots=True)
class DirectoryLayout:
    """The directories: absolute paths, all different, none below another."""

    journal: tuple[str, ...]
    ledger: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (self.journal and self.ledger):
            raise ConfigError("a bookie needs at least one directory each for its journal and its ledgers")
        for path in self.all:
            if not path.startswith("/") or path != posixpath.normpath(path):
                raise ConfigError(f"the directory {path!r} of a bookie is not an absolute, normalised path")
            if "," in path or "\t" in path or not path.isprintable():
                raise ConfigError(f"the directory {path!r} of a bookie has a character that its cookie cannot hold")
        for before, after in zip(ordered := sorted(f"{path}/" for path in self.all), ordered[1:], strict=False):
            if after.startswith(before):
                what = "is named twice" if after == before else f"is inside {before.rstrip('/')}"
                raise ConfigError(f"the directory {after.rstrip('/')} {what}: a bookie's directories must be apart")

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.journal, *self.ledger)

    @classmethod
    def from_config(cls, config: BookieConfig, *, base: str) -> Self:
        """`base` is the directory to which relative paths are relative: the working directory."""

        def paths(named: str, below: str) -> tuple[str, ...]:
            names = [name.strip() for name in named.split(",")] if named else [posixpath.join(config.dir, below)]
            return tuple(posixpath.normpath(posixpath.join(base, name)) for name in names)

        return cls(paths(config.journal_dirs, "journal"), paths(config.ledger_dirs, "ledgers"))


@dataclass(frozen=True, slots=True)
class Directory:
    """One directory and the disk that holds its lock."""

    path: str
    disk: Disk

    async def read(self, name: str) -> bytes | None:
        """Returns a small file, or None."""
        try:
            file = await self.disk.open(name)
        except FileMissingError:
            return None
        try:
            return await file.read(0, _SMALL_FILE_BYTES_MAX)
        finally:
            await file.aclose()

    async def write(self, name: str, content: bytes) -> None:
        """Returns when the small file is durable; after a crash it is the old or the new one, whole."""
        aside = f"{name}{_ASIDE}"
        file = await self.disk.open(aside, create=True)
        try:
            await file.truncate(0)  # A crash may have left something.
            await file.append_and_sync([content])
        finally:
            await file.aclose()
        await self.disk.rename(aside, name)
        await self.disk.sync_dir()

    async def remove(self, name: str) -> None:
        """Returns when the file is removed durably; no error if it did not exist."""
        try:
            await self.disk.remove(name)
        except FileMissingError:
            return
        await self.disk.sync_dir()

    async def data_names(self) -> list[str]:
        """Returns all names besides those that an unused directory may have."""
        return [name for name in await self.disk.list() if name not in NOT_DATA]


class BookieDirectories:
    """All directories of a bookie, locked. Made by `open_directories`; ended by `aclose`."""

    def __init__(self, layout: DirectoryLayout) -> None:
        self.layout = layout
        self.all: list[Directory] = []

    @property
    def first_ledger(self) -> Directory:
        return self.ledger[0]

    @property
    def ledger(self) -> list[Directory]:
        return [directory for directory in self.all if directory.path in self.layout.ledger]

    async def aclose(self) -> None:
        """Releases the locks."""
        while self.all:
            await self.all[-1].disk.aclose()
            self.all.pop()


async def open_directories(
    runtime: Runtime, layout: DirectoryLayout, *, create: bool = True, lock: bool = True
) -> BookieDirectories:
    """Locks everything; FileLockedError names the process that has one of them.

    Missing directories are made, or left out if not `create`. Without `lock`: to read those of a running bookie.
    """
    opened = BookieDirectories(layout)
    try:
        for path in layout.all:
            disk = runtime.disk(path, name=f"bookie-dir-{len(opened.all)}")
            opened.all.append(Directory(path, disk))
            if create:
                await disk.make_dir("")
            elif not await _exists(disk):
                opened.all.pop()
                await disk.aclose()
                continue
            if lock:
                await disk.lock(LOCK_FILE)
    except BaseException:
        await opened.aclose()
        raise
    return opened


async def _exists(disk: Disk) -> bool:
    try:
        await disk.list()
    except FileMissingError:
        return False
    return True


async def kept_port(directories: BookieDirectories) -> int | None:
    """Returns the port of the last start, if any."""
    directory = directories.first_ledger
    content = await directory.read(PORT_FILE)
    if content is None:
        return None
    text = content.strip()
    if not (text.isdigit() and len(text) <= 5 and 0 < int(text) < 2**16):
        raise DiskError(
            f"{posixpath.join(directory.path, PORT_FILE)} does not hold a port but {content[:20]!r}: "
            "write the port of this bookie there (its id usually ends with it), or start it with that --port"
        )
    return int(text)


async def keep_port(directories: BookieDirectories, port: int) -> None:
    content = b"%d\n" % port
    if await directories.first_ledger.read(PORT_FILE) != content:
        await directories.first_ledger.write(PORT_FILE, content)
