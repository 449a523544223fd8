"""`magnetar ledger` against three real bookies: what people see, what programs get, and what is said when it fails."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.testing.processes.child import Child, wait_for
from magnetar.testing.processes.servers import BookieProcess, init_cluster
from magnetar.testing.processes.zookeeper import ZooKeeperServer
from tests.commands import clean_environment, run_magnetar

TIMEOUT_S = 60
MAGNETAR = [sys.executable, "-m", "magnetar.cli.main"]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster that the tests of this file share; each makes ledgers of its own."""
    directory = tmp_path_factory.mktemp("cluster")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(directory / "zookeeper"))
        init_cluster(server.url)
        for number in range(3):
            bookie = BookieProcess(directory / f"bookie-{number}", server.url)
            bookie.start()
            stack.callback(bookie.stop)
        yield server.url


def run(*arguments: str, metadata: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return run_magnetar("ledger", *arguments, "--metadata", metadata, text=text or "")


@pytest.fixture
def ledger(url: str) -> Command:
    def command(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return run(*arguments, metadata=url, text=text)

    return command


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def documents(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_friendly(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_lines_of_the_input_become_entries_and_come_back(ledger: Command) -> None:
    written = document(ledger("write", "--json", text="first\nsecond\n\nlast"))
    assert (written["entries"], written["closed"], written["last_entry_id"]) == (4, True, 3)
    ledger_id = str(written["ledger_id"])
    entries = documents(ledger("read", ledger_id, "--json"))
    assert [entry["text"] for entry in entries] == ["first", "second", "", "last"]
    assert [entry["entry_id"] for entry in entries] == [0, 1, 2, 3]
    assert ledger("read", ledger_id, "--raw").stdout == "first\nsecond\n\nlast\n"
    table = ledger("read", ledger_id, "--first", "1", "--last", "1").stdout.splitlines()
    assert [line.split() for line in table] == [["ENTRY", "ID", "BYTES", "PAYLOAD"], ["1", "6", "second"]]


def test_made_up_entries_are_written_and_counted(ledger: Command) -> None:
    written = document(ledger("write", "--count", "500", "--size", "100", "--in-flight", "50", "--json"))
    assert (written["entries"], written["bytes"]) == (500, 50_000)
    about = document(ledger("info", str(written["ledger_id"]), "--json"))
    assert (about["state"], about["last_entry_id"], about["length"]) == ("CLOSED", 499, 50_000)


def test_created_ledger_is_written_once(ledger: Command) -> None:
    made = document(ledger("create", "--ensemble", "2", "--custom", "owner=me", "--json"))
    assert (made["state"], made["ensemble_size"], made["custom_metadata"]["owner"]) == ("OPEN", 2, "me")
    ledger_id = str(made["ledger_id"])
    assert document(ledger("write", ledger_id, "--json", text="one\n"))["entries"] == 1
    assert_friendly(ledger("write", ledger_id, text="two\n"), "cannot be written", "Omit the id")
    assert [entry["text"] for entry in documents(ledger("read", ledger_id, "--json"))] == ["one"]


def test_ledger_left_open_is_recovered(ledger: Command) -> None:
    written = document(ledger("write", "--count", "20", "--in-flight", "1", "--keep-open", "--json"))
    ledger_id = str(written["ledger_id"])
    about = document(ledger("info", ledger_id, "--json"))
    assert (about["state"], about["last_entry_id"]) == ("OPEN", None)
    assert about["last_confirmed"] in (18, 19)
    assert ledger_id in [str(row["ledger_id"]) for row in documents(ledger("ls", "--state", "open", "--json"))]
    (recovered,) = documents(ledger("recover", ledger_id, "--json"))
    assert (recovered["last_entry_id"], recovered["length"]) == (19, 20 * 1024)
    assert document(ledger("info", ledger_id, "--json"))["state"] == "CLOSED"
    (again,) = documents(ledger("recover", ledger_id, "--json"))
    assert again["last_entry_id"] == 19
    assert len(documents(ledger("read", ledger_id, "--json"))) == 20


def test_one_ledger_that_cannot_be_recovered_does_not_hide_the_others(ledger: Command) -> None:
    ledger_id = str(document(ledger("write", "--count", "1", "--keep-open", "--json"))["ledger_id"])
    done = ledger("recover", "999999", ledger_id, "--json")
    assert_friendly(done, "999999", "does not exist")
    assert [json.loads(line)["ledger_id"] for line in done.stdout.splitlines()] == [int(ledger_id)]


def test_tail_follows_a_writer_until_the_ledger_is_closed(ledger: Command, url: str, tmp_path: Path) -> None:
    ledger_id = str(document(ledger("create", "--json"))["ledger_id"])
    output = tmp_path / "tail.out"
    command = [*MAGNETAR, "ledger", "tail", ledger_id, "--first", "0", "--json", "--metadata", url]
    with output.open("wb") as file:
        child = Child(command, log=tmp_path / "tail.log", stdout=file)
        try:
            assert document(ledger("write", ledger_id, "--json", text="a\nb\nc\n"))["entries"] == 3
            wait_for(lambda: not child.is_running, what="the tail ends with the ledger", timeout=TIMEOUT_S)
        finally:
            child.kill()
    assert [json.loads(line)["text"] for line in output.read_text().splitlines()] == ["a", "b", "c"]


def test_tail_ends_after_as_many_entries_as_were_asked_for(ledger: Command) -> None:
    ledger_id = str(document(ledger("write", "--count", "9", "--in-flight", "1", "--keep-open", "--json"))["ledger_id"])
    entries = documents(ledger("tail", ledger_id, "--first", "2", "--count", "3", "--json"))
    assert [entry["entry_id"] for entry in entries] == [2, 3, 4]


def test_open_ledger_is_read_without_disturbing_its_writer(ledger: Command) -> None:
    ledger_id = str(document(ledger("write", "--count", "5", "--in-flight", "1", "--keep-open", "--json"))["ledger_id"])
    done = ledger("read", ledger_id, "--json")
    assert len(documents(done)) >= 4
    assert "is OPEN; its last confirmed entry is" in done.stderr
    assert document(ledger("info", ledger_id, "--json"))["state"] == "OPEN"
    assert len(documents(ledger("read", ledger_id, "--unconfirmed", "--last", "4", "--json"))) == 5


def test_bytes_that_are_no_text_come_as_base64(url: str) -> None:
    done = subprocess.run(
        [*MAGNETAR, "ledger", "write", "--json", "--metadata", url],
        env=clean_environment(),
        capture_output=True,
        input=b"\xff\xfe\n",
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    ledger_id = str(json.loads(done.stdout)["ledger_id"])
    (entry,) = documents(run("read", ledger_id, "--json", metadata=url))
    assert (entry["base64"], entry["bytes"]) == ("//4=", 2)
    assert "0xfffe" in run("read", ledger_id, metadata=url).stdout


def test_ledgers_are_listed_and_deleted(ledger: Command) -> None:
    ledger_id = str(document(ledger("write", "--count", "3", "--size", "10", "--json"))["ledger_id"])
    rows = {str(row["ledger_id"]): row for row in documents(ledger("ls", "--json"))}
    assert (rows[ledger_id]["state"], rows[ledger_id]["last_entry_id"], rows[ledger_id]["length"]) == ("CLOSED", 2, 30)
    assert rows[ledger_id]["quorums"] == "3/3/2"
    assert_friendly(ledger("delete", ledger_id), "--yes", code=2)
    assert documents(ledger("delete", ledger_id, "--yes", "--json"))[0]["deleted"] is True
    assert_friendly(ledger("read", ledger_id), f"ledger {ledger_id} does not exist")
    assert_friendly(ledger("delete", ledger_id, "--yes"), "does not exist")
    assert ledger_id not in [str(row["ledger_id"]) for row in documents(ledger("ls", "--json"))]


def test_wrong_password_is_told_plainly(ledger: Command, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    written = document(ledger("write", "--password-file", str(file), "--digest", "hmac", "--json", text="x\n"))
    ledger_id = str(written["ledger_id"])
    assert_friendly(ledger("read", ledger_id), "another password")
    assert_friendly(ledger("read", ledger_id, "--password", "guess"), "another password")
    assert_friendly(ledger("recover", ledger_id, "--password", "guess"), "another password")
    assert documents(ledger("read", ledger_id, "--password", "secret", "--json"))[0]["text"] == "x"


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("create", "--ensemble", "9"), ("not enough bookies", "start more bookies"), 1),
        (("create", "--ensemble", "3", "--write-quorum", "4"), ("write quorum 4",), 2),
        (("create", "--digest", "md5"), ("crc32c",), 2),
        (("create", "--custom", "nothing"), ("KEY=VALUE",), 2),
        (("write", "999999"), ("does not exist",), 1),
        (("read", "999999"), ("does not exist",), 1),
        (("read", "0", "--unconfirmed"), ("--last",), 2),
        (("ls", "--state", "ajar"), ("in_recovery",), 2),
        (("read", "0", "--password", "a", "--password-file", "b"), ("exclude each other",), 2),
    ],
)
def test_mistakes_are_answered_with_what_to_do(
    ledger: Command, arguments: tuple[str, ...], words: tuple[str, ...], code: int
) -> None:
    assert_friendly(ledger(*arguments), *words, code=code)


def test_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert_friendly(run("ls", metadata=f"sqlite:{tmp_path}/none.db"), "there is no store", "magnetar metadata init")
    assert_friendly(run("ls", metadata="memory:"), "memory:", code=2)
