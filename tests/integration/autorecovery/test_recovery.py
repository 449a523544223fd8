"""Real bookie processes repair themselves after a kill and a wiped disk, and are drained."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import MAGNETAR, BookieProcess
from magnetar.testing.waiting import until
from workloads.replica_count import count_replicas, payload_of

SEED = 20261119
LEDGERS, ENTRIES, BYTES = 12, 60, 3_000
SETTINGS = (
    "metadata.session_timeout_ms=6_000",
    "storage.write_cache_bytes_max=8_388_608",
    "storage.read_cache_bytes_max=8_388_608",
)


def magnetar(cluster: ProcessCluster, *arguments: str) -> str:
    done = run_command(cluster, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(cluster: ProcessCluster, *arguments: str) -> str:
    done = run_command(cluster, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def run_command(cluster: ProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAGNETAR, *arguments, "--metadata", cluster.metadata],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


async def write_ledgers(client: LedgerClient) -> list[int]:
    ids = []
    for _ in range(LEDGERS):
        async with await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2) as writer:
            for entry in range(ENTRIES):
                writer.enqueue(payload_of(SEED, writer.ledger_id, entry, BYTES))
            await writer.close()
        ids.append(writer.ledger_id)
    return ids


async def wait_unnamed(store: MetadataStore, ledgers: LedgerMetadataStore, ids: list[int], bookie: str) -> None:
    marks = UnderreplicationMarks(store, BookKeeperPaths())

    async def is_healed() -> bool:
        if [each async for each in marks.list()]:
            return False
        found = [(await ledgers.read(each)).value for each in ids]  # type: ignore[arg-type]
        return not any(bookie in fragment.ensemble for metadata in found for fragment in metadata.fragments)

    await until(is_healed, f"no ledger needs bookie {bookie} any more", seconds=90)


@pytest.mark.timeout(300)
def test_killed_and_wiped_bookie_costs_no_replica_and_a_running_one_is_drained(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 5, SETTINGS) as cluster:
        asyncio.run(_story(cluster, tmp_path))


async def _story(cluster: ProcessCluster, directory: Path) -> None:
    config, runtime = Config(metadata=MetadataConfig(url=cluster.metadata)), SystemRuntime()
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        ids = await write_ledgers(client)
        ledgers = LedgerMetadataStore(store, BookKeeperPaths(), runtime.entropy)

        victim = cluster.bookies[0]
        lost = victim.bookie_id
        victim.kill()
        shutil.rmtree(directory / victim.name)
        await wait_unnamed(store, ledgers, ids, lost)
        counted = await count_replicas(ledgers, ids, SEED, size_of=BYTES, absent=[lost])
        assert (counted.wrong, counted.replicas) == (0, LEDGERS * ENTRIES * 2), counted.notes

        with BookieProcess(directory / "new-bookie", cluster.metadata, *SETTINGS):
            leaving = cluster.bookies[1].bookie_id
            lines = magnetar(cluster, "bookie", "decommission", leaving, "--json").splitlines()
            assert json.loads(lines[0])["ledgers_left"] >= 0
            counted = await count_replicas(ledgers, ids, SEED, size_of=BYTES, absent=[lost, leaving])
            assert (counted.wrong, counted.replicas) == (0, LEDGERS * ENTRIES * 2), counted.notes

            status = json.loads(magnetar(cluster, "recovery", "status", "--json"))
            assert status["marked_ledgers"] == status["locked_ledgers"] == 0
            assert status["lost"] == [lost]
            assert status["decommissioning"] == status["read_only_bookies"] == [leaving]
            assert magnetar(cluster, "recovery", "whoisauditor").strip() == status["auditor"]
            assert "no ledger names it" in refused(cluster, "recovery", "recover", "nosuch:1")
            assert "is not marked" in magnetar(cluster, "recovery", "explain", str(ids[0]))
