"""The embedded store: a SQLite file, its table of nodes, and its engine with one transaction and one sync per batch.

Invariant: write-ahead log with `synchronous=FULL`: a commit returns after the log is synced, so that neither kill -9
           nor a power loss undoes it. SQLite copies the log into the file now and then, in the same lane.
           `locking_mode=EXCLUSIVE` keeps the file locked from the first read to the close; the kernel releases the lock
           when the process dies. Every row that is read is checked against its CRC. A commit that a former process
           wrote and did not sync is made durable before the file is used: otherwise it would be shown to readers,
           and a power loss would undo it.
Order:     group commit without a timer: requests that arrive during a commit form the next batch.
Format:    `application_id` marks the file as ours, `user_version` is its schema's version.
           nodes(path, parent, value, version, created_ms, modified_ms, owner, sequence, check)
           `check` is a CRC-32 of path, version and value, because SQLite itself does not notice a flipped bit in one.
Failure:   a full disk undoes the batch and reports it. Any other error of the device ends the engine: after a failed
           sync the state of the disk is unknown, so nothing is tried again.
Threads:   one lane, one connection; the table blocks.
Read next: docs/metadata-store.md
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from magnetar.config.metadata import MetadataConfig, SqliteConfig
from magnetar.errors import (
    DiskError,
    MetadataError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    StoreCorruptError,
    StoreLockedError,
)
from magnetar.metadata.local import Engine, Job, LocalServer, Outcome, changes_something, run_job
from magnetar.metadata.paths import ROOT, name_of, parent_of
from magnetar.metadata.store import Node
from magnetar.metadata.tree import NodeTable, Tree
from magnetar.runtime.runtime import Entropy, Offload, Runtime

Connection: TypeAlias = Any
"""sqlite3.Connection, or another library's with the same `execute` and `close`, as in the power-loss test."""
Connect: TypeAlias = Callable[[str], Connection]

APPLICATION_ID = 0x4D41474E  # "MAGN"
SCHEMA_VERSION = 1

_NO_PARENT = ""

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
    # Autocommit mode: our code begins and ends transactions. The lane's one thread is the only user after this call.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0, cached_statements=64)


class SqliteTable(NodeTable):
    def __init__(self, connection: Connection, path: str) -> None:
        self._execute = connection.execute
        self._path = path

    def prepare(self, now_ms: int) -> None:
        """Makes the root, and ends the sessions of the process that had the file before."""
        if self.find(ROOT) is None:
            self._insert(ROOT, _NO_PARENT, Node(b"", 0, now_ms, now_ms))
        self._execute("DELETE FROM nodes WHERE owner != 0")

    def find(self, path: str) -> Node | None:
        row = self._execute(
            'SELECT value, version, created_ms, modified_ms, owner, "check" FROM nodes WHERE path = ?', (path,)
        ).fetchone()
        if row is None:
            return None
        node = Node(*row[:5])
        if row[5] != _check(path, node):
            raise StoreCorruptError(
                f"{self._path}: the value of {path} is damaged; restore the file from a backup, or delete this node"
            )
        return node

    def insert(self, path: str, node: Node) -> None:
        self._insert(path, parent_of(path), node)

    def _insert(self, path: str, parent: str, node: Node) -> None:
        self._execute(
            'INSERT INTO nodes (path, parent, value, version, created_ms, modified_ms, owner, "check")'
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (path, parent, node.value, node.version, node.created_ms, node.modified_ms, node.owner, _check(path, node)),
        )

    def update(self, path: str, node: Node) -> None:
        self._execute(
            'UPDATE nodes SET value = ?, version = ?, modified_ms = ?, "check" = ? WHERE path = ?',
            (node.value, node.version, node.modified_ms, _check(path, node), path),
        )

    def remove(self, path: str) -> None:
        self._execute("DELETE FROM nodes WHERE path = ?", (path,))

    def children(self, path: str) -> list[str]:
        rows = self._execute("SELECT path FROM nodes WHERE parent = ?", (path,)).fetchall()
        return sorted(name_of(row[0]) for row in rows)

    def has_children(self, path: str) -> bool:
        return self._execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone() is not None

    def owned_by(self, session_id: int) -> list[str]:
        rows = self._execute("SELECT path FROM nodes WHERE owner = ? ORDER BY path", (session_id,)).fetchall()
        return [row[0] for row in rows]

    def next_sequence(self, path: str) -> int:
        number: int = self._execute("SELECT sequence FROM nodes WHERE path = ?", (path,)).fetchone()[0]
        self._execute("UPDATE nodes SET sequence = ? WHERE path = ?", (number + 1, path))
        return number

    def savepoint(self) -> None:
        self._execute("SAVEPOINT step")

    def rollback(self) -> None:
        self._execute("ROLLBACK TO step")
        self._execute("RELEASE step")

    def release(self) -> None:
        self._execute("RELEASE step")


