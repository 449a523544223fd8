"""`magnetar bookie index rebuild` and `readonly`: what an operator changes in a bookie's files.

Rebuild:   the new index is made beside the old one, complete and closed, before it takes its name. Killed at any line,
           the bookie still has its old index, or none: then it refuses to start, and the next rebuild goes on with the
           flags of the old one, which was set aside.
Flags:     only an index that has all the journal was told of can be trusted with flags: fences are for ever. One that
           is behind is treated as lost, and what it had is kept aside. Then ledgers may be unknown here for which
           this bookie made promises: it is marked as one that waits for a repair, and does not start without.
Read-only: the bookie only ever reads the status file, so it may run; it looks at it from time to time.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import typer

from magnetar.bookie.directories import REPAIR_FILE
from magnetar.bookie.read_only import read_operator_status, write_operator_status
from magnetar.cli.options import AsJson, ConfigFile, Force, Settings, confirm
from magnetar.cli.output import note, print_json, print_table
from magnetar.cli.stopped_bookie import (
    Dir,
    Progress,
    StoppedBookie,
    is_dir,
    load_for_bookie,
    open_index_read_only,
    run_on_bookie,
)
from magnetar.errors import DiskError, IndexDamagedError, LogDamagedError
from magnetar.storage.entry_log_format import Block, log_path
from magnetar.storage.entry_log_reader import Damage, EntryLogReader
from magnetar.storage.ledger_dirs import LedgerDirs
from magnetar.storage.location_index import LocationIndex
from magnetar.storage.open_storage import open_rocksdb_index
from magnetar.storage.rebuild import RebuildReport, rebuild_index

index_app = typer.Typer(no_args_is_help=True, help="Look after the location index of a stopped bookie.")
readonly_app = typer.Typer(no_args_is_help=True, help="Let a bookie take no entries, running or not.")

_NEW = ".new"
_OLD = ".old"
_KEPT = ".damaged"


# --- index rebuild ----------------------------------------------------------------------------------------------------


@index_app.command("rebuild")
def rebuild(
    directory: Dir = None,
    force: Force = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make the index anew from the entry logs. Flags, which no log has, are taken over from the old one."""
    effective = load_for_bookie(directory, config, settings)
    confirm("Rebuild the location index from the entry logs, and remove the old one?", force)

    async def command(bookie: StoppedBookie) -> None:
        _print(await rebuild_index_of(bookie), as_json)

    run_on_bookie(command, effective, if_running="only a stopped bookie's index can be rebuilt: stop it first")


async def rebuild_index_of(bookie: StoppedBookie) -> dict[str, Any]:
    current = Path(bookie.index_path)
    new, aside = current.with_name(current.name + _NEW), current.with_name(current.name + _OLD)
    mark = await bookie.mark()
    async with bookie.ledger_dirs() as dirs:
        _remove(new)
        source = await _source(bookie, current, aside)
        old = await _trusted(bookie, source, mark)
        try:
            report = await _make(bookie, dirs, new, old, mark)
        finally:
            if old is not None:
                await old.aclose()
    if report.may_miss_ledgers:  # Before the new index can be started with.
        await bookie.directories.first_ledger.write(REPAIR_FILE, b"")
    kept = await _swap(bookie, current, new, aside, source, keep=report.may_miss_ledgers)
    _note_problems(bookie, report, kept)
    return {
        "index": str(current),
        "logs": report.logs,
        "entries": report.entries,
        "mark": mark,
        "flags_lost": report.flags_lost,
        "may_miss_entries": report.may_miss_entries,
    }


async def _source(bookie: StoppedBookie, current: Path, aside: Path) -> Path:
    """Which index has the flags: after a rebuild that was killed between its renames, the one set aside."""
    if not is_dir(aside):
        return current
    return current if await _has_mark(bookie, current) else aside


async def _trusted(bookie: StoppedBookie, path: Path, mark: int) -> LocationIndex | None:
    """None: it cannot be opened, or lost what it had synced."""
    try:
        index = await open_index_read_only(bookie.runtime, str(path))
    except (DiskError, IndexDamagedError):
        return None
    try:
        if (await index.mark() or 0) >= mark:  # None: nothing was ever flushed, so nothing can be missing at mark 0.
            return index
    except (DiskError, IndexDamagedError):
        pass
    await index.aclose()
    return None


async def _has_mark(bookie: StoppedBookie, path: Path) -> bool:
    index = await _trusted(bookie, path, 0)
    if index is None:
        return False
    try:
        return await index.mark() is not None
    finally:
        await index.aclose()


async def _make(
    bookie: StoppedBookie, dirs: LedgerDirs, new: Path, old: LocationIndex | None, mark: int
) -> RebuildReport:
    logs = _WatchedLogs(dirs, bookie.config.storage.open_logs_max)
    index = await open_rocksdb_index(bookie.runtime, str(new))
    try:
        return await rebuild_index(dirs, logs, index, old=old, mark=mark)
    finally:
        logs.progress.clear()
        await index.aclose()
        await logs.aclose()


