"""A bookie's identity: its id, its port, its cookie. Settled on start, before storage opens or a client is served.

Purpose:   a bookie that lost a disk, or got another's, would answer "no such entry" for entries it had acknowledged,
           and a recovery would believe it. So it serves nothing until every directory and the metadata agree.
Invariant: `check_cookies` decides from the cookies alone, before anything is written. Only a certain first start, or
           cookies that match in full, may serve. Data without a cookie in the metadata is refused, too: an operator who
           deleted the cookie has declared this bookie dead. A directory may say that the bookie waits for a repair
           (limbo.py): until that is done it does not start.
Order:     lock the directories → take the port → check the cookies → keep the port → stamp the directories → stamp the
           metadata. Each step is durable before the next. The metadata's cookie is the commit: after a crash before it,
           some directories may be stamped, but they have no data and the metadata has no cookie, and the next start
           finishes the work. After it, a directory without its cookie has been lost.
Format:    port 0 means the one kept from the last start, otherwise any. It is part of the usual id, so it is kept
           before the id is written anywhere. The id is as configured, otherwise `advertised host:port`.
Read next: directories.py, limbo.py

    directories = await open_directories(runtime, layout)
    port = await port_to_bind(directories, config)
    ... bind; the system may have chosen ...
    identity = await establish(directories, store, paths, config, port=bound_port)
"""

from __future__ import annotations

import enum
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.bookie.directories import (
    COOKIE_FILE,
    REPAIR_FILE,
    BookieDirectories,
    Directory,
    DirectoryLayout,
    keep_port,
    kept_port,
)
from magnetar.config.bookie import BookieConfig
from magnetar.errors import (
    ConfigError,
    CookieMismatchError,
    MalformedMetadataError,
    NodeExistsError,
    OutcomeUnknownError,
)
from magnetar.ids import BookieId, bookie_id
from magnetar.metadata.bookkeeper.cluster import read_cluster
from magnetar.metadata.bookkeeper.cookies import Cookie, CookieStore, decode_cookie, encode_cookie
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class Found:
    """The relevant content of one directory."""

    path: str
    cookie: Cookie | None
    data_names: Sequence[str] = ()
    is_being_repaired: bool = False
    """Whether a repair is not finished: the directory was lost, and its content comes from an interrupted repair; or
    ledgers of the bookie are unknown to it since its index was rebuilt."""


class Verdict(enum.Enum):
    KNOWN = "known"
    FIRST_START = "first start"


@dataclass(frozen=True, slots=True)
class Identity:
    bookie_id: BookieId
    port: int
    cookie: Cookie
    is_first_start: bool


@dataclass(frozen=True, slots=True)
class Repairable:
    """A stopped bookie to repair, and which of its directories were lost."""

    cookie: Cookie
    lost: list[Directory]


async def port_to_bind(directories: BookieDirectories, config: BookieConfig) -> int:
    """Returns 0 for any free port."""
    return config.port or await kept_port(directories) or 0


async def establish(
    directories: BookieDirectories, store: MetadataStore, paths: BookKeeperPaths, config: BookieConfig, *, port: int
) -> Identity:
    """Returns when the bookie may serve; raises CookieMismatchError when it must not. `port` is the bound one."""
    assert port > 0, port
    cluster = await read_cluster(store, paths)
    ours = make_cookie(bookie_id_of(config, port), directories.layout, cluster.instance_id)
    cookies = CookieStore(store, paths)
    await store.sync()  # A store that lags could show the state before an operator's change.
    stored = await _read_stored(cookies, ours.bookie_id)
    found = [await _inspect(directory) for directory in directories.all]
    verdict = check_cookies(ours, stored, found)
    await keep_port(directories, port)
    if verdict is Verdict.FIRST_START:
        await _stamp(ours, cookies, store, directories)
    return Identity(ours.bookie_id, port, ours, verdict is Verdict.FIRST_START)


