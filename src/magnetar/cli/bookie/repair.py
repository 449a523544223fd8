"""`magnetar bookie limbo`, `index rebuild`, `readonly`, `format` and `cookie`: what an operator changes of a bookie.

`limbo` makes a bookie that lost part of its journal, or a disk, fit to start again, safely. It needs the stopped
bookie's directories and the metadata store, which alone knows the ledgers in doubt. `readonly` works on a running
bookie too, which only reads the status file, at intervals.

Invariant: A cookie keeps a bookie without its data from serving. So no command here changes the cookie of a bookie that
           is registered or running, and `format` removes every cookie before the first byte of data: if it is
           interrupted, the bookie refuses to start instead of serving what is left.
Order:     Limbo has the order of bookie/limbo.py. An index that must be rebuilt is rebuilt first. The new index is made
           beside the old one, complete and closed, before it takes its name.
Failure:   After a kill at any line the bookie still has its old index, or none: then it refuses to start, and the next
           rebuild continues with the flags of the old one, which was set aside. Flags can be trusted only from an index
           that has all of the journal, as fences are forever. An older one is treated as lost, and its content is set
           aside. Then ledgers may be unknown for which this bookie made promises: it is marked as one that waits for a
           repair, and does not start without.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.bookie.directories import (
    COOKIE_FILE,
    LOCK_FILE,
    REPAIR_FILE,
    Directory,
    DirectoryLayout,
    open_directories,
)
from magnetar.bookie.identity import identify_for_repair, restore_port
from magnetar.bookie.limbo import RepairReport, Suspects, find_suspects, repair
from magnetar.bookie.read_only import read_operator_status, write_operator_status
from magnetar.cli.bookie.offline import (
    Dir,
    Progress,
    StoppedBookie,
    is_dir,
    load_for_bookie,
    open_index_read_only,
    run_on_bookie,
)
from magnetar.cli.open_store import Opened, Url, load_for_store, run_on_store
from magnetar.cli.options import ConfigFile, Settings, load_for_short_command
from magnetar.cli.output import EXIT_INTERRUPTED, AsJson, Yes, confirm, note, print_fields
from magnetar.errors import (
    ArgumentError,
    BookieRegisteredError,
    CookieMismatchError,
    DiskError,
    FileLockedError,
    IndexDamagedError,
    LogDamagedError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cluster import read_cluster
from magnetar.metadata.bookkeeper.cookies import Cookie, decode_cookie, encode_cookie
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import stored_bookie_id
from magnetar.metadata.store import ANY_VERSION
from magnetar.runtime.event_loop import run
from magnetar.runtime.system import SystemRuntime
from magnetar.storage.entry_log.format import LOGS, Block, log_path
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import Damage, EntryLogReader
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.index.rebuild import RebuildReport, rebuild_index
from magnetar.storage.ledger_storage import LedgerStorage, open_rocksdb_index, open_storage
from magnetar.words import counted

index_app = typer.Typer(no_args_is_help=True, help="Repair the location index of a stopped bookie.")
readonly_app = typer.Typer(no_args_is_help=True, help="Make a bookie read-only, whether it is running or stopped.")

_NEW = ".new"
_OLD = ".old"
_KEPT = ".damaged"


# --- index rebuild ----------------------------------------------------------------------------------------------------


@index_app.command("rebuild")
def rebuild(
    directory: Dir = None,
    yes: Yes = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the location index from the entry logs. Ledger flags, such as fences, are copied from the old
    index.
    """
    effective = load_for_bookie(directory, config, settings)
    confirm("Rebuild the location index from the entry logs, and remove the old one?", yes)

    async def command(bookie: StoppedBookie) -> None:
        print_fields(await rebuild_index_of(bookie), as_json)

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
            f"{_where(damage)}: the rest of a flush that was cut off by a crash. The old index has no entries "
            "there and the journal still has them, so nothing is lost and no ledger is put in limbo"
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
        where = "" if kept is None else f" (what is left of it is in {kept})"
        lost = "fences" if report.flags_lost else "ledgers"
        problems.append(
            IndexDamagedError(
                f"{lost} could not be copied from the old index{where}. All ledgers with an entry here are fenced and "
                "in limbo now. Ledgers without one may be missing, and the bookie does not start without them. To find "
                "them in the metadata, run magnetar bookie limbo --metadata URL with the same directories"
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
            "lost: only the old index could tell, and it cannot be read or is out of date"
        )
    return "this is no flush that a crash cut off: the old index has entries there, and they are lost on this bookie"


# --- readonly ---------------------------------------------------------------------------------------------------------


@readonly_app.command("on")
def read_only_on(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Make the bookie read-only until `readonly off`. A running bookie notices within bookie.disk_check_interval_ms, a
    stopped one at its next start.
    """
    _read_only(True, directory, config, settings, as_json)


@readonly_app.command("off")
def read_only_off(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Make the bookie writable again, unless a disk is full or the configuration has bookie.force_read_only."""
    _read_only(False, directory, config, settings, as_json)


@readonly_app.command("show")
def show_read_only(
    directory: Dir = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Print whether `readonly on` or the configuration makes the bookie read-only."""
    _read_only(None, directory, config, settings, as_json)


def _read_only(
    wanted: bool | None, directory: str | None, config: Path | None, settings: list[str] | None, as_json: bool
) -> None:
    async def command(bookie: StoppedBookie) -> None:
        if wanted is not None:
            await write_operator_status(bookie.directories, bookie.runtime.entropy, is_read_only=wanted)
        by_operator = await read_operator_status(bookie.directories)
        configured = bookie.config.bookie.force_read_only
        print_fields(
            {"by_operator": by_operator, "configured": configured, "read_only": by_operator or configured}, as_json
        )

    run_on_bookie(command, load_for_bookie(directory, config, settings), if_running=None)


_QUESTION = "Go on without what is lost, with every ledger that may miss something fenced and in limbo?"


def put_in_limbo(
    metadata: Url = None,
    directory: Dir = None,
    bookie_id: Annotated[
        str | None,
        typer.Option("--id", help="Id of the bookie. Needed only if none of its directories has a cookie any more."),
    ] = None,
    yes: Yes = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Let a stopped bookie start again after its journal was damaged or a disk was lost.

    Such a bookie may have lost entries that it had acknowledged.
    Open ledgers with this bookie in their last ensemble are fenced and put in limbo: the bookie then never
    answers "no such entry" for them, so that recovery does not drop entries that other bookies still have.
    Damaged journal files are set aside, and empty directories get their cookie back.
    """
    given = {"metadata.url": (metadata, "--metadata"), "bookie.dir": (directory, "--dir")}
    effective = load_for_short_command(config, settings, given | {"bookie.bookie_id": (bookie_id, "--id")})
    confirm(_QUESTION, yes)

    async def command(opened: Opened) -> None:
        layout = DirectoryLayout.from_config(effective.bookie, base=str(Path.cwd()))
        try:
            directories = await open_directories(opened.runtime, layout)
        except FileLockedError as error:
            raise FileLockedError(f"{error}; only a stopped bookie can be repaired: stop it first") from None
        try:
            bookie = StoppedBookie(effective, opened.runtime, directories)
            print_fields(await _repair(opened, bookie), as_json)
        finally:
            await directories.aclose()

    run_on_store(command, effective)


async def _repair(opened: Opened, bookie: StoppedBookie) -> dict[str, Any]:
    directories, config = bookie.directories, bookie.config
    found = await identify_for_repair(directories, opened.store, opened.paths, config.bookie)
    ledgers = LedgerMetadataStore(opened.store, opened.paths, opened.runtime.entropy)
    suspects = await find_suspects(ledgers, found.cookie.bookie_id)
    await restore_port(directories, config.bookie, found.cookie.bookie_id)

    async def open_it(submitted: Callable[[], int], mark: int) -> LedgerStorage:
        return await open_storage(
            opened.runtime, bookie.layout.ledger, config.storage, submitted=submitted, journal_mark=mark
        )

    async def rebuild_it() -> None:
        for directory in directories.ledger:
            await directory.disk.make_dir(LOGS)
        await rebuild_index_of(bookie)
        for problem in bookie.problems:
            if not isinstance(problem, IndexDamagedError):  # That flags are lost is what is being repaired here.
                note(str(problem))

    report = await repair(
        directories,
        found.cookie,
        found.lost,
        suspects,
        entropy=opened.runtime.entropy,
        open_storage=open_it,
        rebuild_index=rebuild_it,
    )
    _note(suspects, report)
    return {
        "bookie_id": found.cookie.bookie_id,
        "ledgers_in_limbo": len(suspects.in_limbo),
        "ledgers_fenced": len(suspects.fenced),
        "records_replayed": report.records,
        "entries_replayed": report.entries,
        "records_missing": report.missing_records,
        "set_aside": report.set_aside,
        "directories_restored": report.stamped,
    }


def _note(suspects: Suspects, report: RepairReport) -> None:
    if suspects.unreadable:
        shown = ", ".join(str(ledger_id) for ledger_id in suspects.unreadable[:10])
        note(
            f"the metadata of {counted(len(suspects.unreadable), 'ledger')} is damaged; these are in limbo too: {shown}"
        )
    for path in report.set_aside:
        note(f"{path} is a copy of a damaged journal file; it is no longer used, and you may delete it")


_COOKIE_BYTES_MAX = 2**18
_KEPT_FILES = (LOCK_FILE, "lost+found")  # The lock is held by us: without it another process could come in.

Bookie: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the bookie, such as host:3181.")]

cookie_app = typer.Typer(
    no_args_is_help=True,
    help="Show, write or delete the cookie of a bookie in the metadata store. The cookie identifies the bookie's data.",
)


# --- cookie -----------------------------------------------------------------------------------------------------------


@cookie_app.command("get")
def get_cookie(
    bookie: Bookie,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the cookie to standard output in the format of a VERSION file.")
    ] = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the cookie of a bookie from the metadata store."""
    bookie_id = _checked(bookie)

    async def command(opened: Opened) -> None:
        stored = await opened.cookies.read(bookie_id)
        if stored is None:
            raise _missing(opened, bookie_id)
        if raw:
            sys.stdout.buffer.write(encode_cookie(stored.value))
            return
        _print_cookie(stored.value, stored.version, as_json)

    run_on_store(command, load_for_store(metadata, config, settings))


@cookie_app.command("create")
def create_cookie(
    bookie: Bookie,
    file: Annotated[Path, typer.Option("--file", help=f"{COOKIE_FILE} file of one of the bookie's directories.")],
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Write a bookie's cookie to the metadata store, from one of its directories. Use it only if the bookie's
    data is complete.
    """
    bookie_id = _checked(bookie)
    cookie = decode_cookie(_read_file(file))

    async def command(opened: Opened) -> None:
        cluster = await read_cluster(opened.store, opened.paths)
        if cookie.bookie_id != bookie_id:
            raise CookieMismatchError(f"{file} is the cookie of bookie {cookie.bookie_id}, not of {bookie_id}")
        if cookie.instance_id != cluster.instance_id:
            raise CookieMismatchError(
                f"{file} belongs to the cluster with instance id {cookie.instance_id}, and this one has "
                f"{cluster.instance_id}: check --metadata"
            )
        try:
            await opened.cookies.create(cookie)
        except NodeExistsError:
            raise NodeExistsError(
                f"bookie {bookie_id} has a cookie already; see: magnetar bookie cookie get {bookie_id}"
            ) from None
        _print_cookie(cookie, 0, as_json)

    run_on_store(command, load_for_store(metadata, config, settings))


@cookie_app.command("delete")
def delete_cookie(
    bookie: Bookie,
    yes: Yes = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Delete a bookie's cookie, so that a bookie with this id can start with empty directories. Make sure that
    copies of its data exist on other bookies.
    """
    bookie_id = _checked(bookie)
    effective = load_for_store(metadata, config, settings)
    confirm(f"Delete the cookie of {bookie_id}? Ledgers that name it lose a copy unless they were re-replicated.", yes)

    async def command(opened: Opened) -> None:
        await _require_not_registered(opened, bookie_id)
        node = await opened.store.get(opened.paths.cookie(bookie_id))
        if node is None:
            raise _missing(opened, bookie_id)
        await opened.cookies.delete(bookie_id, ANY_VERSION if yes else node.version)
        print_fields({"deleted": bookie_id}, as_json)

    run_on_store(command, effective)


async def _require_not_registered(opened: Opened, bookie: BookieId) -> None:
    for readonly in (False, True):
        path = opened.paths.registration(bookie, readonly=readonly)
        if await opened.store.get(path) is not None:
            raise BookieRegisteredError(
                f"bookie {bookie} is registered at {path}, so it is running or stopped a moment ago: stop it and "
                "wait until its session has expired"
            )


def _missing(opened: Opened, bookie: BookieId) -> NoNodeError:
    return NoNodeError(
        f"there is no cookie of bookie {bookie}; those there are: magnetar metadata ls {opened.paths.cookies}"
    )


def _checked(bookie: str) -> BookieId:
    try:
        return stored_bookie_id(bookie)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def _read_file(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_COOKIE_BYTES_MAX + 1)
    except OSError as error:
        raise DiskError(f"cannot read {file}: {error.strerror}") from None


def _print_cookie(cookie: Cookie, version: int, as_json: bool) -> None:
    fields = {
        "bookie_id": cookie.bookie_id,
        "journal_dirs": list(cookie.journal_dirs),
        "ledger_dirs": list(cookie.ledger_dirs),
        "index_dirs": list(cookie.index_dirs or cookie.ledger_dirs),
        "instance_id": cookie.instance_id,
        "layout_version": cookie.layout_version,
        "node_version": version,
    }
    print_fields(fields, as_json)


# --- format -----------------------------------------------------------------------------------------------------------


def format_bookie(
    directory: Dir = None,
    yes: Yes = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Delete all data of a stopped bookie from its directories, including its saved port and its cookies."""
    layout = DirectoryLayout.from_config(load_for_bookie(directory, config, settings).bookie, base=str(Path.cwd()))
    existing = [path for path in layout.all if Path(path).is_dir()]
    if not existing:
        raise DiskError(f"none of these directories exists: {', '.join(layout.all)}")
    confirm(f"Remove everything in {', '.join(existing)}?", yes)
    if run(lambda: _format(layout)) is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    print_fields({"formatted": existing}, as_json)
    print(
        "hint: if the bookie had started before, its cookie is still in the metadata; "
        "when no ledger needs it any more: magnetar bookie cookie delete ID",
        file=sys.stderr,
    )


async def _format(layout: DirectoryLayout) -> bool:
    directories = await open_directories(SystemRuntime(), layout, create=False)
    try:
        for directory in directories.all:  # All of them before any data: what is left must not look like a bookie.
            await directory.remove(COOKIE_FILE)
        for directory in directories.all:
            _remove_all(directory)
            await directory.disk.sync_dir()
    finally:
        await directories.aclose()
    return True


def _remove_all(directory: Directory) -> None:
    for path in sorted(Path(directory.path).iterdir()):
        if path.name in _KEPT_FILES:
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            raise DiskError(
                f"cannot remove {path}: {error.strerror}; the bookie cannot start from what is left: run format again"
            ) from None
