"""`magnetar bookie entrylog`, `ledger` and `journal`: what a stopped bookie has, and whether all of it can be read.

`entrylog` shows the files as they are. `ledger` shows what the bookie will serve: index, flags and the journal's
records after the mark together. `ledger check` reads every entry in the same way as a client's read. `journal read`
lists every group and record. Its verdict is replay's own (storage/journal/replay.py), made first and for the mark in
force: the next start will report the same. The listing has every intact group of every file up to the damage, records
at or below the mark included.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Any, NamedTuple

import typer

from magnetar.bookie.directories import Directory
from magnetar.cli.bookie.offline import (
    Dir,
    Ledgers,
    Progress,
    StoppedBookie,
    load_for_bookie,
    open_ledgers,
    run_on_bookie,
)
from magnetar.cli.options import ConfigFile, Settings
from magnetar.cli.output import AsJson, Listing, note, print_line, print_table
from magnetar.errors import (
    ArgumentError,
    DiskError,
    FileMissingError,
    JournalDamagedError,
    LedgerMissingError,
    LogDamagedError,
    MagnetarError,
    MarkDamagedError,
    StorageDamagedError,
    StorageError,
)
from magnetar.ids import LEDGER_ID_MAX
from magnetar.storage.entry_log.format import BLOCK_HEADER_BYTES, ENTRIES, Block, log_path
from magnetar.storage.entry_log.reader import Damage, EntryLogReader
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.journal.files import DIRECTORY
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    FileHeader,
    GroupHeader,
    JournalRecord,
    RecordKind,
    decode_explicit_lac,
    decode_fence,
    decode_file_header,
    decode_group_header,
    decode_records,
    file_number,
    is_intact,
)
from magnetar.storage.journal.mark import JournalMark
from magnetar.storage.journal.replay import Window
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
            async with aclosing(EntryLogReader(dirs, bookie.config.storage.open_logs_max)) as reader:
                rows = [await _log_row(bookie, reader, log_id, as_json) for log_id in dirs.log_ids()]
            if not as_json:
                files = [f"{dirs.dir_of(log_id).root}/{log_path(log_id)}" for log_id in dirs.log_ids()]
                print_table(
                    ("log", "bytes", "ledgers", "file"), [(*row, file) for row, file in zip(rows, files, strict=True)]
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
            async with aclosing(EntryLogReader(dirs, bookie.config.storage.open_logs_max)) as reader:
                await _read_log(bookie, reader, log_id, as_json)

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
    except (StorageDamagedError, DiskError) as error:
        # The index is damaged: what else it had of this ledger is unknown.
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


# --- journal ---------------------------------------------------------------------------------------------------------

journal_app = typer.Typer(no_args_is_help=True, help="Read the journal of a stopped bookie.")

_RECORD = {
    "file": 24,
    "group_offset": 12,
    "sequence": 9,
    "kind": 12,
    "ledger": 12,
    "first_entry": 11,
    "last_entry": 11,
    "entries": 7,
    "bytes": 9,
}
_ENTRY = {"file": 24, "group_offset": 12, "sequence": 9, "ledger": 12, "entry": 12, "lac": 12, "bytes": 9}


class Group(NamedTuple):
    offset: int
    header: GroupHeader
    records: list[JournalRecord]


@dataclass(slots=True)
class FileSummary:
    file: str
    bytes: int
    groups: int = 0
    records: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    end: int = FILE_HEADER_BYTES
    """The end of the last group that was read."""
    state: str = "open"

    def take(self, group: Group) -> None:
        self.groups += 1
        self.records += group.header.records
        self.end = group.offset + group.header.size
        self.state = "open" if group.header.records else "closed"
        if group.header.records:
            self.last_sequence = group.header.first_sequence + group.header.records - 1
            if self.first_sequence is None:
                self.first_sequence = group.header.first_sequence


@dataclass(slots=True)
class Output:
    as_json: bool
    with_entries: bool
    records: Listing = field(init=False)
    entries: Listing = field(init=False)

    def __post_init__(self) -> None:
        self.records = Listing("record", _RECORD, self.as_json)
        self.entries = Listing("entry", _ENTRY, self.as_json)

    def group(self, file: str, group: Group) -> None:
        header = group.header
        if self.as_json:
            about = {"offset": group.offset, "bytes": header.size, "records": header.records}
            print_line({"type": "group", "file": file, **about, "first_sequence": header.first_sequence})
        for record in group.records:
            self._record(file, group.offset, record)

    def _record(self, file: str, offset: int, record: JournalRecord) -> None:
        kind = record.kind.name.lower()
        match record.kind:
            case RecordKind.ADDS:
                self._adds(file, offset, record)
            case RecordKind.FENCE | RecordKind.EXPLICIT_LAC:
                decode = decode_fence if record.kind is RecordKind.FENCE else decode_explicit_lac
                ledger_id = decode(record.body).ledger_id
                self.records.row((file, offset, record.sequence, kind, ledger_id, None, None, 0, len(record.body)))

    def _adds(self, file: str, offset: int, record: JournalRecord) -> None:
        """One record has the adds that came together: a row for each ledger in it."""
        run = scan_frames(record.body, f"{file}: record {record.sequence}")
        for ledger_id, first, end in by_ledger(run):
            ids, lengths = run.entry_ids[first:end], run.lengths[first:end]
            if not self.with_entries:
                about = (min(ids), max(ids), len(ids), sum(lengths))
                self.records.row((file, offset, record.sequence, "adds", ledger_id, *about))
                continue
            for entry_id, lac, length in zip(ids, run.lacs[first:end], lengths, strict=True):
                self.entries.row((file, offset, record.sequence, ledger_id, entry_id, lac, length))


@journal_app.command("read")
def read_journal(
    entries: Annotated[
        bool, typer.Option("--entries", help="Print one row for each entry. Default: one row for each record.")
    ] = False,
    directory: Dir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List the contents of the journal: its files, its mark and the records of each group. If it is damaged, the
    output says where and the exit code is 1.
    """

    async def command(bookie: StoppedBookie) -> None:
        await _read_journals(bookie, Output(as_json, entries))

    run_on_bookie(command, load_for_bookie(directory, config, settings))