async def identify_for_repair(
    directories: BookieDirectories, store: MetadataStore, paths: BookKeeperPaths, config: BookieConfig
) -> Repairable:
    """Identifies the bookie and changes nothing. CookieMismatchError: this is another bookie."""
    cluster = await read_cluster(store, paths)
    found = [await _inspect(directory) for directory in directories.all]
    ours = make_cookie(await _former_id(directories, found, config), directories.layout, cluster.instance_id)
    await store.sync()
    lost = check_for_repair(ours, await _read_stored(CookieStore(store, paths), ours.bookie_id), found)
    return Repairable(ours, [directory for directory in directories.all if directory.path in lost])


async def _former_id(directories: BookieDirectories, found: list[Found], config: BookieConfig) -> BookieId:
    """Returns the id that the remaining cookies have: a repair may be started without the options of a start."""
    if config.bookie_id:
        return bookie_id(config.bookie_id)
    for directory in found:
        if directory.cookie is not None:
            return directory.cookie.bookie_id
    if port := await kept_port(directories) or config.port:
        return bookie_id_of(config, port)
    raise ConfigError("no directory says which bookie this was: name it with --id, such as host:3181")


async def restore_port(directories: BookieDirectories, config: BookieConfig, bookie: BookieId) -> None:
    """Restores the port if it was lost with its directory: the id contains it, unless it is a name."""
    host, _, port = bookie.rpartition(":")
    if host == config.reached_at and port.isdigit() and await kept_port(directories) is None:
        await keep_port(directories, int(port))


def bookie_id_of(config: BookieConfig, port: int) -> BookieId:
    return bookie_id(config.bookie_id or f"{config.reached_at}:{port}")


def make_cookie(bookie: BookieId, layout: DirectoryLayout, instance_id: str | None) -> Cookie:
    return Cookie(bookie_id=bookie, journal_dirs=layout.journal, ledger_dirs=layout.ledger, instance_id=instance_id)


async def _read_stored(cookies: CookieStore, bookie: BookieId) -> Cookie | None:
    try:
        stored = await cookies.read(bookie)
    except MalformedMetadataError as error:
        raise CookieMismatchError(
            f"the cookie of {bookie} in the metadata is damaged ({error}). If this bookie's directories are complete, "
            f"replace it: magnetar bookie cookie delete {bookie}, then magnetar bookie cookie create {bookie} "
            f"--file DIRECTORY/{COOKIE_FILE}"
        ) from error
    return None if stored is None else stored.value


async def _inspect(directory: Directory) -> Found:
    content = await directory.read(COOKIE_FILE)
    try:
        cookie = None if content is None else decode_cookie(content)
    except MalformedMetadataError as error:
        raise CookieMismatchError(
            f"{posixpath.join(directory.path, COOKIE_FILE)} is damaged ({error}), so the owner of this directory "
            "is unknown. Check the device. If only this file is damaged, copy it from another directory of the same "
            "bookie, or write it anew from: magnetar bookie cookie get ID --raw"
        ) from error
    is_being_repaired = await directory.read(REPAIR_FILE) is not None
    return Found(directory.path, cookie, await directory.data_names(), is_being_repaired)


async def _stamp(cookie: Cookie, cookies: CookieStore, store: MetadataStore, directories: BookieDirectories) -> None:
    for directory in directories.all:
        await directory.write(COOKIE_FILE, encode_cookie(cookie))
    try:
        await _create(cookie, cookies, store)
    except NodeExistsError:
        # Another bookie with this id had its first start at the same time. With equal paths on another machine its
        # cookie looks like ours, so ours must be removed: otherwise the next start here would pass.
        for directory in directories.all:
            await directory.remove(COOKIE_FILE)
        raise await _taken(cookie, cookies) from None


