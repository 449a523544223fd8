"""`magnetar bookie entrylog` and `ledger`: what a stopped bookie has, and whether all of it can be read.

`entrylog` shows the files as they are. `ledger` shows what the bookie will serve: index, flags and the journal's
records after the mark together. `ledger check` reads every entry in the same way as a client's read.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated

import typer

from magnetar.cli.bookie.offline import (
    Dir,
    Ledgers,
    Progress,
    StoppedBookie,
    load_for_bookie,
    open_ledgers,
    run_on_bookie,
)
from magnetar.cli.options import AsJson, ConfigFile, Settings
from magnetar.cli.output import Listing, note, print_line, print_table
from magnetar.errors import (
    ArgumentError,
    DiskError,
    FileMissingError,
    LedgerMissingError,
    LogDamagedError,
    StorageDamagedError,
    StorageError,
)
from magnetar.ids import LEDGER_ID_MAX
from magnetar.storage.entry_log.format import BLOCK_HEADER_BYTES, ENTRIES, Block, log_path
from magnetar.storage.entry_log.reader import Damage, EntryLogReader
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.ledger_flags import NO_FLAGS
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.words import counted

entrylog_app = typer.Typer(no_args_is_help=True, help="List and read the entry logs of a stopped bookie.")
ledger_app = typer.Typer(no_args_is_help=True, help="List and check the ledgers of a stopped bookie.")

_LEDGERS_SHOWN = 8  # In a table's cell.
_LOG_ENTRY = {"ledger": 12, "entry": 12, "offset": 11, "bytes": 9, "block_offset": 12}
_LEDGER = {
    "ledger": 12,
    "entries": 12,
    "last_entry": 12,
    "fenced": 6,
    "limbo": 5,
    "deleted_at_ms": 14,
    "in_journal": 10,
}
_BAD = {"ledger": 12, "first_entry": 12, "last_entry": 12, "what": 4}
_ENTRY_START = struct.Struct(">qq")
_TICK_ENTRIES = 1000

LedgerNumber = Annotated[
    int | None,
    typer.Argument(metavar="[LEDGER]", min=0, max=LEDGER_ID_MAX, help="Id of a ledger. Default: all ledgers."),
]


# --- entry logs -------------------------------------------------------------------------------------------------------


@entrylog_app.command("ls")
def list_logs(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """List the entry logs with their sizes and their ledgers. An unfinished log is scanned to its end."""

    async def command(bookie: StoppedBookie) -> None:
        async with bookie.ledger_dirs() as dirs:
            reader = EntryLogReader(dirs, bookie.config.storage.open_logs_max)
            try:
                rows = [await _log_row(bookie, reader, log_id, as_json) for log_id in dirs.log_ids()]
            finally:
                await reader.aclose()
            if not as_json:
                files = [f"{dirs.dir_of(log_id).root}/{log_path(log_id)}" for log_id in dirs.log_ids()]
                print_table(
                    ("log", "bytes", "ledgers", "file"),
                    [(*row, file) for row, file in zip(rows, files, strict=True)],
                )

    run_on_bookie(command, load_for_bookie(directory, config, settings))


async def _log_row(bookie: StoppedBookie, reader: EntryLogReader, log_id: int, as_json: bool) -> tuple[str, int, str]:
    name = _log_name(log_id)
    size = await reader.size(log_id)
    try:
        sizes = await reader.ledger_map(log_id)
    except (StorageDamagedError, DiskError) as error:
        bookie.problems.append(error)
        if as_json:
            print_line({"type": "log", "log": name, "bytes": size, "ledgers": None, "problem": str(error)})
        return name, size, "damaged"
    ledgers = [{"ledger": ledger_id, "bytes": sizes[ledger_id]} for ledger_id in sorted(sizes)]
    if as_json:
        print_line({"type": "log", "log": name, "bytes": size, "ledgers": ledgers, "problem": None})
    shown = ", ".join(str(ledger_id) for ledger_id in sorted(sizes)[:_LEDGERS_SHOWN])
    return name, size, shown if len(sizes) <= _LEDGERS_SHOWN else f"{shown} and {len(sizes) - _LEDGERS_SHOWN} more"


@entrylog_app.command("read")
def read_log(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="Name of an entry log from `entrylog ls`, such as 0000002a.")
    ],
    directory: Dir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List the entries in one entry log. If it is damaged, the output names the offsets and the exit code is 1."""
    log_id = _parse_log(log)

    async def command(bookie: StoppedBookie) -> None:
        async with bookie.ledger_dirs() as dirs:
            if log_id not in dirs.log_ids():
                raise FileMissingError(f"there is no entry log {_log_name(log_id)}; see: magnetar bookie entrylog ls")
            reader = EntryLogReader(dirs, bookie.config.storage.open_logs_max)
            try:
                await _read_log(bookie, reader, log_id, as_json)
            finally:
                await reader.aclose()

    run_on_bookie(command, load_for_bookie(directory, config, settings))


