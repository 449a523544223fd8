"""The files of a stopped bookie, for commands that read them.

Invariant: All directories are locked while a command works, so a running bookie is refused, and none can start. Nothing
           is created, cut off or put in order. The index is opened read-only, and the journal's records after the mark
           are replayed into memory only: a command shows what the bookie will know after its next start.
Failure:   Damage does not end a listing. It is noted, printed at the end, and makes the exit code 1.
Read next: inspect.py, repair.py
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from magnetar.bookie.directories import BookieDirectories, Directory, DirectoryLayout, open_directories
from magnetar.bookie.journals import Replay
from magnetar.cli.options import load_for_short_command
from magnetar.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, print_error
from magnetar.config.root import Config
from magnetar.errors import DiskError, FileLockedError, JournalDamagedError, MagnetarError
from magnetar.runtime.event_loop import run
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime
from magnetar.storage.entry_log.format import LOGS
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.journal.files import DIRECTORY as JOURNAL
from magnetar.storage.journal.format import JournalRecord, RecordKind, decode_explicit_lac, decode_fence
from magnetar.storage.journal.mark import JournalMark
from magnetar.storage.journal.replay import Deliver, replay_files
from magnetar.storage.ledger_storage import INDEX, LedgerStorage, open_rocksdb_index

_PROGRESS_SECONDS = 0.2

Dir: TypeAlias = Annotated[
    str | None, typer.Option("--dir", metavar="D", help="Directory of the bookie's data. Default: bookie.dir.")
]


@dataclass(frozen=True, slots=True)
class StoppedBookie:
    config: Config
    runtime: SystemRuntime
    directories: BookieDirectories
    problems: list[MagnetarError] = field(default_factory=list)
    """What makes the exit code 1."""

    @property
    def layout(self) -> DirectoryLayout:
        return self.directories.layout

    @property
    def index_path(self) -> str:
        return f"{self.layout.ledger[0]}/{INDEX}"

    @property
    def journals(self) -> list[Directory]:
        """Files are below `journal/` in each."""
        return [directory for directory in self.directories.all if directory.path in self.layout.journal]

    async def marks(self) -> JournalMark:
        disks = {directory.path: directory.disk for directory in self.directories.ledger}
        return await JournalMark.open(disks, self.layout.journal)

    async def mark(self) -> int:
        """The total over all journals."""
        return (await self.marks()).sequence

    async def replay(self, deliver: Deliver) -> None:
        """Delivers what is after the marks; damage is noted, and what comes before it was delivered."""
        marks = await self.marks()
        for journal in self.journals:
            await self.replay_one(journal, marks, deliver)

    async def replay_one(self, journal: Directory, marks: JournalMark, deliver: Deliver) -> JournalDamagedError | None:
        mark, is_begun = marks.positions[journal.path], journal.path in marks.begun
        try:
            await replay_files(journal.disk, JOURNAL, mark, deliver, is_begun=is_begun)
        except JournalDamagedError as error:
            self.problems.append(error)
            return error
        return None

    @asynccontextmanager
    async def ledger_dirs(self) -> AsyncIterator[LedgerDirs]:
        for root in self.layout.ledger:
            if not is_dir(root, LOGS):  # Opening would make it.
                raise DiskError(
                    f"{root} has no directory {LOGS}: it is not a ledger directory of a bookie that has run"
                )
        async with aclosing(await LedgerDirs.open(self.runtime, self.layout.ledger)) as dirs:
            yield dirs


def load_for_bookie(directory: str | None, config: Path | None, settings: list[str] | None) -> Config:
    return load_for_short_command(config, settings, {"bookie.dir": (directory, "--dir")})


def run_on_bookie(
    command: Callable[[StoppedBookie], Awaitable[None]],
    config: Config,
    *,
    if_running: str | None = "this command reads the files of a stopped bookie: stop it first",
) -> None:
    """Runs the command with the directories locked; `if_running` is what to do about one that runs.

    None: the bookie may run, and the directories are not locked.
    """
    layout = DirectoryLayout.from_config(config.bookie, base=str(Path.cwd()))
    missing = [path for path in layout.all if not is_dir(path)]
    if missing:
        raise DiskError(f"{', '.join(missing)}: no such directory; name the bookie's with --dir, --config or --set")

    async def main() -> int:
        runtime = SystemRuntime()
        try:
            directories = await open_directories(runtime, layout, create=False, lock=if_running is not None)
        except FileLockedError as error:
            raise FileLockedError(f"{error}; {if_running}") from None
        bookie = StoppedBookie(config, runtime, directories)
        try:
            await command(bookie)
        finally:
            await directories.aclose()
        for problem in bookie.problems:
            print_error(problem)
        return EXIT_FAILED if bookie.problems else 0

    code = run(main)
    if code != 0:
        raise typer.Exit(EXIT_INTERRUPTED if code is None else code)


@dataclass(slots=True)
class Ledgers:
    """Storage as it will be after the next start."""

    storage: LedgerStorage
    journaled: dict[int, set[int]]
    """What is only in the journal yet, or in the journal too: entries by ledger; none for a fence or a LAC alone."""


@asynccontextmanager
async def open_ledgers(bookie: StoppedBookie, *, in_memory: bool = True) -> AsyncIterator[Ledgers]:
    """If not `in_memory`, reads see only what is in index and logs: what the journal has too must not hide damage."""
    mark = await bookie.mark()
    async with (
        bookie.ledger_dirs() as dirs,
        aclosing(await open_index_read_only(bookie.runtime, bookie.index_path)) as index,
    ):
        config, entropy = bookie.config.storage, bookie.runtime.entropy
        storage = await LedgerStorage.open(dirs, index, entropy, config, submitted=lambda: mark, journal_mark=mark)
        async with aclosing(storage.logs):
            yield await _replayed(bookie, storage, in_memory)


async def _replayed(bookie: StoppedBookie, storage: LedgerStorage, in_memory: bool) -> Ledgers:
    replay = Replay(storage)
    journaled: dict[int, set[int]] = {}

    def deliver(record: JournalRecord) -> None:
        if in_memory:
            replay.deliver(record)
        match record.kind:
            case RecordKind.ADDS:
                adds = scan_frames(record.body, f"journal record {record.sequence}")
                for ledger_id, first, end in by_ledger(adds):
                    journaled.setdefault(ledger_id, set()).update(adds.entry_ids[first:end])
            case RecordKind.FENCE:
                journaled.setdefault(decode_fence(record.body).ledger_id, set())
            case RecordKind.EXPLICIT_LAC:
                journaled.setdefault(decode_explicit_lac(record.body).ledger_id, set())

    await bookie.replay(deliver)
    await replay.finish()
    return Ledgers(storage, journaled)


async def open_index_read_only(runtime: Runtime, path: str) -> LocationIndex:
    if not _is_rocksdb(path):
        raise DiskError(f"there is no location index at {path}; make it from the logs: magnetar bookie index rebuild")
    return await open_rocksdb_index(runtime, path, read_only=True)


def is_dir(*parts: str | Path) -> bool:
    return Path(*parts).is_dir()


def _is_rocksdb(path: str) -> bool:
    return Path(path, "CURRENT").is_file()


class Progress:
    """One line that changes, on a terminal only."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._next = time.monotonic() + _PROGRESS_SECONDS
        self._width = 0

    async def tick(self, text: str) -> None:
        """Lets a signal through, too."""
        await asyncio.sleep(0)
        if self._is_shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def clear(self) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