class _WatchedLogs(EntryLogReader):
    """Tells a person how far it has come."""

    def __init__(self, dirs: LedgerDirs, open_logs_max: int) -> None:
        super().__init__(dirs, open_logs_max)
        self.progress = Progress()
        self._scanned = 0
        self._logs = len(dirs.log_ids())

    async def scan(self, log_id: int) -> AsyncIterator[Block | Damage]:
        self._scanned += 1
        async for found in super().scan(log_id):
            await self.progress.tick(f"log {self._scanned} of {self._logs}, {self.bytes_read >> 20} MiB read")
            yield found


async def _swap(
    bookie: StoppedBookie, current: Path, new: Path, aside: Path, source: Path, *, keep: bool
) -> Path | None:
    """Returns where the old one is kept, if it is."""
    disk = bookie.directories.first_ledger.disk
    if source == current:
        _remove(aside)
        if is_dir(current):
            _rename(current, aside)
    else:
        _remove(current)  # The empty one that a start made after an interrupted rebuild.
    await disk.sync_dir()
    _rename(new, current)
    await disk.sync_dir()
    kept = _keep(aside, current.with_name(current.name + _KEPT)) if keep else None
    _remove(aside)
    await disk.sync_dir()
    return kept


def _keep(aside: Path, kept: Path) -> Path | None:
    """The first one that was damaged has the most; a later one is not kept."""
    if is_dir(aside) and not kept.exists():
        _rename(aside, kept)
    return kept if kept.exists() else None


def _rename(old: Path, new: Path) -> None:
    try:
        old.rename(new)
    except OSError as error:
        raise DiskError(f"cannot rename {old} to {new}: {error.strerror}; run the rebuild again") from None


def _remove(path: Path) -> None:
    if not path.is_dir():
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise DiskError(f"cannot remove {path}: {error.strerror}") from None


def _note_problems(bookie: StoppedBookie, report: RebuildReport, kept: Path | None) -> None:
    problems = bookie.problems
    problems.extend(LogDamagedError(reason) for reason in report.unreadable_logs.values())
    for damage in report.torn_ends:
        note(
            f"{_where(damage)}: what a crash left of a flush; the old index has nothing there, so the journal has what "
            "counts of it, and no ledger is put in limbo for it"
        )
    problems.extend(LogDamagedError(f"{_where(damage)}: {_meaning(damage, report)}") for damage in report.damage)
    if report.may_miss_entries:
        can_start = "" if report.may_miss_ledgers else "; the bookie can start"
        problems.append(
            LogDamagedError(
                "entries may be missing: all ledgers are in limbo now, so that no wrong answer is given, and readers "
                f"find them on other bookies{can_start}"
            )
        )
    if report.may_miss_ledgers:
        where = "" if kept is None else f" (what there was is in {kept})"
        lost = "fences" if report.flags_lost else "ledgers"
        problems.append(
            IndexDamagedError(
                f"{lost} could not be taken over from the old index{where}: all ledgers with an entry here are fenced "
                "and in limbo now, and nothing is known of others that there may have been. The bookie does not start "
                "until the metadata has told which they were: magnetar bookie limbo --metadata URL, with the same "
                "directories"
            )
        )


def _where(damage: Damage) -> str:
    return f"{log_path(damage.log_id)}: no valid block from offset {damage.offset} to {damage.end}"


def _meaning(damage: Damage, report: RebuildReport) -> str:
    if not damage.is_tail:
        return "entries that stood there are lost on this bookie"
    if report.locations_lost:
        return (
            "the end of a log that was never finished. A crash may have left it so, or entries that stood there are "
            "lost: only the old index could tell, and it cannot be read or is behind"
        )
    return "this is no flush that a crash cut off: the old index has entries there, and they are lost on this bookie"


# --- readonly ---------------------------------------------------------------------------------------------------------


@readonly_app.command("on")
def read_only_on(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """The bookie serves reads and takes no entries, until `readonly off`. A running one notices within
    bookie.disk_check_interval_ms, others find it so when they start."""
    _read_only(True, directory, config, settings, as_json)


@readonly_app.command("off")
def read_only_off(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """The bookie takes entries again, unless a disk is full or it is configured otherwise."""
    _read_only(False, directory, config, settings, as_json)


@readonly_app.command("show")
def show_read_only(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Print whether an operator, or the configuration, keeps the bookie from taking entries."""
    _read_only(None, directory, config, settings, as_json)


def _read_only(
    wanted: bool | None, directory: str | None, config: Path | None, settings: list[str] | None, as_json: bool
) -> None:
    async def command(bookie: StoppedBookie) -> None:
        if wanted is not None:
            await write_operator_status(bookie.directories, bookie.runtime.entropy, is_read_only=wanted)
        by_operator = await read_operator_status(bookie.directories)
        configured = bookie.config.bookie.force_read_only
        _print({"by_operator": by_operator, "configured": configured, "read_only": by_operator or configured}, as_json)

    run_on_bookie(command, load_for_bookie(directory, config, settings), if_running=None)


def _print(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_table(("field", "value"), list(fields.items()))
