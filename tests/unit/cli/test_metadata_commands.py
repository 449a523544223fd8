"""`magnetar metadata` on an SQLite store: what people see, what programs get, and what is said when it fails."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from interop.metadata.samples import COOKIES, FULL
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.cookies import CookieStore
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from tests.commands import run_magnetar

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/metadata.db"


@pytest.fixture
def command(url: str) -> Command:
    def run(*arguments: str, metadata: str = url) -> subprocess.CompletedProcess[str]:
        return run_magnetar("metadata", *arguments, "--metadata", metadata)

    return run


@pytest.fixture
def cluster(command: Command, url: str) -> None:
    """An initialised store with two ledgers and a cookie in it."""
    assert command("init").returncode == 0

    async def fill() -> None:
        async with await open_store(Config(metadata=MetadataConfig(url=url)), SystemRuntime()) as store:
            paths = BookKeeperPaths()
            await LedgerMetadataStore(store, paths, SystemRuntime().entropy).create(FULL)
            await store.create(paths.ledger(LedgerId(2**40)), b"garbage", make_parents=True)
            await CookieStore(store, paths).create(COOKIES["host and port"])

    asyncio.run(fill())


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_friendly(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_init_makes_a_cluster_once(command: Command) -> None:
    made = document(command("init", "--json"))
    assert made["root"] == "/ledgers"
    assert UUID(made["instance_id"])
    assert_friendly(command("init"), "already", "/ledgers")
    assert document(command("init", "--if-missing", "--json")) == made


def test_a_cluster_of_brokers_is_made_once(command: Command, url: str) -> None:
    urls = ("--web-service-url", "http://b:8080", "--broker-service-url", "pulsar://b:6650")

    def init(*options: str) -> subprocess.CompletedProcess[str]:
        return run_magnetar("cluster", "init", *urls, "--set", "broker.cluster=east", "--metadata", url, *options)

    assert document(init("--json"))["cluster"] == "east"
    assert json.loads(command("get", "/admin/clusters/east", "--raw").stdout)["brokerServiceUrl"] == "pulsar://b:6650"
    assert command("get", "/admin/policies/public/default").returncode == 0
    assert_friendly(init(), "already", "/ledgers")
    assert init("--if-missing").returncode == 0


def test_a_cluster_shares_its_configuration_with_others_in_a_store_of_its_own(
    command: Command, url: str, tmp_path: Path
) -> None:
    shared = f"sqlite:{tmp_path / 'shared.db'}"
    urls = ("--web-service-url", "http://b:8080", "--broker-service-url", "pulsar://b:6650")
    assert run_magnetar("cluster", "init", *urls, "--metadata", url, "--configuration-metadata", shared).returncode == 0
    assert command("get", "/ledgers/LAYOUT").returncode == 0
    assert command("get", "/admin/clusters/standalone").returncode != 0
    assert run_magnetar("metadata", "get", "/admin/clusters/standalone", "--metadata", shared).returncode == 0


@pytest.mark.usefixtures("cluster")
def test_ls_lists_children_for_people_and_for_programs(command: Command) -> None:
    names = [row["name"] for row in document(command("ls", "/ledgers", "--json"))]
    assert names == ["00", "000", "INSTANCEID", "LAYOUT", "available", "cookies"]
    table = command("ls", "/ledgers").stdout.splitlines()
    assert table[0].split() == ["NAME", "BYTES", "VERSION", "EPHEMERAL"]
    assert [line.split()[0] for line in table[1:]] == names
    assert [row["name"] for row in document(command("ls", "--json"))] == ["ledgers"]


@pytest.mark.usefixtures("cluster")
def test_get_decodes_a_value_by_its_path(command: Command) -> None:
    cookie = document(command("get", "/ledgers/cookies/127.0.0.1:3181", "--json"))
    assert cookie["kind"] == "cookie"
    assert cookie["content"]["journal_dirs"] == ["/data/journal"]
    assert "HierarchicalLedgerManagerFactory" in command("get", "/ledgers/LAYOUT").stdout
    assert command("get", "/ledgers/LAYOUT", "--raw").stdout.startswith("2\norg.apache")
    ledger = command("get", "/ledgers/00/0000/L4711").stdout
    assert "CLOSED" in ledger
    assert "bookie-2.example:3181" in ledger


@pytest.mark.usefixtures("cluster")
def test_ledger_shows_everything_but_the_password(command: Command) -> None:
    shown = document(command("ledger", "4711", "--json"))
    assert shown["state"] == "CLOSED"
    assert (shown["ensemble_size"], shown["write_quorum"], shown["ack_quorum"]) == (3, 3, 2)
    assert (shown["last_entry_id"], shown["length"]) == (2_345_678, 9_876_543_210)
    assert len(shown["fragments"]) == 3
    assert shown["custom_metadata"]["application"] == "pulsar"
    assert shown["password"] == "(6 bytes)"
    assert shown["path"] == "/ledgers/00/0000/L4711"
    text = command("ledger", "4711")
    assert text.returncode == 0
    assert "secret" not in text.stdout
    assert "2022-04-15 05:20:00 UTC" in text.stdout
    assert "managed-ledger" in text.stdout
    assert "secret" in command("ledger", "4711", "--show-password").stdout


@pytest.mark.usefixtures("cluster")
def test_what_is_not_there_or_damaged_is_said_in_a_sentence(command: Command) -> None:
    assert_friendly(command("ledger", "5"), "ledger 5 does not exist")
    assert_friendly(command("get", "/nothing"), "/nothing does not exist")
    assert_friendly(command("ls", "/nothing"), "/nothing does not exist")
    assert_friendly(command("get", "nothing"), "begins with '/'")
    assert_friendly(command("ledger", str(2**40)), "metadata of ledger 1099511627776", "BookieMetadataFormatVersion")
    damaged = command("get", "/ledgers/000/0001/0995/1162/L7776")
    assert_friendly(damaged, "--raw")
    assert "problem" in damaged.stdout
    assert_friendly(command("ledger", "--", "-1"), "-1", code=2)
    assert_friendly(command("ledger", "x"), "x", code=2)


def test_a_store_that_is_not_there_is_not_made_by_looking_into_it(command: Command, tmp_path: Path) -> None:
    assert_friendly(command("ls"), "no store", "magnetar metadata init")
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_is_not_there_is_said_with_what_to_do(command: Command) -> None:
    document(command("init", "--json", "--set", "metadata.ledgers_root=/elsewhere"))
    assert_friendly(command("ledger", "5"), "no cluster exists at /ledgers", "magnetar metadata init")


def test_urls_that_make_no_sense_are_refused(command: Command) -> None:
    assert_friendly(command("ls", metadata="memory:"), "memory:", code=2)
    assert_friendly(command("ls", metadata="http://example"), "http://example", code=2)
    assert_friendly(command("ls", metadata="nothing"), "nothing", code=2)


def test_a_server_that_is_not_there_is_said_in_one_line(command: Command) -> None:
    done = command("ls", "--set", "metadata.connect_timeout_ms=200", metadata="zk://127.0.0.1:1")
    assert_friendly(done, "127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1


def test_a_log_level_that_was_set_shows_what_a_command_does(command: Command) -> None:
    settings = ("--set", "metadata.connect_timeout_ms=200", "--set", "logging.level=INFO")
    done = command("ls", *settings, metadata="zk://127.0.0.1:1")
    logged = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert any(line["level"] == "INFO" and "127.0.0.1" in line["message"] for line in logged)
