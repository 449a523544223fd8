"""`magnetar bookie journal|entrylog|ledger|index|readonly` on the files of a bookie that really ran."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.system import SystemRuntime
from magnetar.storage.entry_log.format import FOOTER_BYTES, decode_footer
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import AddEntry, ReadEntry, ReadResponse
from tests.commands import run_magnetar
from tests.integration.bookie.conftest import KEY, Client, Node, entry

PAYLOAD = b"x" * 20_000
FIRST_JOURNAL = "0000000000000001.journal"
FENCED_ONLY = 7
ENTRY_BYTES = 20_036


class Stopped:
    """A bookie's directory, and a shell."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.journal = directory / "journal" / "journal"
        self.log = directory / "ledgers" / "logs" / "00000000.log"
        self.index = directory / "ledgers" / "index"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = run_magnetar("bookie", *arguments, "--dir", str(self.dir))
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def table(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def lines(self, *arguments: str, code: int = 0) -> dict[str, list[dict[str, Any]]]:
        """By type."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        found: dict[str, list[dict[str, Any]]] = {}
        for line in map(json.loads, done.stdout.splitlines()):
            found.setdefault(line["type"], []).append(line)
        return found

    def document(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def ledgers(self) -> dict[int, tuple[int, int | None, bool, bool]]:
        rows = self.lines("ledger", "ls")["ledger"]
        return {row["ledger"]: (row["entries"], row["last_entry"], row["fenced"], row["limbo"]) for row in rows}

    @property
    def awaits_limbo(self) -> bool:
        """Then it does not start before that command."""
        return (self.dir / "ledgers" / "REPAIRING").exists()

    def content(self) -> dict[str, str]:
        """Of every file but the locks, which name the process that had them last."""
        files = [path for path in sorted(self.dir.rglob("*")) if path.is_file() and path.name != "lock"]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


async def fill(client: Client) -> None:
    for ledger_id in (1, 2):
        for entry_id in range(5):
            answer = await client.ask(AddEntry(ledger_id, entry_id, KEY, entry(ledger_id, entry_id, PAYLOAD)))
            assert answer.code is Code.EOK
    for ledger_id in (2, FENCED_ONLY):
        await client.ask(ReadEntry(ledger_id, LAST_ENTRY, fence=True, master_key=KEY))


@asynccontextmanager
async def new_node(directory: Path) -> AsyncIterator[Node]:
    runtime, config = SystemRuntime(), MetadataConfig(url="memory:")
    server = MemoryServer(runtime.entropy, config)
    store = server.connect()
    await init_cluster(store, BookKeeperPaths(config.ledgers_root), runtime.entropy)
    node = Node(directory, store)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await server.aclose()


async def make_bookies(place: Path) -> None:
    """`closed` was stopped in peace; `killed` is how it would have been found after a kill just before."""
    async with new_node(place / "closed") as node:
        await fill(await node.client())
        shutil.copytree(place / "closed", place / "killed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bookies")
    asyncio.run(make_bookies(place))
    return place


@pytest.fixture
def closed(made: Path, tmp_path: Path) -> Stopped:
    return Stopped(Path(shutil.copytree(made / "closed", tmp_path / "closed")))


@pytest.fixture
def killed(made: Path, tmp_path: Path) -> Stopped:
    return Stopped(Path(shutil.copytree(made / "killed", tmp_path / "killed")))


@pytest.fixture
def unfinished(closed: Stopped) -> Stopped:
    """All is flushed and indexed, and the log ends after its last entry: a kill leaves it like this forever."""
    content = closed.log.read_bytes()
    end = decode_footer(content[-FOOTER_BYTES:], 0)
    closed.log.write_bytes(content[:end])
    return closed


@pytest.fixture
def running(closed: Stopped) -> Iterator[Stopped]:
    """Its lock is held, as a running bookie does."""
    with (closed.dir / "ledgers" / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield closed


# --- journal ----------------------------------------------------------------------------------------------------------


def test_the_journal_is_listed_with_groups_records_files_and_mark(closed: Stopped) -> None:
    found = closed.lines("journal", "read")
    adds = [row for row in found["record"] if row["kind"] == "adds"]
    assert [(row["ledger"], row["first_entry"]) for row in adds] == [(n, e) for n in (1, 2) for e in range(5)]
    assert {row["bytes"] for row in adds} == {ENTRY_BYTES}
    assert [row["ledger"] for row in found["record"] if row["kind"] == "fence"] == [2, FENCED_ONLY]
    assert [row["sequence"] for row in found["record"]] == list(range(1, 13))
    assert sum(group["records"] for group in found["group"]) == 12
    assert found["file"][0]["state"] == "closed"
    assert (found["journal"][0]["mark"], found["journal"][0]["records_behind_mark"]) == (12, 0)


def test_people_get_a_table_of_the_journal(closed: Stopped) -> None:
    shown = closed.table("journal", "read")
    assert "SEQUENCE" in shown
    assert "fence" in shown
    assert "mark: 12; " in shown


def test_entries_of_the_journal_are_listed_one_by_one(closed: Stopped) -> None:
    found = closed.lines("journal", "read", "--entries")
    assert [(row["ledger"], row["entry"], row["lac"]) for row in found["entry"][:3]] == [
        (1, 0, -1),
        (1, 1, 0),
        (1, 2, 1),
    ]
    assert len(found["entry"]) == 10


def test_a_torn_end_is_told_and_is_no_failure(killed: Stopped) -> None:
    group = killed.lines("journal", "read")["group"][-1]
    flip(killed.journal / FIRST_JOURNAL, group["offset"] + 20)
    done = killed.run("journal", "read")
    assert done.returncode == 0, done.stderr
    assert "torn" in done.stdout
    assert "incomplete write" in done.stderr


def test_a_flipped_byte_in_the_journal_is_named_and_what_stands_before_it_is_shown(closed: Stopped) -> None:
    third = closed.lines("journal", "read")["group"][2]
    flip(closed.journal / FIRST_JOURNAL, third["offset"] + 1000)
    before = closed.content()
    found = closed.lines("journal", "read", code=1)
    assert [row["sequence"] for row in found["record"]] == [1, 2]
    assert found["problem"][0]["file"] == FIRST_JOURNAL
    assert found["problem"][0]["offset"] == third["offset"]
    assert found["file"][-1]["state"] == "damaged"
    assert closed.content() == before
    done = closed.run("journal", "read")
    assert done.returncode == 1
    assert f"{FIRST_JOURNAL} is damaged at offset {third['offset']}" in done.stderr


def test_a_record_that_is_missing_is_damage_though_every_group_is_intact(killed: Stopped) -> None:
    found = killed.lines("journal", "read")
    lost = next(group for group in found["group"] if group["first_sequence"] > found["journal"][0]["mark"] + 1)
    path = killed.journal / FIRST_JOURNAL
    data = path.read_bytes()
    path.write_bytes(data[: lost["offset"]] + data[lost["offset"] + lost["bytes"] :])
    found = killed.lines("journal", "read", code=1)
    assert [row["sequence"] for row in found["record"]] == list(range(1, lost["first_sequence"]))
    assert found["problem"][0]["offset"] == lost["offset"]
    assert "missing" in found["problem"][0]["message"]


def test_a_wrong_file_header_shows_nothing_of_that_file(closed: Stopped) -> None:
    flip(closed.journal / FIRST_JOURNAL, 9)
    found = closed.lines("journal", "read", code=1)
    assert "record" not in found
    assert (found["problem"][0]["file"], found["problem"][0]["offset"]) == (FIRST_JOURNAL, 0)


def test_a_journal_without_files_is_damaged_for_every_command_that_replays_it(killed: Stopped) -> None:
    shutil.rmtree(killed.journal)
    found = killed.lines("journal", "read", code=1)
    assert (found["problem"][0]["file"], found["problem"][0]["offset"]) == ("journal", None)
    assert found["journal"][0]["damaged"] is True
    done = killed.run("ledger", "ls")
    assert (done.returncode, "all its files are missing" in done.stderr) == (1, True)
    assert not killed.journal.exists()


def test_a_damaged_mark_is_told_and_the_journal_is_shown_all_the_same(closed: Stopped) -> None:
    flip(closed.dir / "ledgers" / "lastmark", 12)
    found = closed.lines("journal", "read", code=1)
    assert len(found["record"]) == 12
    assert found["journal"][0]["mark"] is None
    assert "lastmark is damaged" in found["problem"][0]["message"]


# --- entry logs -------------------------------------------------------------------------------------------------------


def test_entry_logs_are_listed_with_their_ledgers(closed: Stopped) -> None:
    (log,) = closed.lines("entrylog", "ls")["log"]
    assert (log["log"], log["bytes"]) == ("00000000", closed.log.stat().st_size)
    assert [row["ledger"] for row in log["ledgers"]] == [1, 2]
    assert str(closed.log) in closed.table("entrylog", "ls")


@pytest.mark.parametrize("name", ["0", "00000000", "00000000.log"])
def test_the_entries_of_a_log_are_where_it_says(closed: Stopped, name: str) -> None:
    rows = closed.lines("entrylog", "read", name)["entry"]
    assert sorted((row["ledger"], row["entry"]) for row in rows) == [(n, e) for n in (1, 2) for e in range(5)]
    data = closed.log.read_bytes()
    for row in rows:
        stored = data[row["offset"] : row["offset"] + row["bytes"]]
        assert stored == entry(row["ledger"], row["entry"], PAYLOAD)


def test_a_log_that_is_not_there_and_a_name_that_is_none_are_refused(closed: Stopped) -> None:
    assert "entrylog ls" in closed.run("entrylog", "read", "ff").stderr
    done = closed.run("entrylog", "read", "journal")
    assert (done.returncode, "hexadecimal" in done.stderr) == (2, True)


def test_a_flipped_byte_in_a_log_is_named_and_the_other_blocks_are_shown(closed: Stopped) -> None:
    rows = closed.lines("entrylog", "read", "0")["entry"]
    hit = rows[0]["block_offset"]
    flip(closed.log, rows[1]["offset"] + 500)
    found = closed.lines("entrylog", "read", "0", code=1)
    assert [row["offset"] for row in found["damage"]] == [hit]
    assert [row for row in rows if row["block_offset"] != hit] == found["entry"]
    assert f"offset {hit}" in closed.run("entrylog", "read", "0").stderr


# --- ledgers ----------------------------------------------------------------------------------------------------------


def test_ledgers_are_listed_with_entries_and_flags(closed: Stopped) -> None:
    assert closed.ledgers() == {
        1: (5, 4, False, False),
        2: (5, 4, True, False),
        FENCED_ONLY: (0, None, True, False),
    }
    assert "LAST ENTRY" in closed.table("ledger", "ls")


def test_what_only_the_journal_has_is_listed_too(closed: Stopped, killed: Stopped) -> None:
    assert killed.ledgers() == closed.ledgers()
    assert sum(row["in_journal"] for row in killed.lines("ledger", "ls")["ledger"]) > 0


def test_a_whole_bookie_passes_the_check(closed: Stopped, killed: Stopped) -> None:
    for bookie in (closed, killed):
        (check,) = bookie.lines("ledger", "check")["check"]
        assert (check["ledgers"], check["entries"], check["bad_entries"]) == (3, 10, 0)
    assert closed.lines("ledger", "check", "2")["check"][0]["entries"] == 5
    assert "0 of them bad" in closed.table("ledger", "check")


def test_the_check_names_every_entry_that_a_flipped_byte_in_a_log_has_hit(closed: Stopped) -> None:
    rows = closed.lines("entrylog", "read", "0")["entry"]
    hit = [row for row in rows if row["block_offset"] == rows[0]["block_offset"]]
    flip(closed.log, hit[1]["offset"] + 500)
    found = closed.lines("ledger", "check", code=1)
    named = [(row["ledger"], n) for row in found["bad"] for n in range(row["first_entry"], row["last_entry"] + 1)]
    assert named == [(row["ledger"], row["entry"]) for row in hit]
    assert found["check"][0]["bad_entries"] == len(hit)
    assert "00000000.log" in found["bad"][0]["what"]
    assert "cannot be read here" in closed.run("ledger", "check").stderr


def test_the_check_finds_a_log_that_is_gone(closed: Stopped) -> None:
    closed.log.unlink()
    assert closed.lines("ledger", "check", code=1)["check"][0]["bad_entries"] == 10


def test_the_check_fails_on_a_damaged_journal(killed: Stopped) -> None:
    group = killed.lines("journal", "read")["group"][-2]
    flip(killed.journal / FIRST_JOURNAL, group["offset"] + 30)
    done = killed.run("ledger", "check")
    assert done.returncode == 1
    assert FIRST_JOURNAL in done.stderr


def test_a_ledger_that_is_not_here_cannot_be_checked(closed: Stopped) -> None:
    done = closed.run("ledger", "check", "99")
    assert (done.returncode, "nothing of ledger 99" in done.stderr) == (1, True)


def test_looking_changes_nothing(killed: Stopped) -> None:
    before = killed.content()
    for command in (["journal", "read"], ["entrylog", "ls"], ["entrylog", "read", "0"], ["ledger", "ls"]):
        killed.table(*command)
    killed.table("ledger", "check")
    killed.table("readonly", "show")
    assert killed.content() == before


# --- index rebuild ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_a_rebuilt_index_has_what_the_old_one_had(kind: str, request: pytest.FixtureRequest) -> None:
    bookie: Stopped = request.getfixturevalue(kind)
    before = bookie.ledgers()
    report = bookie.document("index", "rebuild", "--yes")
    assert (report["flags_lost"], report["may_miss_entries"]) == (False, False)
    assert bookie.ledgers() == before
    assert not bookie.awaits_limbo
    assert bookie.lines("ledger", "check")["check"][0]["bad_entries"] == 0
    assert [path.name for path in sorted(bookie.index.parent.glob("index*"))] == ["index"]


def test_an_index_that_is_gone_is_rebuilt_with_all_ledgers_in_limbo(closed: Stopped) -> None:
    shutil.rmtree(closed.index)
    assert "index rebuild" in closed.run("ledger", "ls").stderr
    report = closed.document("index", "rebuild", "--yes", code=1)
    assert (report["entries"], report["flags_lost"]) == (10, True)
    assert closed.ledgers() == {1: (5, 4, True, True), 2: (5, 4, True, True)}
    assert closed.awaits_limbo, "ledgers that were fenced without an entry are unknown"


def test_an_index_that_lost_its_file_current_counts_as_lost(closed: Stopped) -> None:
    (closed.index / "CURRENT").unlink()
    assert "index rebuild" in closed.run("ledger", "ls").stderr
    assert closed.document("index", "rebuild", "--yes", code=1)["flags_lost"] is True
    assert closed.ledgers() == {1: (5, 4, True, True), 2: (5, 4, True, True)}
    assert closed.awaits_limbo


def test_a_rebuild_that_was_killed_between_its_renames_goes_on_with_the_flags_set_aside(closed: Stopped) -> None:
    before = closed.ledgers()
    closed.index.rename(closed.index.with_name("index.old"))
    assert closed.document("index", "rebuild", "--yes")["flags_lost"] is False
    assert closed.ledgers() == before


def test_an_index_that_forgot_what_it_had_synced_is_not_trusted_with_fences(closed: Stopped, made: Path) -> None:
    shutil.rmtree(closed.index)
    shutil.copytree(made / "killed" / "ledgers" / "index", closed.index)
    assert "magnetar bookie index rebuild" in closed.run("ledger", "ls").stderr
    assert closed.document("index", "rebuild", "--yes", code=1)["flags_lost"] is True
    assert all(fenced and limbo for _, _, fenced, limbo in closed.ledgers().values())
    assert closed.index.with_name("index.damaged").is_dir()


def test_a_damaged_log_puts_all_rebuilt_ledgers_in_limbo(closed: Stopped) -> None:
    flip(closed.log, 500)
    done = closed.run("index", "rebuild", "--yes")
    assert (done.returncode, "in limbo" in done.stderr) == (1, True)
    assert all(limbo for _, _, _, limbo in closed.ledgers().values())
    assert not closed.awaits_limbo, "the old index has the names of all that may be missing"


def test_a_log_that_is_gone_is_named_by_a_rebuild_and_puts_all_ledgers_in_limbo(closed: Stopped) -> None:
    closed.log.unlink()
    done = closed.run("index", "rebuild", "--yes")
    assert done.returncode == 1
    assert "logs/00000000.log is in none of the ledger directories" in done.stderr
    assert {ledger: row[3] for ledger, row in closed.ledgers().items()} == {1: True, 2: True, FENCED_ONLY: True}
    assert not closed.awaits_limbo, "the old index has the names of all that may be missing"


def test_bit_rot_at_the_end_of_an_unfinished_log_puts_all_rebuilt_ledgers_in_limbo(unfinished: Stopped) -> None:
    flip(unfinished.log, unfinished.log.stat().st_size - 5)
    done = unfinished.run("index", "rebuild", "--yes")
    assert done.returncode == 1
    assert re.search(
        r"logs/00000000.log: no valid block from offset \d+ to \d+: .* the old index has entries", done.stderr
    )
    assert "all ledgers are in limbo now" in done.stderr
    assert all(fenced and limbo for _, _, fenced, limbo in unfinished.ledgers().values())


def test_without_the_old_index_a_rebuild_says_that_a_torn_end_may_be_lost_entries(unfinished: Stopped) -> None:
    flip(unfinished.log, unfinished.log.stat().st_size - 5)
    shutil.rmtree(unfinished.index)
    done = unfinished.run("index", "rebuild", "--yes")
    assert done.returncode == 1
    assert "A crash may have left it so, or entries that stood there are lost" in done.stderr
    assert "entries may be missing: all ledgers are in limbo now" in done.stderr
    assert {ledger_id: row[2:] for ledger_id, row in unfinished.ledgers().items()} == {1: (True, True), 2: (True, True)}


def test_a_torn_flush_is_noted_by_a_rebuild_and_puts_no_ledger_in_limbo(unfinished: Stopped) -> None:
    before = unfinished.ledgers()
    end = unfinished.log.stat().st_size
    with unfinished.log.open("ab") as log:
        log.write(b"torn" * 100)
    done = unfinished.run("index", "rebuild", "--yes")
    assert done.returncode == 0, done.stderr
    assert (
        f"note: logs/00000000.log: no valid block from offset {end} to {end + 400}: the rest of a flush" in done.stderr
    )
    assert unfinished.ledgers() == before


def test_a_rebuild_that_nobody_confirms_is_refused(closed: Stopped) -> None:
    before = closed.content()
    done = closed.run("index", "rebuild")
    assert (done.returncode, "--yes" in done.stderr) == (2, True)
    assert closed.content() == before


# --- read-only --------------------------------------------------------------------------------------------------------


def test_read_only_is_kept_until_it_is_taken_back(closed: Stopped) -> None:
    assert closed.document("readonly", "show")["read_only"] is False
    assert closed.document("readonly", "on")["by_operator"] is True
    assert closed.document("readonly", "show")["by_operator"] is True
    assert "READ_ONLY" in (closed.dir / "ledgers" / "BOOKIE_STATUS").read_text()
    assert closed.document("readonly", "off")["read_only"] is False
    assert closed.document("readonly", "show")["by_operator"] is False


async def test_the_bookie_starts_with_the_index_and_the_state_that_it_was_given(tmp_path: Path) -> None:
    async with new_node(tmp_path / "bookie") as node:
        await fill(await node.client())
        await node.stop()
        stopped = Stopped(tmp_path / "bookie")
        await asyncio.to_thread(stopped.document, "index", "rebuild", "--yes")
        await asyncio.to_thread(stopped.document, "readonly", "on")
        client = await node.restart()
        for ledger_id in (1, 2):
            answer = await client.ask(ReadEntry(ledger_id, 3))
            assert isinstance(answer, ReadResponse)
            assert answer.body == entry(ledger_id, 3, PAYLOAD)
        assert (await client.ask(AddEntry(1, 5, KEY, entry(1, 5)))).code is Code.EREADONLY
        assert (await client.ask(AddEntry(FENCED_ONLY, 0, KEY, entry(FENCED_ONLY, 0)))).code is not Code.EOK


def test_readonly_may_be_said_while_the_bookie_runs(running: Stopped) -> None:
    assert running.document("readonly", "on")["by_operator"] is True
    assert running.document("readonly", "show")["by_operator"] is True
    assert running.document("readonly", "off")["by_operator"] is False


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [["journal", "read"], ["entrylog", "ls"], ["ledger", "check"], ["index", "rebuild", "--yes"]],
)
def test_a_running_bookie_is_refused(running: Stopped, command: list[str]) -> None:
    before = running.content()
    done = running.run(*command)
    assert done.returncode == 1
    assert "is locked by" in done.stderr
    assert "stop it" in done.stderr
    assert running.content() == before


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = Stopped(tmp_path / "missing")
    done = missing.run("ledger", "ls")
    assert (done.returncode, "no such directory" in done.stderr) == (1, True)
    assert not missing.dir.exists()


def test_options_before_the_command_are_refused_instead_of_lost(closed: Stopped) -> None:
    done = closed.run("--dir", "elsewhere", "ledger", "ls")
    assert (done.returncode, "after the command" in done.stderr) == (2, True)
