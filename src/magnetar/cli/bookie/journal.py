"""`magnetar bookie journal read`: every group and record in a stopped bookie's journal, and whether it is whole.

The verdict is replay's own (storage/journal/replay.py), made first and for the mark in force: the next start will
report the same. The listing has every intact group of every file up to the damage, records at or below the mark
included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from magnetar.bookie.directories import Directory
from magnetar.cli.bookie.offline import Dir, StoppedBookie, load_for_bookie, run_on_bookie
from magnetar.cli.options import AsJson, ConfigFile, Settings
from magnetar.cli.output import Listing, note, print_line, print_table
from magnetar.errors import JournalDamagedError, MagnetarError, MarkDamagedError, StorageDamagedError
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.journal.chunked_file import Window
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
    size: int
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

    def fields(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "bytes": self.size,
            "groups": self.groups,
            "records": self.records,
            "first_sequence": self.first_sequence,
            "last_sequence": self.last_sequence,
            "end": self.end,
            "state": self.state,
        }


@dataclass(slots=True)
class Output:
    """Where the rows go."""

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
            case RecordKind.FENCE:
                ledger_id = decode_fence(record.body).ledger_id
                self.records.row((file, offset, record.sequence, kind, ledger_id, None, None, 0, len(record.body)))
            case RecordKind.EXPLICIT_LAC:
                ledger_id = decode_explicit_lac(record.body).ledger_id
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
        await _read(bookie, Output(as_json, entries))

    run_on_bookie(command, load_for_bookie(directory, config, settings))


async def _read(bookie: StoppedBookie, output: Output) -> None:
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
    _conclude(journal, output, mark, behind, summaries, damage)


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


def _conclude(
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
            print_line({"type": "file", **summary.fields()})
        print_line({"type": "journal", "directory": directory, **about})
    else:
        if output.records.rows or output.entries.rows:
            print()
        columns = ("file", "bytes", "groups", "records", "first", "last", "end", "state")
        print_table(columns, [["-" if v is None else v for v in s.fields().values()] for s in summaries])
        print(f"\ndirectory: {directory}")
        if mark is not None:
            print(f"mark: {mark}; records after it, which the next start replays: {behind}")
    for summary in summaries:
        if summary.state == "torn":
            torn = summary.size - summary.end
            note(f"{summary.file} ends with {torn} bytes of an incomplete write; the next start removes them")