async def _create(cookie: Cookie, cookies: CookieStore, store: MetadataStore) -> None:
    try:
        await cookies.create(cookie)
    except OutcomeUnknownError:
        await store.sync()  # What was sent before has arrived now, or never will.
        stored = await cookies.read(cookie.bookie_id)
        if stored is None:
            await cookies.create(cookie)
        elif encode_cookie(stored.value) != encode_cookie(cookie):
            raise NodeExistsError(f"a cookie of {cookie.bookie_id} exists") from None


async def _taken(cookie: Cookie, cookies: CookieStore) -> CookieMismatchError:
    stored = await cookies.read(cookie.bookie_id)
    other = "gone again" if stored is None else describe_cookie(stored.value)
    return CookieMismatchError(
        f"another bookie with the id {cookie.bookie_id} has started for the first time just now. "
        f"Configured: {describe_cookie(cookie)}; cookie in the metadata: {other}. "
        "Give this one another id or advertised host: --id, --advertised-host"
    )


def check_cookies(ours: Cookie, stored: Cookie | None, directories: Sequence[Found]) -> Verdict:
    """Decides; `stored` is the metadata's. CookieMismatchError names both cookies, the differences, and a remedy."""
    if stored is not None:
        _require_same(ours, stored, "the metadata", _as_it_was(ours))
    for found in directories:
        if found.cookie is not None:
            _require_same(ours, found.cookie, found.path, _other_directory(ours, found))
    if stored is not None:
        _require_all_stamped(ours, stored, directories)
        _require_repaired(ours, directories)
        return Verdict.KNOWN
    _require_unused(ours, directories)
    return Verdict.FIRST_START


def check_for_repair(ours: Cookie, stored: Cookie | None, directories: Sequence[Found]) -> list[str]:
    """Returns the lost directories: without a cookie, and empty. Raises CookieMismatchError if more is wrong."""
    if stored is None:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has no cookie in the metadata: it was declared dead, or this is another metadata "
            f"store. Configured: {describe_cookie(ours)}; cookie in the metadata: none. Check --metadata and the id"
        )
    _require_same(ours, stored, "the metadata", _as_it_was(ours))
    lost: list[str] = []
    for found in directories:
        if found.cookie is not None:
            _require_same(ours, found.cookie, found.path, _other_directory(ours, found))
            continue
        if found.data_names and not found.is_being_repaired:
            raise CookieMismatchError(
                f"{found.path} has no cookie but is not empty (it has {', '.join(found.data_names[:5])}): if it is "
                f"this bookie's and complete, write its cookie anew: magnetar bookie cookie get {ours.bookie_id} --raw "
                f"> {shlex.quote(posixpath.join(found.path, 'VERSION'))}. Otherwise move its content elsewhere"
            )
        lost.append(found.path)
    return lost


def limbo_command(cookie: Cookie, metadata_url: str = "URL") -> str:
    """Returns the command for an operator when acknowledged entries may be lost for good."""
    url = metadata_url if metadata_url == "URL" else shlex.quote(metadata_url)
    return f"magnetar bookie limbo {_directory_options(cookie)} --metadata {url}"


def describe_cookie(cookie: Cookie) -> str:
    fields = {
        "id": cookie.bookie_id,
        "journal": ",".join(cookie.journal_dirs),
        "ledgers": ",".join(cookie.ledger_dirs),
        "instance": cookie.instance_id or "none",
    }
    if cookie.index_dirs is not None:
        fields["index"] = ",".join(cookie.index_dirs)
    return f"[{'; '.join(f'{name} {value}' for name, value in fields.items())}]"


def _require_same(ours: Cookie, other: Cookie, where: str, advice: str) -> None:
    if found := ours.differences(other):
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} does not match the cookie in {where}: {'; '.join(found)}. "
            f"Configured: {describe_cookie(ours)}; cookie in {where}: {describe_cookie(other)}. {advice}"
        )


