"""`magnetar bookie cookie` and `format`: what an operator sees, and what is refused."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from magnetar.bookie.directories import COOKIE_FILE, LOCK_FILE, PORT_FILE, DirectoryLayout, open_directories
from magnetar.bookie.identity import Identity, establish
from magnetar.cli.bookie import repair
from magnetar.cli.bookie.repair import cookie_app, format_bookie
from magnetar.config.bookie import BookieConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import (
    BookieRegisteredError,
    ConfigError,
    CookieMismatchError,
    DiskError,
    FileLockedError,
    MagnetarError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.cookies import CookieStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemRuntime

PATHS = BookKeeperPaths()
ID = "127.0.0.1:3181"

app = typer.Typer()
app.add_typer(cookie_app, name="cookie")
app.command("format")(format_bookie)


class Operator:
    """A cluster in SQLite, a bookie's directory, and a shell."""

    def __init__(self, place: Path) -> None:
        self.url = f"sqlite:{place}/metadata.db"
        self.dir = place / "bookie"

    def run(self, *args: object) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    def json(self, *args: object) -> Any:
        result = self.run(*args, "--json")
        assert result.exit_code == 0, result.exception
        return json.loads(result.stdout)

    def error(self, kind: type[MagnetarError], *args: object) -> str:
        result = self.run(*args)
        assert isinstance(result.exception, kind), result.exception
        return str(result.exception)

    def with_store(self, work: Callable[[MetadataStore], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            config = Config(metadata=MetadataConfig(url=self.url))
            async with await open_store(config, SystemRuntime()) as store:
                return await work(store)

        return asyncio.run(main())

    def start_bookie(self) -> Identity:
        async def start(store: MetadataStore) -> Identity:
            config = BookieConfig(dir=str(self.dir))
            directories = await open_directories(SystemRuntime(), DirectoryLayout.from_config(config, base="/"))
            try:
                return await establish(directories, store, PATHS, config, port=3181)
            finally:
                await directories.aclose()

        found = self.with_store(start)
        assert isinstance(found, Identity)
        return found


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    operator = Operator(tmp_path)
    operator.with_store(lambda store: init_cluster(store, PATHS, SystemRuntime().entropy))
    operator.start_bookie()
    return operator


def test_get_prints_the_cookie(operator: Operator) -> None:
    found = operator.json("cookie", "get", ID, "--metadata", operator.url)
    assert found["bookie_id"] == ID
    assert found["journal_dirs"] == [f"{operator.dir}/journal"]
    assert found["index_dirs"] == [f"{operator.dir}/ledgers"]
    table = operator.run("cookie", "get", ID, "--metadata", operator.url).stdout
    assert f"{operator.dir}/ledgers" in table


def test_get_writes_the_bytes_that_a_directory_has(operator: Operator) -> None:
    raw = operator.run("cookie", "get", ID, "--raw", "--metadata", operator.url)
    assert raw.stdout_bytes == (operator.dir / "ledgers" / COOKIE_FILE).read_bytes()


def test_a_missing_cookie_is_named_with_the_way_to_list_them(operator: Operator) -> None:
    for command in (("get",), ("delete", "--yes")):
        text = operator.error(NoNodeError, "cookie", command[0], "b9", *command[1:], "--metadata", operator.url)
        assert "magnetar metadata ls /ledgers/cookies" in text


def test_what_is_no_bookie_id_is_refused(operator: Operator) -> None:
    assert "is not a bookie id" in operator.error(ConfigError, "cookie", "get", "a/b", "--metadata", operator.url)


def test_a_deleted_cookie_can_be_written_again_from_a_directory(operator: Operator) -> None:
    (operator.dir / "journal" / "0.txn").write_bytes(b"data")
    file = operator.dir / "journal" / COOKIE_FILE
    assert operator.json("cookie", "delete", ID, "--yes", "--metadata", operator.url) == {"deleted": ID}
    with pytest.raises(CookieMismatchError, match="magnetar bookie cookie create"):
        operator.start_bookie()
    operator.json("cookie", "create", ID, "--file", file, "--metadata", operator.url)
    assert not operator.start_bookie().is_first_start


def test_create_refuses_what_is_there_or_does_not_belong_there(operator: Operator, tmp_path: Path) -> None:
    file = operator.dir / "journal" / COOKIE_FILE

    def error(kind: type[MagnetarError], bookie: str, path: Path) -> str:
        return operator.error(kind, "cookie", "create", bookie, "--file", path, "--metadata", operator.url)

    assert "has a cookie already" in error(NodeExistsError, ID, file)
    assert f"is the cookie of bookie {ID}, not of b9" in error(CookieMismatchError, "b9", file)
    assert "cannot read" in error(DiskError, ID, tmp_path / "nowhere")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"5\nnonsense")
    error(MalformedMetadataError, ID, damaged)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(file.read_bytes().replace(b'instanceId: "', b'instanceId: "x'))
    assert "belongs to the cluster with instance id x" in error(CookieMismatchError, ID, foreign)


def test_delete_asks_first_and_is_refused_where_nobody_can_be_asked(operator: Operator) -> None:
    text = operator.error(ConfigError, "cookie", "delete", ID, "--metadata", operator.url)
    assert "give --yes" in text
    operator.json("cookie", "get", ID, "--metadata", operator.url)


@pytest.mark.parametrize("readonly", [False, True])
def test_the_cookie_of_a_registered_bookie_is_not_deleted(operator: Operator, readonly: bool) -> None:
    async def register(store: MetadataStore) -> None:
        await store.create(PATHS.registration(ID, readonly=readonly))  # type: ignore[arg-type]

    operator.with_store(register)
    text = operator.error(BookieRegisteredError, "cookie", "delete", ID, "--yes", "--metadata", operator.url)
    assert "stop it and wait" in text
    operator.json("cookie", "get", ID, "--metadata", operator.url)


def test_a_damaged_cookie_can_be_deleted(operator: Operator) -> None:
    async def damage(store: MetadataStore) -> None:
        await store.put(PATHS.cookie(ID), b"nonsense")  # type: ignore[arg-type]

    operator.with_store(damage)
    operator.json("cookie", "delete", ID, "--yes", "--metadata", operator.url)


@pytest.mark.parametrize("url", ["memory:", "sqlite:/nowhere/at/all.db"])
def test_a_store_that_cannot_have_the_cookie_is_refused(operator: Operator, url: str) -> None:
    operator.error(ConfigError if url == "memory:" else MetadataError, "cookie", "get", ID, "--metadata", url)


# --- format -----------------------------------------------------------------------------------------------------------


def test_format_empties_the_directories_and_a_new_bookie_can_begin(operator: Operator) -> None:
    (operator.dir / "ledgers" / "index").mkdir()
    (operator.dir / "ledgers" / "index" / "000001.sst").write_bytes(b"data")
    (operator.dir / "journal" / "0.txn").write_bytes(b"data")
    keep = operator.dir / "notes.txt"
    keep.write_text("not the bookie's")
    done = operator.json("format", "--dir", operator.dir, "--yes")
    assert done == {"formatted": [f"{operator.dir}/{name}" for name in ("journal", "ledgers")]}
    for name in ("journal", "ledgers"):
        assert [path.name for path in (operator.dir / name).iterdir()] == ["lock"]
    assert keep.exists()
    with pytest.raises(CookieMismatchError, match="magnetar bookie cookie delete"):
        operator.start_bookie()
    operator.json("cookie", "delete", ID, "--yes", "--metadata", operator.url)
    assert operator.start_bookie().is_first_start


def test_format_asks_first_and_is_refused_where_nobody_can_be_asked(operator: Operator) -> None:
    assert "give --yes" in operator.error(ConfigError, "format", "--dir", operator.dir)
    assert (operator.dir / "ledgers" / PORT_FILE).exists()


def test_format_names_directories_that_do_not_exist(operator: Operator, tmp_path: Path) -> None:
    text = operator.error(DiskError, "format", "--dir", tmp_path / "nowhere", "--yes")
    assert "none of these directories exists" in text
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("held", ["journal", "ledgers"])
def test_format_leaves_a_running_bookie_alone(operator: Operator, held: str) -> None:
    with (operator.dir / held / LOCK_FILE).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is locked by" in operator.error(FileLockedError, "format", "--dir", operator.dir, "--yes")
    assert not operator.start_bookie().is_first_start


def test_an_interrupted_format_leaves_nothing_that_could_start(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(directory: object) -> None:
        raise DiskError("the power went off")

    with monkeypatch.context() as patched:
        patched.setattr(repair, "_remove_all", stop)
        operator.error(DiskError, "format", "--dir", operator.dir, "--yes")
    assert (operator.dir / "ledgers" / PORT_FILE).exists(), "the rest is still there"
    with pytest.raises(CookieMismatchError):
        operator.start_bookie()


def test_format_of_named_directories_takes_those(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    dirs = {name: tmp_path / name for name in ("journal_dirs", "ledger_dirs")}
    for path in dirs.values():
        path.mkdir()
        (path / "data").write_bytes(b"data")
    settings = [part for name, path in dirs.items() for part in ("--set", f"bookie.{name}={path}")]
    operator.json("format", *settings, "--yes")
    assert all(not (path / "data").exists() for path in dirs.values())


def test_the_cookie_stores_read_is_the_same_after_a_round_trip(operator: Operator) -> None:
    stored = operator.with_store(lambda store: CookieStore(store, PATHS).read(ID))  # type: ignore[arg-type]
    assert stored.value == operator.start_bookie().cookie