async def _read_journals(bookie: StoppedBookie, output: Output) -> None:
    marks = await _marks(bookie)
    for journal in bookie.journals:
        await _read_journal(bookie, journal, marks, output)
    if output.as_json:
        for error in bookie.problems:
            print_line({"type": "problem", **_place(error), "message": str(error)})


async def _read_journal(bookie: StoppedBookie, journal: Directory, marks: JournalMark | None, output: Output) -> None:
    behind = 0

    def count(_: JournalRecord) -> None:
        nonlocal behind
        behind += 1

    mark = None if marks is None else marks.positions[journal.path]
    damage = None if marks is None else await bookie.replay_one(journal, marks, count)
    summaries: list[FileSummary] = []
    for name in _names(journal):
        if damage is not None and damage.path == f"{DIRECTORY}/{name}" and damage.offset == 0:
            break  # Nothing of this file can be trusted, or what should stand before it is missing.
        try:
            summaries.append(await _read_file(bookie, journal, name, damage, output))
        except JournalDamagedError:
            break  # The file is after the damage: it is in the verdict, or does not count.
        if summaries[-1].state == "damaged":
            break
    _conclude_journal(journal, output, mark, behind, summaries, damage)


async def _marks(bookie: StoppedBookie) -> JournalMark | None:
    """Returns None if it is damaged: what is missing is unknown then, but the rest can be shown."""
    try:
        return await bookie.marks()
    except MarkDamagedError as error:
        bookie.problems.append(error)
        return None


def _names(journal: Directory) -> list[str]:
    directory = Path(journal.path, DIRECTORY)
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if file_number(path.name) is not None)


async def _read_file(
    bookie: StoppedBookie, journal: Directory, name: str, damage: JournalDamagedError | None, output: Output
) -> FileSummary:
    path = f"{DIRECTORY}/{name}"
    damaged_at = damage.offset if damage is not None and damage.path == path else None
    file = await journal.disk.open(path)
    try:
        window = Window(file)
        summary = FileSummary(name, file.size)
        header = decode_file_header(await window.at(0, FILE_HEADER_BYTES), path)
        if header is None:  # A crash while it was prepared; anything worse is in the verdict.
            summary.state, summary.end = "unused", 0
            return summary
        async for group in _groups(window, header):
            if damaged_at is not None and group.offset >= damaged_at:
                break
            _take(bookie, name, group, summary, output)
        if damaged_at is not None:
            summary.state = "damaged"
        elif not await window.is_zero_from(summary.end):
            summary.state = "torn"
        elif not summary.groups:
            summary.state = "unused"
        return summary
    finally:
        await file.aclose()


def _take(bookie: StoppedBookie, name: str, group: Group, summary: FileSummary, output: Output) -> None:
    summary.take(group)
    try:
        output.group(name, group)
    except (StorageDamagedError, ValueError) as error:  # The checksum is right, so we wrote nonsense.
        bookie.problems.append(JournalDamagedError(f"{DIRECTORY}/{name}", group.offset, str(error)))


async def _groups(window: Window, header: FileHeader) -> AsyncIterator[Group]:
    """Up to the first place where no intact group begins."""
    offset = FILE_HEADER_BYTES
    while True:
        found = decode_group_header(await window.at(offset, GROUP_HEADER_BYTES))
        if found is None or found.file_id != header.file_id or offset + found.size > window.size:
            return
        data = await window.at(offset, found.size)
        if not is_intact(found, data):
            return
        try:
            records = decode_records(found, data)
        except ValueError:  # In the verdict, if it matters.
            return
        yield Group(offset, found, records)
        offset += found.size


def _place(error: MagnetarError) -> dict[str, Any]:
    if isinstance(error, JournalDamagedError):
        return {"file": error.path.rpartition("/")[2], "offset": error.offset}
    return {"file": None, "offset": None}


def _conclude_journal(
    journal: Directory,
    output: Output,
    mark: int | None,
    behind: int,
    summaries: list[FileSummary],
    damage: JournalDamagedError | None,
) -> None:
    directory = f"{journal.path}/{DIRECTORY}"
    replayed = None if mark is None else behind
    about = {"mark": mark, "records_behind_mark": replayed, "damaged": damage is not None}
    if output.as_json:
        for summary in summaries:
            print_line({"type": "file", **asdict(summary)})
        print_line({"type": "journal", "directory": directory, **about})
    else:
        if output.records.rows or output.entries.rows:
            print()
        columns = ("file", "bytes", "groups", "records", "first", "last", "end", "state")
        print_table(columns, [["-" if v is None else v for v in asdict(s).values()] for s in summaries])
        print(f"\ndirectory: {directory}")
        if mark is not None:
            print(f"mark: {mark}; records after it, which the next start replays: {behind}")
    for summary in summaries:
        if summary.state == "torn":
            torn = summary.bytes - summary.end
            note(f"{summary.file} ends with {torn} bytes of an incomplete write; the next start removes them")
