"""A real bookie whose journal was damaged or whose disk was lost: refused, repaired by the command, never in denial."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import ProcessFailedError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.servers import MAGNETAR, BookieProcess, init_cluster
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import V2, V3, AddEntry, ReadEntry, ReadLac, WriteLac
from tests.integration.bookie.conftest import DIGEST, KEY, Client, entry

ID = BookieId("b1")
OPEN, CLOSED, FENCED_ONLY = 1, 2, 3
ENTRIES = 20
TIMEOUT_S = 60


async def make_ledgers(url: str, states: dict[int, LedgerState]) -> None:
    runtime = SystemRuntime()
    async with await open_store(Config(metadata=MetadataConfig(url=url)), runtime) as store:
        ledgers = LedgerMetadataStore(store, BookKeeperPaths(), runtime.entropy)
        for ledger_id, state in states.items():
            is_closed = state is LedgerState.CLOSED
            await ledgers.create(
                LedgerMetadata(
                    ledger_id=LedgerId(ledger_id),
                    ensemble_size=1,
                    write_quorum=1,
                    ack_quorum=1,
                    state=state,
                    fragments=(Fragment(EntryId(0), (ID,)),),
                    last_entry_id=EntryId(ENTRIES - 1 if is_closed else -1),
                    length=100 if is_closed else 0,
                )
            )


class Machine:
    """A bookie process, its files, and a shell."""

    def __init__(self, place: Path) -> None:
        self.dir = place / "bookie"
        self.url = f"sqlite:{place}/metadata.db"
        self.bookie = BookieProcess(self.dir, self.url, f"bookie.bookie_id={ID}")

    def start_refused(self) -> str:
        with pytest.raises(ProcessFailedError) as refusal:
            self.bookie.start()
        return str(refusal.value)

    def run_limbo(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("limbo", "--metadata", self.url, *options)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*MAGNETAR, "bookie", *arguments, "--dir", str(self.dir)],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def repair(self) -> dict[str, Any]:
        done = self.run_limbo("--yes", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def journal_file(self) -> Path:
        """The one that has the entries."""
        return max((self.dir / "journal" / "journal").glob("*.journal"), key=_used_bytes)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.bookie.port))
        yield client
        await client.aclose()

    async def fill_and_kill(self) -> None:
        """The closed ledger first; each entry in a group of its own, and none flushed."""
        async with self.client() as client:
            for ledger_id in (CLOSED, OPEN):
                for entry_id in range(ENTRIES):
                    answer = await client.ask(AddEntry(ledger_id, entry_id, KEY, entry(ledger_id, entry_id)))
                    assert answer.code is Code.EOK
            await client.ask(WriteLac(OPEN, 3, KEY, DIGEST.seal_lac(OPEN, 3)))
            self.bookie.kill()

    async def codes(self, ledger_id: int, *entry_ids: int, version: int = V3) -> list[Code]:
        async with self.client() as client:
            return [(await client.ask(ReadEntry(ledger_id, each, version=version))).code for each in entry_ids]


def _used_bytes(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    init_cluster(made.url)
    asyncio.run(make_ledgers(made.url, {OPEN: LedgerState.OPEN, CLOSED: LedgerState.CLOSED}))
    made.bookie.start()
    asyncio.run(made.fill_and_kill())
    yield made
    made.bookie.kill()


async def check_limbo(machine: Machine, missing: int) -> None:
    for version in (V2, V3):
        assert await machine.codes(OPEN, missing, LAST_ENTRY, version=version) == [Code.EUNKNOWNLEDGERSTATE] * 2
    async with machine.client() as client:
        fence = ReadEntry(OPEN, LAST_ENTRY, fence=True, master_key=KEY)
        assert (await client.ask(fence)).code is Code.EUNKNOWNLEDGERSTATE
        assert (await client.ask(ReadLac(OPEN))).code is Code.EUNKNOWNLEDGERSTATE
        assert (await client.ask(AddEntry(OPEN, 50, KEY, entry(OPEN, 50)))).code is Code.EFENCED
        recovery = AddEntry(OPEN, missing, KEY, entry(OPEN, missing), recovery=True)
        assert (await client.ask(recovery)).code is Code.EOK
    assert await machine.codes(OPEN, missing) == [Code.EOK]


def test_a_kill_with_an_intact_journal_leaves_an_honest_no(machine: Machine) -> None:
    machine.bookie.start()
    assert asyncio.run(machine.codes(OPEN, 0, ENTRIES - 1, ENTRIES)) == [Code.EOK, Code.EOK, Code.ENOENTRY]


def test_a_damaged_journal_is_refused_repaired_and_answered_for(machine: Machine) -> None:
    path = machine.journal_file()
    data = bytearray(path.read_bytes())
    data[int(_used_bytes(path) * 0.75)] ^= 0x40  # Amid the open ledger's entries.
    path.write_bytes(data)
    told = machine.start_refused()
    assert f"{path} is damaged at offset " in told
    assert f"magnetar bookie limbo --dir {machine.dir} --metadata {machine.url}" in told
    report = machine.repair()
    assert (report["ledgers_in_limbo"], report["ledgers_fenced"], report["bookie_id"]) == (1, 1, ID)
    assert report["set_aside"] == [f"{path}.damaged"]
    assert Path(f"{path}.damaged").read_bytes() == data
    machine.bookie.start()
    assert asyncio.run(machine.codes(CLOSED, *range(ENTRIES))) == [Code.EOK] * ENTRIES
    assert asyncio.run(machine.codes(CLOSED, ENTRIES)) == [Code.ENOENTRY]
    assert asyncio.run(machine.codes(OPEN, 0)) == [Code.EOK]
    asyncio.run(check_limbo(machine, ENTRIES - 1))
    machine.bookie.kill()
    machine.bookie.start()  # Limbo outlives the process.
    assert asyncio.run(machine.codes(OPEN, ENTRIES)) == [Code.EUNKNOWNLEDGERSTATE]


def test_a_journal_whose_files_are_gone_is_refused_repaired_and_answered_for(machine: Machine) -> None:
    """Nothing was flushed, so nothing but the first mark, 0, says that there must be files."""
    files = machine.dir / "journal" / "journal"
    for path in files.iterdir():
        path.unlink()
    told = machine.start_refused()
    assert f"the journal in {files} is damaged: all its files are missing" in told
    assert f"magnetar bookie limbo --dir {machine.dir} --metadata {machine.url}" in told
    report = machine.repair()
    assert (report["ledgers_in_limbo"], report["set_aside"], report["directories_restored"]) == (1, [], [])
    machine.bookie.start()
    asyncio.run(check_limbo(machine, ENTRIES - 1))


def test_a_lost_ledger_directory_is_refused_repaired_and_answered_for(machine: Machine) -> None:
    shutil.rmtree(machine.dir / "ledgers")
    told = machine.start_refused()
    assert f"magnetar bookie limbo --dir {machine.dir} --metadata URL" in told
    report = machine.repair()
    assert report["directories_restored"] == [str(machine.dir / "ledgers")]
    machine.bookie.start()
    assert asyncio.run(machine.codes(CLOSED, *range(ENTRIES))) == [Code.EOK] * ENTRIES  # From the journal.
    asyncio.run(check_limbo(machine, ENTRIES))


def test_a_lost_journal_is_refused_repaired_and_answered_for(machine: Machine) -> None:
    machine.bookie.start()
    assert machine.bookie.stop() == 0  # Flushed.
    shutil.rmtree(machine.dir / "journal")
    assert "magnetar bookie limbo" in machine.start_refused()
    assert machine.repair()["directories_restored"] == [str(machine.dir / "journal")]
    machine.bookie.start()
    assert asyncio.run(machine.codes(CLOSED, *range(ENTRIES))) == [Code.EOK] * ENTRIES
    asyncio.run(check_limbo(machine, ENTRIES))


async def fence(machine: Machine, ledger_id: int) -> None:
    async with machine.client() as client:
        answer = await client.ask(ReadEntry(ledger_id, LAST_ENTRY, fence=True, master_key=KEY))
        assert answer.code in (Code.ENOENTRY, Code.ENOLEDGER)


async def add_code(machine: Machine, ledger_id: int) -> Code:
    async with machine.client() as client:
        return (await client.ask(AddEntry(ledger_id, 0, KEY, entry(ledger_id, 0)))).code


def test_an_index_that_was_rebuilt_without_its_fences_is_refused_repaired_and_answered_for(machine: Machine) -> None:
    """A ledger that was fenced here before it had an entry is in no log: only the metadata has its name."""
    asyncio.run(make_ledgers(machine.url, {FENCED_ONLY: LedgerState.OPEN}))
    machine.bookie.start()
    asyncio.run(fence(machine, FENCED_ONLY))
    assert machine.bookie.stop() == 0
    shutil.rmtree(machine.dir / "ledgers" / "index")
    rebuilt = machine.run("index", "rebuild", "--yes")
    assert (rebuilt.returncode, "magnetar bookie limbo" in rebuilt.stderr) == (1, True)
    for _ in range(2):
        assert f"magnetar bookie limbo --dir {machine.dir} --metadata URL" in machine.start_refused()
        assert machine.run("index", "rebuild", "--yes").returncode == 0  # It does not know more the second time.
    assert machine.repair()["ledgers_in_limbo"] == 2
    machine.bookie.start()
    assert asyncio.run(add_code(machine, FENCED_ONLY)) is Code.EFENCED
    assert asyncio.run(machine.codes(CLOSED, *range(ENTRIES))) == [Code.EOK] * ENTRIES
    asyncio.run(check_limbo(machine, ENTRIES))


def test_a_running_bookie_is_not_repaired(machine: Machine) -> None:
    machine.bookie.start()
    assert machine.run_limbo("--yes").returncode == 1


def test_nobody_is_asked_and_nothing_is_done_without_force(machine: Machine) -> None:
    done = machine.run_limbo()
    assert (done.returncode, "give --yes to confirm" in done.stderr) == (2, True)
