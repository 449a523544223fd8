"""Who a bookie is: its id, its port, its cookie. Settled on start, before storage is opened or a client is heard.

Order:     lock the directories → take the port → check the cookies → keep the port → stamp the directories → stamp the
           metadata. Each step is durable before the next, and a crash between two leaves something that the next start
           finishes (cookie_check.py says why).
Port:      0 means the one kept from the last start, else any. The port is part of the usual id, so it is kept before
           the id is written anywhere.
Id:        as configured, else `advertised host:port`.

    directories = await open_directories(runtime, layout)
    port = await port_to_bind(directories, config)
    ... bind; the system may have chosen ...
    identity = await establish(directories, store, paths, config, port=bound_port)
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from magnetar.bookie.cookie_check import Found, Verdict, check_cookies, check_for_repair, describe_cookie
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
class Identity:
    bookie_id: BookieId
    port: int
    cookie: Cookie
    is_first_start: bool


async def port_to_bind(directories: BookieDirectories, config: BookieConfig) -> int:
    """0: any that is free."""
    return config.port or await kept_port(directories) or 0


async def establish(
    directories: BookieDirectories, store: MetadataStore, paths: BookKeeperPaths, config: BookieConfig, *, port: int
) -> Identity:
    """Returns when the bookie may serve; CookieMismatchError when it must not. `port` is the one that is bound."""
    assert port > 0, port
    cluster = await read_cluster(store, paths)
    ours = make_cookie(bookie_id_of(config, port), directories.layout, cluster.instance_id)
    cookies = CookieStore(store, paths)
    await store.sync()  # A store that lags behind could show the state before an operator's change.
    stored = await _read_stored(cookies, ours.bookie_id)
    found = [await _look(directory) for directory in directories.all]
    verdict = check_cookies(ours, stored, found)
    await keep_port(directories, port)
    if verdict is Verdict.FIRST_START:
        await _stamp(ours, cookies, store, directories)
    return Identity(ours.bookie_id, port, ours, verdict is Verdict.FIRST_START)


@dataclass(frozen=True, slots=True)
class Repairable:
    """A stopped bookie that is to be repaired, and which of its directories were lost."""

    cookie: Cookie
    lost: list[Directory]


async def identify_for_repair(
    directories: BookieDirectories, store: MetadataStore, paths: BookKeeperPaths, config: BookieConfig
) -> Repairable:
    """Changes nothing. CookieMismatchError: this is not the bookie that it should be."""
    cluster = await read_cluster(store, paths)
    found = [await _look(directory) for directory in directories.all]
    ours = make_cookie(await _former_id(directories, found, config), directories.layout, cluster.instance_id)
    await store.sync()
    lost = check_for_repair(ours, await _read_stored(CookieStore(store, paths), ours.bookie_id), found)
    return Repairable(ours, [directory for directory in directories.all if directory.path in lost])


async def _former_id(directories: BookieDirectories, found: list[Found], config: BookieConfig) -> BookieId:
    """What is left of it says it best: a repair may be started without the options of a start."""
    if config.bookie_id:
        return bookie_id(config.bookie_id)
    for directory in found:
        if directory.cookie is not None:
            return directory.cookie.bookie_id
    if port := await kept_port(directories) or config.port:
        return bookie_id_of(config, port)
    raise ConfigError("no directory says which bookie this was: name it with --id, such as host:3181")


async def restore_port(directories: BookieDirectories, config: BookieConfig, bookie: BookieId) -> None:
    """If it was lost with its directory: the id has it, unless it is a name of its own."""
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


async def _look(directory: Directory) -> Found:
    content = await directory.read(COOKIE_FILE)
    try:
        cookie = None if content is None else decode_cookie(content)
    except MalformedMetadataError as error:
        raise CookieMismatchError(
            f"{posixpath.join(directory.path, COOKIE_FILE)} is damaged ({error}), so nobody knows whose directory this "
            "is. Check the device. If only this file is damaged, copy it from another directory of the same bookie, or "
            "write it anew from: magnetar bookie cookie get ID --raw"
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
        # cookie looks like ours, so ours must not stay behind: the next start here would pass.
        for directory in directories.all:
            await directory.remove(COOKIE_FILE)
        raise await _taken(cookie, cookies) from None


async def _create(cookie: Cookie, cookies: CookieStore, store: MetadataStore) -> None:
    try:
        await cookies.create(cookie)
    except OutcomeUnknownError:
        await store.sync()  # What was sent before has arrived by now, or never will.
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
