"""What the embedded store says when its file is locked, damaged, foreign, or on a disk that fails."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.config.metadata import MetadataConfig, SqliteConfig
from magnetar.config.root import Config
from magnetar.errors import (
    ConfigError,
    MetadataError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreCorruptError,
    StoreLockedError,
)
from magnetar.metadata.local import LocalServer
from magnetar.metadata.open import open_store
from magnetar.metadata.sqlite import Connect, Connection, connect_sqlite, open_sqlite_server
from magnetar.metadata.store import CreateMode, MetadataStore, SessionState
from magnetar.runtime.system import SystemRuntime

CONFIG = MetadataConfig(url="memory:")


async def open_server(path: Path, connect: Connect = connect_sqlite) -> LocalServer:
    return await open_sqlite_server(str(path), SystemRuntime(), CONFIG, SqliteConfig(), connect)


async def open_url(url: str) -> MetadataStore:
    return await open_store(Config(metadata=MetadataConfig(url=url)), SystemRuntime())


async def test_values_versions_and_sequences_are_there_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/made/on/the/way/metadata.db"
    async with await open_url(url) as store:
        await store.create("/a", b"one")
        await store.put("/a", b"two")
        first = await store.create("/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await store.delete(first)
        await store.create("/e", mode=CreateMode.EPHEMERAL)
    async with await open_url(url) as store:
        node = await store.get("/a")
        assert node is not None
        assert (node.value, node.version) == (b"two", 1)
        assert await store.create("/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL) > first
        assert await store.get("/e") is None


HOLDER = """
import asyncio, sys
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime

async def main():
    async with await open_store(Config(metadata=MetadataConfig(url=sys.argv[1])), SystemRuntime()):
        print("open", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


async def test_a_file_that_another_process_has_open_is_refused_until_that_one_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/metadata.db"
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreLockedError, match="another process"):
            await open_url(url)
    finally:
        holder.kill()
        await holder.communicate()
    async with await open_url(url) as store:
        assert await store.get("/") is not None


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"these are my precious notes, not a database\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreCorruptError, match="damaged"):
        await open_server(path)
    assert path.read_bytes() == before


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE precious (x)")
    foreign.commit()
    foreign.close()
    with pytest.raises(StoreCorruptError, match="another program"):
        await open_server(path)
    foreign = sqlite3.connect(path)
    assert foreign.execute("SELECT name FROM sqlite_master").fetchall() == [("precious",)]
    foreign.close()


async def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await (await open_server(path)).aclose()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(StoreCorruptError, match="schema 99"):
        await open_server(path)


async def fill(path: Path) -> None:
    server = await open_server(path)
    store = server.connect()
    for n in range(40):
        await store.create(f"/n{n}", f"value {n} ".encode() * 50)
    await server.aclose()


async def read_all(path: Path) -> list[str]:
    """What became of each of the forty nodes: right, or the name of an error; anything else is a wrong answer."""
    try:
        server = await open_server(path)
    except MetadataError as error:
        return [type(error).__name__]
    store = server.connect()
    found = []
    for n in range(40):
        try:
            node = await store.get(f"/n{n}")
        except MetadataError as error:
            found.append(type(error).__name__)
        else:
            right = node is not None and node.value == f"value {n} ".encode() * 50
            found.append("right" if right else "wrong" if node is not None else "missing")
    await server.aclose()
    return found


async def test_flipped_bits_are_reported_and_never_returned_as_a_value(tmp_path: Path) -> None:
    await fill(tmp_path / "whole.db")
    whole = (tmp_path / "whole.db").read_bytes()
    choices = random.Random(99)
    outcomes: set[str] = set()
    for flip in range(150):
        damaged = bytearray(whole)
        damaged[choices.randrange(len(damaged))] ^= 1 << choices.randrange(8)
        path = tmp_path / f"flip{flip}.db"
        path.write_bytes(damaged)
        outcomes |= set(await read_all(path))
    assert "wrong" not in outcomes
    assert {"right", "StoreCorruptError"} <= outcomes


async def test_a_damaged_value_is_named_and_the_others_are_still_served(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await fill(path)
    path.write_bytes(path.read_bytes().replace(b"value 7 ", b"value 8 "))
    found = await read_all(path)
    assert (found[7], found.count("right")) == ("StoreCorruptError", 39)


async def test_a_full_disk_refuses_the_write_and_nothing_else(tmp_path: Path) -> None:
    connections: list[sqlite3.Connection] = []

    def connect(path: str) -> Connection:
        connections.append(connect_sqlite(path))
        return connections[-1]

    server = await open_server(tmp_path / "metadata.db", connect)
    store = server.connect()
    await store.create("/small", b"kept")
    connections[0].execute("PRAGMA max_page_count=12")
    with pytest.raises(MetadataUnavailableError, match="no room left") as caught:
        await store.create("/large", bytes(500_000))
    assert caught.value.retryable
    node = await store.get("/small")
    assert node is not None
    assert await store.get("/large") is None
    connections[0].execute("PRAGMA max_page_count=10000")
    await store.create("/large", bytes(500_000))
    assert await store.get("/large") is not None
    await server.aclose()


class FailingCommits:
    """A device that fails at the moment of a commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.fail = False

    def execute(self, sql: str, arguments: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if self.fail and sql == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._connection.execute(sql, arguments)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        self._connection.close()


async def test_a_commit_that_the_device_fails_is_unknown_and_the_store_stops(tmp_path: Path) -> None:
    failing: list[FailingCommits] = []

    def connect(path: str) -> Connection:
        failing.append(FailingCommits(connect_sqlite(path)))
        return failing[-1]

    server = await open_server(tmp_path / "metadata.db", connect)
    store = server.connect(MetadataConfig(url="memory:", operation_timeout_ms=200))
    await store.create("/a", b"kept")
    failing[0].fail = True
    with pytest.raises(OutcomeUnknownError):
        await store.put("/a", b"lost?")
    assert store.session.state is SessionState.CLOSED
    failing[0].fail = False
    with pytest.raises(StoreClosedError, match=r"stopped after.*disk I/O error"):
        await store.put("/a", b"never retried")
    await server.aclose()


async def test_a_device_that_fails_at_the_start_is_an_error_that_says_so_and_no_unknown_outcome(tmp_path: Path) -> None:
    def connect(path: str) -> Connection:
        failing = FailingCommits(connect_sqlite(path))
        failing.fail = True
        return failing

    with pytest.raises(MetadataUnavailableError, match=r"cannot be opened.*disk I/O error.*check the device"):
        await open_server(tmp_path / "metadata.db", connect)


async def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetadataUnavailableError, match=r"cannot be made.*file"):
        await open_url(f"sqlite:{tmp_path}/file/below/metadata.db")


@pytest.mark.parametrize("url", ["", "nothing", "sqlite:", "memory:x", "etcd://host", "zk:", "zk://", "zk:///chroot"])
async def test_a_url_that_names_no_store_is_refused_with_the_forms_that_do(url: str) -> None:
    with pytest.raises(ConfigError, match=r"zk://|metadata\.url"):
        await open_url(url)