def _parse_log(text: str) -> int:
    stem = PurePath(text).name.removesuffix(".log")
    if not 0 < len(stem) <= 8 or stem.strip("0123456789abcdef"):
        raise ArgumentError(f"{text!r} is not an entry log: name it by its hexadecimal digits, such as 0000002a")
    return int(stem, 16)


def _log_name(log_id: int) -> str:
    return f"{log_id:08x}"


async def _read_log(bookie: StoppedBookie, reader: EntryLogReader, log_id: int, as_json: bool) -> None:
    listing = Listing("entry", _LOG_ENTRY, as_json)
    async for found in reader.scan(log_id):
        if isinstance(found, Damage):
            _tell_damage(bookie, found, as_json)
        elif found.kind == ENTRIES:
            _list_block(listing, found)


def _list_block(listing: Listing, block: Block) -> None:
    run = scan_frames(block.body, f"{log_path(block.place.log_id)} at {block.place.offset}")
    start = block.place.offset + BLOCK_HEADER_BYTES
    for ledger_id, first, end in by_ledger(run):
        for index in range(first, end):
            offset = start + run.offsets[index]
            listing.row((ledger_id, run.entry_ids[index], offset, run.lengths[index], block.place.offset))


def _tell_damage(bookie: StoppedBookie, damage: Damage, as_json: bool) -> None:
    where = f"{log_path(damage.log_id)}: no valid block from offset {damage.offset} to {damage.end}"
    if as_json:
        about = {"log": _log_name(damage.log_id), "offset": damage.offset, "end": damage.end}
        print_line({"type": "damage", **about, "is_torn_end": damage.is_tail})
    if damage.is_tail:
        note(
            f"{where}: the end of an unfinished log, as after a crash; run `ledger check` to be sure that "
            "nothing is lost"
        )
    else:
        bookie.problems.append(LogDamagedError(f"{where}; which entries are hit: magnetar bookie ledger check"))


# --- ledgers ----------------------------------------------------------------------------------------------------------


