"""The engine of the embedded store: one lane, one connection, one transaction and one sync per batch.

Group commit without a timer: requests that arrive while a commit runs form the next batch.
Failure:   a full disk undoes the batch and says so. Any other error of the device ends the engine: after a failed sync
           nobody knows what is on disk, so nothing is tried again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from magnetar.config.metadata import MetadataConfig
from magnetar.config.sqlite import SqliteConfig
from magnetar.errors import DiskError, MetadataError, MetadataUnavailableError, OutcomeUnknownError
from magnetar.metadata.local import Engine, Job, LocalServer, Outcome, changes_something, run_job
from magnetar.metadata.sqlite.database import Connect, Connection, connect_sqlite, open_database, translate
from magnetar.metadata.sqlite.table import SqliteTable
from magnetar.metadata.tree import Tree
from magnetar.runtime.entropy import Entropy
from magnetar.runtime.offload import Offload
from magnetar.runtime.runtime import Runtime


class SqliteEngine(Engine):
    def __init__(self, path: str, entropy: Entropy, lane: Offload, connection: Connection) -> None:
        self._path = path
        self._entropy = entropy
        self._lane = lane
        self._connection = connection
        self._tree = Tree(SqliteTable(connection, path))

    @classmethod
    async def open(cls, path: str, entropy: Entropy, lane: Offload, connect: Connect = connect_sqlite) -> SqliteEngine:
        connection = await lane(open_database, path, connect)
        engine = cls(path, entropy, lane, connection)
        try:
            await lane(engine._in_transaction, engine._prepare)
        except BaseException:
            await lane(connection.close)
            raise
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
    """Makes the file's directory if it is missing. StoreLockedError, StoreCorruptError or MetadataUnavailableError."""
    directory, _, name = path.rpartition("/")
    await _make_directory(directory or ".", runtime)
    lane = runtime.offload(name=f"sqlite-{name}")
    try:
        engine = await SqliteEngine.open(path, runtime.entropy, lane, connect)
    except BaseException:
        await lane.aclose()
        raise
    return LocalServer(engine, runtime.entropy, config, group_operations_max=sqlite.group_operations_max)


async def _make_directory(directory: str, runtime: Runtime) -> None:
    disk = runtime.disk(directory, name="sqlite-directory")
    try:
        await disk.make_dir("")
    except DiskError as error:
        raise MetadataUnavailableError(f"the directory of the metadata store cannot be made: {error}") from error
    finally:
        await disk.aclose()
