"""`magnetar bookie cookie` and `magnetar bookie format`: what an operator does when a bookie refuses to start.

`cookie_app` is a command group; `format_bookie` is a command. Both belong below `magnetar bookie`.

Invariant: A cookie keeps a bookie without its data from serving. So no command here changes a bookie that is registered
           or running, and `format` removes every cookie before the first byte of data: if it is interrupted, the bookie
           refuses to start instead of serving what is left.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.bookie.directories import (
    COOKIE_FILE,
    LOCK_FILE,
    Directory,
    DirectoryLayout,
    open_directories,
)
from magnetar.cli.logs import setup_short_command_log
from magnetar.cli.open_store import Opened, Url, load_for_store, run_on_store
from magnetar.cli.options import AsJson, ConfigFile, Settings, Yes, confirm, load_effective
from magnetar.cli.output import EXIT_INTERRUPTED, print_json, print_table
from magnetar.config.load import Assignment
from magnetar.errors import (
    ArgumentError,
    BookieRegisteredError,
    CookieMismatchError,
    DiskError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cluster import read_cluster
from magnetar.metadata.bookkeeper.cookies import Cookie, decode_cookie, encode_cookie
from magnetar.metadata.bookkeeper.paths import stored_bookie_id
from magnetar.metadata.store import ANY_VERSION
from magnetar.runtime.event_loop import run
from magnetar.runtime.system import SystemRuntime

_COOKIE_BYTES_MAX = 2**18
_KEPT = (LOCK_FILE, "lost+found")  # The lock is held by us: without it another process could come in.

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
    cookie = decode_cookie(_read(file))

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
        _print({"deleted": bookie_id}, as_json)

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


def _read(file: Path) -> bytes:
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
    _print(fields, as_json)


def _print(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        shown = [
            (key, ", ".join(v) if isinstance(v, list) else v if v is not None else "-") for key, v in fields.items()
        ]
        print_table(("field", "value"), shown)


# --- format -----------------------------------------------------------------------------------------------------------


def format_bookie(
    directory: Annotated[
        str | None, typer.Option("--dir", metavar="D", help="Directory of the bookie's data. Default: bookie.dir.")
    ] = None,
    yes: Yes = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Delete all data of a stopped bookie from its directories, including its saved port and its cookies."""
    flags = [Assignment("bookie.dir", directory, "--dir")] if directory is not None else []
    effective = load_effective(config, settings, flags=flags)
    setup_short_command_log(effective)
    layout = DirectoryLayout.from_config(effective.config.bookie, base=str(Path.cwd()))
    existing = [path for path in layout.all if Path(path).is_dir()]
    if not existing:
        raise DiskError(f"none of these directories exists: {', '.join(layout.all)}")
    confirm(f"Remove everything in {', '.join(existing)}?", yes)
    if run(lambda: _format(layout)) is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    _print({"formatted": existing}, as_json)
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
        if path.name in _KEPT:
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
