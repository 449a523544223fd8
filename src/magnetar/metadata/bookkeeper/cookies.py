"""Cookies: what must not change during a bookie's life, kept in the store and in each of the bookie's directories.

Purpose:   a bookie that starts with another id, with a missing directory, or in another cluster would answer "no such
           entry" for entries that it had acknowledged. Its cookie shows that before it serves.
Format:    layout version LF body. 5 and 4: protobuf text (proto/cookie.proto). 3: lines bookie id, journal, ledger
           directories. We write 5; Apache refuses older ones, and so do we. Journal directories are joined by commas;
           ledger and index directories by tabs, their number first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf import text_format

from magnetar.errors import CookieMismatchError, MalformedMetadataError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths, stored_bookie_id
from magnetar.metadata.bookkeeper.proto.cookie_pb2 import CookieFormat
from magnetar.metadata.bookkeeper.proto_strings import parse_text
from magnetar.metadata.store import MetadataStore

LAYOUT_VERSION: Final = 5
_LINES_VERSION: Final = 3
_VALUE_BYTES_MAX: Final = 2**18  # Some thousand directories.
_REMEMBERED_MAX: Final = 32
_VERSION_LINE = re.compile(r"[ \t]*([0-9]{1,9})[ \t]*(?:\r\n|\n|\r)")
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    bookie_id: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    index_dirs: tuple[str, ...] | None = None
    """None if they are the ledger directories."""
    instance_id: str | None = None
    layout_version: int = LAYOUT_VERSION
    """The version that was read; the newest is always written."""

    def __post_init__(self) -> None:
        for directory in (*self.journal_dirs, *self.ledger_dirs, *(self.index_dirs or ())):
            if "\t" in directory:
                raise ValueError(f"a directory with a tab in its name cannot be part of a cookie: {directory!r}")

    def differences(self, stored: Cookie, *, more_dirs_allowed: bool = False) -> list[str]:
        """Returns why this bookie is not the one that the stored cookie describes; nothing if it is.

        With `more_dirs_allowed`, ledger and index directories may have been added, but none lost.
        """
        found = _differ("bookie id", self.bookie_id, stored.bookie_id)
        found += _differ("journal directories", ",".join(self.journal_dirs), ",".join(stored.journal_dirs))
        dirs = (
            ("ledger directories", self.ledger_dirs, stored.ledger_dirs),
            ("index directories", self.index_dirs or self.ledger_dirs, stored.index_dirs or stored.ledger_dirs),
        )
        for name, ours, theirs in dirs:
            if not (more_dirs_allowed and frozenset(ours) >= frozenset(theirs)):
                found += _differ(name, ", ".join(ours), ", ".join(theirs))
        return found + _differ("instance id of the cluster", self.instance_id, stored.instance_id)

    def verify(self, stored: Cookie, *, more_dirs_allowed: bool = False) -> None:
        """Raises CookieMismatchError unless this bookie is the one that the stored cookie describes."""
        if found := self.differences(stored, more_dirs_allowed=more_dirs_allowed):
            raise CookieMismatchError(f"bookie {self.bookie_id} does not match its cookie: {'; '.join(found)}")


def _differ(name: str, ours: str | None, stored: str | None) -> list[str]:
    return [] if ours == stored else [f"{name} is {ours!r}, the cookie says {stored!r}"]


def encode_cookie(cookie: Cookie) -> bytes:
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=",".join(cookie.journal_dirs),
        ledgerDirs=_join_dirs(cookie.ledger_dirs),
        instanceId=cookie.instance_id,
        indexDirs=None if cookie.index_dirs is None else _join_dirs(cookie.index_dirs),
    )
    return f"{LAYOUT_VERSION}\n{text_format.MessageToString(message)}".encode()


def decode_cookie(value: bytes) -> Cookie:
    if len(value) > _VALUE_BYTES_MAX:
        raise MalformedMetadataError(f"cookie: {len(value)} bytes, more than {_VALUE_BYTES_MAX}")
    try:
        return _decode(value.decode())
    except (MalformedMetadataError, ValueError) as error:  # Text that is not UTF-8 is a ValueError, too.
        raise MalformedMetadataError(f"cookie: {error}") from error


@lru_cache(maxsize=_REMEMBERED_MAX)
def _decode(text: str) -> Cookie:
    """Remembers results: a bookie reads the same cookie from each of its directories, and text is slow to parse."""
    found = _VERSION_LINE.match(text)
    if found is None:
        raise MalformedMetadataError(f"no layout version in the first line: {text[:40]!r}")
    version, body = int(found[1]), text[found.end() :]
    if version == _LINES_VERSION:
        return _decode_lines(body)
    if not _LINES_VERSION < version <= LAYOUT_VERSION:
        raise MalformedMetadataError(f"layout version {version}; known are {_LINES_VERSION} to {LAYOUT_VERSION}")
    message = CookieFormat()
    parse_text(body, message)
    return Cookie(
        bookie_id=stored_bookie_id(message.bookieHost),
        journal_dirs=tuple(message.journalDir.split(",")),
        ledger_dirs=_split_dirs(message.ledgerDirs),
        index_dirs=_split_dirs(message.indexDirs) if message.indexDirs else None,
        instance_id=message.instanceId or None,
        layout_version=version,
    )


def _decode_lines(body: str) -> Cookie:
    lines = _LINE_END.split(body)
    if len(lines) < 3:
        raise MalformedMetadataError(f"{len(lines)} lines after the version; layout 3 has three")
    return Cookie(
        bookie_id=stored_bookie_id(lines[0]),
        journal_dirs=tuple(lines[1].split(",")),
        ledger_dirs=_split_dirs(lines[2]),
        layout_version=_LINES_VERSION,
    )


def _join_dirs(dirs: tuple[str, ...]) -> str:
    return "\t".join((str(len(dirs)), *dirs))


def _split_dirs(text: str) -> tuple[str, ...]:
    count, *dirs = text.split("\t")
    if count != str(len(dirs)):
        raise MalformedMetadataError(f"a list of directories says {count[:20]!r} and has {len(dirs)}")
    return tuple(dirs)


class CookieStore:
    """The cookies of a cluster's bookies."""

    def __init__(self, store: MetadataStore, paths: BookKeeperPaths) -> None:
        self._store = store
        self._paths = paths

    async def read(self, bookie: BookieId) -> Versioned[Cookie] | None:
        node = await self._store.get(self._paths.cookie(bookie))
        return None if node is None else Versioned(decode_cookie(node.value), node.version)

    async def create(self, cookie: Cookie) -> None:
        """Raises NodeExistsError if the bookie has a cookie already."""
        await self._store.create(self._paths.cookie(cookie.bookie_id), encode_cookie(cookie), make_parents=True)

    async def update(self, cookie: Cookie, version: int) -> int:
        return await self._store.put(self._paths.cookie(cookie.bookie_id), encode_cookie(cookie), version)

    async def delete(self, bookie: BookieId, version: int) -> None:
        await self._store.delete(self._paths.cookie(bookie), version)