@ledger_app.command("ls")
def list_ledgers(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """List the ledgers of this bookie and the entries that it has, as they will be after its next start."""

    async def command(bookie: StoppedBookie) -> None:
        async with open_ledgers(bookie) as ledgers:
            listing = Listing("ledger", _LEDGER, as_json)
            for ledger_id in await _ledger_ids(ledgers):
                try:
                    listing.row(await _ledger_row(ledgers, ledger_id))
                except (StorageDamagedError, DiskError) as error:
                    bookie.problems.append(error)

    run_on_bookie(command, load_for_bookie(directory, config, settings))


async def _ledger_row(ledgers: Ledgers, ledger_id: int) -> tuple[object, ...]:
    storage = ledgers.storage
    flags = await storage.get_flags(ledger_id) or NO_FLAGS
    in_journal = ledgers.journaled.get(ledger_id, set())
    count = 0
    async for ids in _entry_ids(storage.index, ledger_id):
        count += len(ids) if not in_journal else sum(entry_id not in in_journal for entry_id in ids)
    last = await storage.last_entry(ledger_id)
    entries = count + len(in_journal)
    return ledger_id, entries, last, flags.fenced, flags.limbo, flags.deleted_at_ms, len(in_journal)


async def _ledger_ids(ledgers: Ledgers) -> list[int]:
    """Also those without an entry: fenced here, or a tombstone."""
    found = set(ledgers.journaled)
    first = 0
    while page := await ledgers.storage.index.ledgers(first):
        found.update(page)
        first = page[-1] + 1
    first = 0
    while flagged := await ledgers.storage.index.all_flags(first):
        found.update(ledger_id for ledger_id, _ in flagged)
        first = flagged[-1][0] + 1
    return sorted(found)


async def _entry_ids(index: LocationIndex, ledger_id: int) -> AsyncIterator[list[int]]:
    """Every id once and in order, a few at a time. An extent may begin among another's ids, but never below its own."""
    pending: set[int] = set()
    first = 0
    while extents := await index.extents(ledger_id, first):
        for extent in extents:
            begin = extent.ids[0]
            complete = sorted(entry_id for entry_id in pending if entry_id < begin)
            if complete:
                yield complete
                pending.difference_update(complete)
            pending.update(extent.ids)
        first = extents[-1].ids[0] + 1
    if pending:
        yield sorted(pending)


# --- ledger check -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Check:
    """Neighbours with the same fault are one row."""

    listing: Listing
    progress: Progress = field(default_factory=Progress)
    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    bad_entries: int = 0
    _run: tuple[int, int, int, str] | None = None

    def bad(self, ledger_id: int, entry_id: int, what: str) -> None:
        self.bad_entries += 1
        if self._run is not None:
            ledger, first, last, before = self._run
            if (ledger, last + 1, before) == (ledger_id, entry_id, what):
                self._run = (ledger, first, entry_id, what)
                return
        self.show()
        self._run = (ledger_id, entry_id, entry_id, what)

    def show(self) -> None:
        if self._run is not None:
            self.progress.clear()
            self.listing.row(self._run)
            self._run = None


@ledger_app.command("check")
def check_ledgers(
    ledger: LedgerNumber = None,
    directory: Dir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Read every entry through the index, and verify it. The exit code is 1 if an entry is missing or damaged."""

    async def command(bookie: StoppedBookie) -> None:
        async with open_ledgers(bookie, in_memory=False) as ledgers:
            check = Check(Listing("bad", _BAD, as_json))
            for ledger_id in await _wanted(ledgers, ledger):
                await _check_ledger(bookie, ledgers, ledger_id, check)
            check.show()
            check.progress.clear()
            _conclude(bookie, check, as_json)

    run_on_bookie(command, load_for_bookie(directory, config, settings))


async def _wanted(ledgers: Ledgers, ledger_id: int | None) -> list[int]:
    if ledger_id is None:
        return await _ledger_ids(ledgers)
    if ledger_id not in ledgers.journaled and not await ledgers.storage.has_ledger(ledger_id):
        raise LedgerMissingError(
            f"this bookie has nothing of ledger {ledger_id}; to list its ledgers: magnetar bookie ledger ls"
        )
    return [ledger_id]


async def _check_ledger(bookie: StoppedBookie, ledgers: Ledgers, ledger_id: int, check: Check) -> None:
    in_journal = set(ledgers.journaled.get(ledger_id, ()))  # Verified when the journal was read.
    try:
        await ledgers.storage.get_flags(ledger_id)
        async for ids in _entry_ids(ledgers.storage.index, ledger_id):
            in_journal.difference_update(ids)
            for entry_id in ids:
                await _check_entry(ledgers.storage, ledger_id, entry_id, check)
    except (
        StorageDamagedError,
        DiskError,
    ) as error:  # The index is damaged: what else it had of this ledger is unknown.
        bookie.problems.append(error)
    check.ledgers += 1
    check.entries += len(in_journal)


async def _check_entry(storage: LedgerStorage, ledger_id: int, entry_id: int, check: Check) -> None:
    check.entries += 1
    if check.entries % _TICK_ENTRIES == 0:
        await check.progress.tick(
            f"ledger {ledger_id}: {counted(check.entries, 'entry', 'entries')}, {check.bytes >> 20} MiB checked"
        )
    try:
        entry = await storage.get_entry(ledger_id, entry_id)
    except (StorageError, DiskError) as error:
        check.bad(ledger_id, entry_id, str(error))
        return
    check.bytes += len(entry)
    found = _ENTRY_START.unpack_from(entry)
    if found != (ledger_id, entry_id):
        check.bad(ledger_id, entry_id, f"entry {found[1]} of ledger {found[0]} stands in its place")


def _conclude(bookie: StoppedBookie, check: Check, as_json: bool) -> None:
    if check.bad_entries:
        bookie.problems.append(
            StorageDamagedError(
                f"{check.bad_entries} of {check.entries} entries cannot be read here; readers find them on other "
                "bookies, if those have them. If the index is at fault and not a log: magnetar bookie index rebuild"
            )
        )
    about = {"ledgers": check.ledgers, "entries": check.entries, "bytes": check.bytes, "bad_entries": check.bad_entries}
    if as_json:
        print_line({"type": "check", **about, "problems": [str(problem) for problem in bookie.problems]})
    else:
        print(
            f"{counted(check.ledgers, 'ledger')}, {counted(check.entries, 'entry', 'entries')} checked, "
            f"{check.bad_entries} of them bad"
        )