class SqliteEngine(Engine):
    def __init__(self, path: str, entropy: Entropy, lane: Offload, connection: Connection) -> None:
        self._path = path
        self._entropy = entropy
        self._lane = lane
        self._connection = connection
        self._tree = Tree(SqliteTable(connection, path))

    @classmethod
    async def open(cls, path: str, entropy: Entropy, lane: Offload, connect: Connect = connect_sqlite) -> SqliteEngine:
        """Opens the file. A failing device is MetadataUnavailableError too: no outcome is unknown before the first
        request."""
        try:
            connection = await lane(open_database, path, connect)
            engine = cls(path, entropy, lane, connection)
            try:
                await lane(engine._in_transaction, engine._prepare)
            except BaseException:
                await lane(connection.close)
                raise
        except OutcomeUnknownError as error:
            raise MetadataUnavailableError(f"the metadata store cannot be opened: {error}; check the device") from error
        return engine

    async def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        return await self._lane(self._run, jobs)

    async def aclose(self) -> None:
        await self._lane(self._connection.close)
        await self._lane.aclose()

    def _prepare(self) -> list[Outcome]:
        table = self._tree.table
        assert isinstance(table, SqliteTable)
        table.prepare(self._entropy.wall_ms())
        return []

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        now_ms = self._entropy.wall_ms()

        def run_all() -> list[Outcome]:
            return [run_job(self._tree, job, now_ms) for job in jobs]

        if any(changes_something(job) for job in jobs):
            return self._in_transaction(run_all)
        try:
            return run_all()
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    def _in_transaction(self, run_all: Callable[[], list[Outcome]]) -> list[Outcome]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = run_all()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._undo(error) from error
        return outcomes

    def _undo(self, error: sqlite3.Error) -> MetadataError:
        translated = translate(error, self._path)
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            return OutcomeUnknownError(f"{translated}; and it could not be undone: {second}")
        return translated


async def open_sqlite_server(
    path: str, runtime: Runtime, config: MetadataConfig, sqlite: SqliteConfig, connect: Connect = connect_sqlite
) -> LocalServer:
    """Opens the file, in a directory that it makes. Raises StoreLockedError, StoreCorruptError or
    MetadataUnavailableError."""
    directory, _, name = path.rpartition("/")
    await _make_directory(directory or ".", runtime)
    lane = runtime.offload(name=f"sqlite-{name}")
    try:
        engine = await SqliteEngine.open(path, runtime.entropy, lane, connect)
    except BaseException:
        await lane.aclose()
        raise
    return LocalServer(engine, runtime.entropy, config, group_operations_max=sqlite.group_operations_max)


def open_database(path: str, connect: Connect) -> Connection:
    """Opens the database; blocks, so it is for the engine's lane."""
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
    _make_durable(connection)


def _make_durable(connection: Connection) -> None:
    """Syncs the log, and copies it into the file as far as there is room."""
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_FULL:  # The log is synced before the copy.
            raise


def translate(error: sqlite3.Error, path: str) -> MetadataError:
    """Returns SQLite's error as ours. An I/O error is an unknown outcome: the log may or may not have reached the
    disk."""
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


def _check(path: str, node: Node) -> int:
    return zlib.crc32(node.value, zlib.crc32(f"{node.version} {path}".encode()))


async def _make_directory(directory: str, runtime: Runtime) -> None:
    disk = runtime.disk(directory, name="sqlite-directory")
    try:
        await disk.make_dir("")
    except DiskError as error:
        raise MetadataUnavailableError(f"the directory of the metadata store cannot be made: {error}") from error
    finally:
        await disk.aclose()
