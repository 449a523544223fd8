"""The embedded store on a disk that forgets what was not synced."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import apsw

from magnetar.config.metadata import MetadataConfig, SqliteConfig
from magnetar.errors import MetadataError
from magnetar.metadata.local import LocalServer
from magnetar.metadata.sqlite import Connection, open_sqlite_server
from magnetar.metadata.store import Create, Put
from magnetar.runtime.system import SystemRuntime
from soak.lossy_vfs import Acknowledged, Recorder, Synced, lose_power

WRITES = 60
CRASHES = 150
CONFIG = MetadataConfig(url="memory:")


async def open_recorded(recorder: Recorder, directory: Path, *settings: str) -> LocalServer:
    def connect(path: str) -> Connection:
        return _Overridden(apsw.Connection(path, vfs=recorder.name), settings)

    return await open_sqlite_server(str(directory / "metadata.db"), SystemRuntime(), CONFIG, SqliteConfig(), connect)


async def record_writes(recorder: Recorder, directory: Path, *settings: str) -> None:
    server = await open_recorded(recorder, directory, *settings)
    store = server.connect()
    await store.transact([Create("/a", b"0"), Create("/b", b"0")])
    for number in range(1, WRITES + 1):
        value = str(number).encode().rjust(2_000)  # Large enough that checkpoints happen on the way.
        await store.transact([Put("/a", value), Put("/b", value)])
        recorder.steps.append(Acknowledged(number))
    await server.aclose()


class _Overridden:
    """A connection whose settings are weakened after the store has made its own."""

    def __init__(self, connection: apsw.Connection, settings: tuple[str, ...]) -> None:
        self._connection = connection
        self._settings = settings

    def execute(self, sql: str, arguments: tuple[object, ...] = ()) -> apsw.Cursor:
        found = self._connection.execute(sql, arguments)
        if sql.startswith("PRAGMA temp_store"):  # The last of the store's own settings.
            for setting in self._settings:
                self._connection.execute(setting)
        return found

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        self._connection.close()


async def count_losses(recorder: Recorder, tmp_path: Path) -> int:
    """Crashes at random points; a loss is an acknowledged number that is missing, incomplete or unreadable."""
    choices = random.Random(4711)
    first = recorder.steps.index(Acknowledged(1))
    losses = 0
    for crash in range(CRASHES):
        directory = tmp_path / f"crash-{crash}"
        directory.mkdir()
        acknowledged = lose_power(recorder.steps, choices.randint(first, len(recorder.steps)), directory, choices)
        losses += not await _holds(directory, acknowledged)
    return losses


async def _holds(directory: Path, acknowledged: int) -> bool:
    try:
        server = await open_sqlite_server(str(directory / "metadata.db"), SystemRuntime(), CONFIG, SqliteConfig())
    except MetadataError:
        return False
    try:
        store = server.connect()
        nodes = [await store.get("/a"), await store.get("/b")]
        numbers = [int(node.value) for node in nodes if node is not None]
        return len(numbers) == 2 and numbers[0] == numbers[1] and numbers[0] >= acknowledged
    except MetadataError:
        return False
    finally:
        await server.aclose()


async def test_an_acknowledged_write_survives_a_power_loss_at_any_point(tmp_path: Path) -> None:
    recorder = Recorder()
    await record_writes(recorder, tmp_path, "PRAGMA wal_autocheckpoint=20")
    assert await count_losses(recorder, tmp_path) == 0


async def test_the_power_loss_test_notices_a_store_that_does_not_sync_its_commits(tmp_path: Path) -> None:
    recorder = Recorder()
    await record_writes(recorder, tmp_path, "PRAGMA synchronous=NORMAL")
    assert await count_losses(recorder, tmp_path) > 0


async def value_in(server: LocalServer) -> bytes:
    node = await server.connect().get("/a")
    assert node is not None
    return node.value


async def test_what_is_shown_after_a_kill_survives_a_power_loss(tmp_path: Path) -> None:
    """A commit that was not synced when its process was killed is only in the kernel's memory. The next reads it."""
    recorder = Recorder()
    server = await open_recorded(recorder, tmp_path)
    store = server.connect()
    await store.create("/a", b"1")
    synced = len(recorder.steps)
    await store.put("/a", b"2")
    shutil.copytree(tmp_path, tmp_path / "killed")
    steps = recorder.steps[:synced] + [step for step in recorder.steps[synced:] if not isinstance(step, Synced)]
    await server.aclose()

    again = Recorder(steps=steps)
    server = await open_recorded(again, tmp_path / "killed")
    assert await value_in(server) == b"2"
    losses = [tmp_path / f"loss-{number}" for number in range(10)]
    for number, directory in enumerate(losses):
        directory.mkdir()
        lose_power(again.steps, len(again.steps), directory, random.Random(number))
    await server.aclose()
    for directory in losses:
        server = await open_recorded(Recorder(), directory)
        assert await value_in(server) == b"2"
        await server.aclose()
