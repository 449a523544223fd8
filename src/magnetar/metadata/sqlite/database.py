"""The SQLite file: opened with the settings that make a commit durable, or refused with a reason.

Durability: write-ahead log with `synchronous=FULL`: a commit returns after the log is synced, so that neither kill -9
            nor a power loss takes it back. The log is copied into the file now and then, by SQLite, in the same lane.
One process: `locking_mode=EXCLUSIVE` keeps the file locked from the first read to the close; the kernel lifts the lock
            when the process dies.
Identity:   `application_id` says that the file is ours, `user_version` which schema it has.
Schema:     nodes(path, parent, value, version, created_ms, modified_ms, owner, sequence, check)
            `check` is a CRC-32 of path, version and value, because SQLite itself does not notice a flipped bit in one.
Read next:  table.py, engine.py, docs/metadata-store.md
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeAlias

from magnetar.errors import (
    MetadataError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    StoreCorruptError,
    StoreLockedError,
)

Connection: TypeAlias = Any
"""sqlite3.Connection, or another library's with the same `execute` and `close`: the power-loss test brings one."""
Connect: TypeAlias = Callable[[str], Connection]

APPLICATION_ID = 0x4D41474E  # "MAGN"
SCHEMA_VERSION = 1

_SETTINGS = (
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=OFF",
    "PRAGMA temp_store=MEMORY",
)
_SCHEMA = (
    """CREATE TABLE nodes (
        path TEXT PRIMARY KEY NOT NULL,
        parent TEXT NOT NULL,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        modified_ms INTEGER NOT NULL,
        owner INTEGER NOT NULL,
        sequence INTEGER NOT NULL DEFAULT 0,
        "check" INTEGER NOT NULL
    )""",
    "CREATE INDEX nodes_by_parent ON nodes(parent)",
    "CREATE INDEX nodes_by_owner ON nodes(owner) WHERE owner != 0",
)


def connect_sqlite(path: str) -> sqlite3.Connection:
    # Autocommit mode: transactions are ours to begin and end. The lane's one thread is the only user after this call.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0, cached_statements=64)


def open_database(path: str, connect: Connect) -> Connection:
    """Blocking; for the engine's lane."""
    try:
        connection = connect(path)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    try:
        _prepare(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, path) from error
        raise
    return connection


def _prepare(connection: Connection, path: str) -> None:
    for setting in _SETTINGS:
        connection.execute(setting).fetchall()
    connection.execute("BEGIN IMMEDIATE")  # Takes the lock, which is then kept.
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application_id == 0 and tables == 0:
        for statement in (*_SCHEMA, f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={SCHEMA_VERSION}"):
            connection.execute(statement)
    elif application_id != APPLICATION_ID:
        raise StoreCorruptError(
            f"{path} is a SQLite file of another program, not a magnetar metadata store; name another path"
        )
    elif version != SCHEMA_VERSION:
        raise StoreCorruptError(
            f"{path} has metadata schema {version}, this magnetar knows {SCHEMA_VERSION}: use the version that wrote it"
        )
    connection.execute("COMMIT")


def translate(error: sqlite3.Error, path: str) -> MetadataError:
    """SQLite's error as ours. An I/O error is an unknown outcome: the log may or may not have reached the disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLockedError(
            f"{path} is in use by another process; stop that process (`fuser {path}` names it) or name another path"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT):
        return StoreCorruptError(
            f"{path} is damaged ({error}); restore it from a backup, or rescue what is readable with"
            f" `sqlite3 {path} .recover` into a new file"
        )
    if code == sqlite3.SQLITE_FULL:
        return MetadataUnavailableError(
            f"{path}: no room left on the disk; nothing was changed, free some and try again"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return MetadataUnavailableError(
            f"{path} cannot be opened for writing ({error}); check its directory and permissions"
        )
    return OutcomeUnknownError(f"{path}: {error}")