def _require_all_stamped(ours: Cookie, stored: Cookie, directories: Sequence[Found]) -> None:
    lost = [found.path for found in directories if found.cookie is None]
    if lost:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has a cookie in the metadata but none in {', '.join(lost)}: that disk was lost, "
            "emptied, swapped or not mounted, and acknowledged entries may be lost. "
            f"Configured: {describe_cookie(ours)}; cookie in the metadata: {describe_cookie(stored)}. "
            "Bring the disk back. If its data is lost, put what may be forgotten in limbo and continue with the rest: "
            f"{limbo_command(ours)}. Or begin anew: {_begin_anew(ours)}"
        )


def _require_repaired(ours: Cookie, directories: Sequence[Found]) -> None:
    marked = [found.path for found in directories if found.is_being_repaired]
    if marked:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} is not repaired yet, as {REPAIR_FILE} in {', '.join(marked)} says: its index was "
            "rebuilt without the fences of the old one, or a repair was interrupted. Ledgers for which it made "
            "promises are unknown to it, and it would deny them. Let the metadata show which they are: "
            f"{limbo_command(ours)}"
        )


def _require_unused(ours: Cookie, directories: Sequence[Found]) -> None:
    used = [found for found in directories if found.data_names]
    if not used:
        return
    unstamped = [found for found in directories if found.cookie is None]
    if not unstamped:
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has data and a cookie in its directories but none in the metadata: "
            f"it was declared dead, or this is another metadata store. Configured: {describe_cookie(ours)}; "
            f"cookie in {directories[0].path}: {describe_cookie(ours)}; cookie in the metadata: none. "
            f"If the data is complete: magnetar bookie cookie create {ours.bookie_id} "
            f"--file {directories[0].path}/VERSION. Otherwise: {_format(ours)}"
        )
    if len(unstamped) < len(directories):
        missing = ", ".join(found.path for found in unstamped)
        raise CookieMismatchError(
            f"bookie {ours.bookie_id} has data in {used[0].path} but no cookie in {missing} and none in the metadata: "
            f"that disk was lost or swapped. Configured: {describe_cookie(ours)}; cookie in {missing}: none. "
            f"Bring the disk back. If its data is lost: {_format(ours)}"
        )
    raise CookieMismatchError(
        f"bookie {ours.bookie_id} would be new, but {used[0].path} is not empty and has no cookie "
        f"(it has {', '.join(used[0].data_names[:5])}). Configured: {describe_cookie(ours)}; cookie: none. "
        f"Use an empty directory, or remove its content: {_format(ours)}"
    )


def _as_it_was(ours: Cookie) -> str:
    return (
        "Start it as the cookie says; an id, a port or a directory cannot be changed on a bookie that has data. "
        f"To begin anew without its data: {_begin_anew(ours)}"
    )


def _other_directory(ours: Cookie, found: Found) -> str:
    cookie = found.cookie
    assert cookie is not None
    if cookie.instance_id != ours.instance_id:
        return (
            f"{found.path} belongs to another cluster: check metadata.url and metadata.ledgers_root. "
            f"To give it to this cluster without its data: {_format(ours)}"
        )
    return f"Start it as the cookie says. To use the directory without its data: {_format(ours)}"


def _format(ours: Cookie) -> str:
    return f"magnetar bookie format {_directory_options(ours)} --yes"


def _directory_options(ours: Cookie) -> str:
    home = posixpath.dirname(ours.ledger_dirs[0])
    below = tuple((posixpath.join(home, name),) for name in ("journal", "ledgers"))
    if (ours.journal_dirs, ours.ledger_dirs) == below:
        return f"--dir {shlex.quote(home)}"
    dirs = {"journal_dirs": ours.journal_dirs, "ledger_dirs": ours.ledger_dirs}
    settings = [f"bookie.{name}={','.join(paths)}" for name, paths in dirs.items()]
    return " ".join(f"--set {shlex.quote(setting)}" for setting in settings)


def _begin_anew(ours: Cookie) -> str:
    return (
        "let every ledger that names this bookie be re-replicated, then magnetar bookie cookie delete "
        f"{ours.bookie_id} and {_format(ours)}"
    )
