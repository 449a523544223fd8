"""A scrub finds each of fifty planted damages on real bookies, and nothing else; what it marks is repaired."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from interop.spark.suite.commands import pipeline
from interop.spark.suite.damage import Planted, StoppedBookie
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines.replicas import What
from magnetar.spark.pipelines.scrub import ScrubOptions, run
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import MAGNETAR, START_TIMEOUT_S, BrokerProcess
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.messages import GetBookieInfo

pytestmark = pytest.mark.timeout(600)

ENTRY_BYTES: Final = 70_000  # Larger than a block.
ENTRIES: Final = 40
LEDGERS: Final = 6
BOOKIES: Final = 4
SETTINGS: Final = ("storage.log_bytes_max=1_000_000", "storage.write_cache_bytes_max=8_388_608")
DAMAGES: Final = ((5, 5, 3), (5, 5, 3), (5, 5, 2), (5, 5, 2))  # Of each bookie: missing, flipped, cut.
_REPAIR_S: Final = 120.0  # A second on an idle machine.
_STOP_S: Final = 120.0  # One that is ended before it has flushed would bring lost entries back from its journal.
SAID: Final = {"missing": What.MISSING, "flipped": What.DAMAGED, "cut": What.DAMAGED}


class World:
    """Bookies with ledgers that were made by the real client: whole ones, and one that is still written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bookies = ProcessCluster(directory, BOOKIES, SETTINGS)
        self.broker: BrokerProcess
        self.ledgers: list[int] = []

    @property
    def options(self) -> ClusterOptions:
        return ClusterOptions.of(self.broker.url, self.broker.admin_url)

    def start(self) -> None:
        self.bookies.start()
        self.switch_recovery("disable")  # Until the marks were looked at.
        asyncio.run(self._write())
        self.broker = BrokerProcess(self.directory / "broker", self.bookies.metadata)
        self.broker.start()

    async def _write(self) -> None:
        async with self.client() as client:
            for number in range(LEDGERS):
                ensemble, quorum = ((3, 3), (4, 2), (4, 3))[number % 3]
                async with await client.create(ensemble_size=ensemble, write_quorum=quorum) as writer:
                    self.ledgers.append(writer.ledger_id)
                    for entry in range(ENTRIES):
                        await writer.add(b"%d:%d" % (number, entry) + bytes([entry]) * ENTRY_BYTES)
            writer = await client.create(ensemble_size=3)
            for _ in range(10):  # Left open: its last entry is not known to be confirmed, and not verified.
                await writer.add(b"x" * ENTRY_BYTES)

    def client(self) -> _Client:
        return _Client(self.bookies.metadata)

    def damage(self, random: Random) -> list[Planted]:
        """Each damage hits another entry, so a good copy of each is left."""
        planted: list[Planted] = []
        for number, (bookie, counts) in enumerate(zip(self.bookies.bookies, DAMAGES, strict=True)):
            assert bookie.stop(timeout=_STOP_S) == 0
            stopped = StoppedBookie(self.directory / f"bookie-{number + 1}", bookie.bookie_id)
            hit = {damage.replica[:2] for damage in planted}
            planted += asyncio.run(_plant(stopped, self.ledgers, random, counts, hit))
            bookie.start()
        asyncio.run(self._wait_for_bookies())
        return planted

    async def _wait_for_bookies(self) -> None:
        """One that was just started answers late on a busy machine; a scrub waits a few seconds, and then says so."""
        async with self.client() as client:
            for bookie in self.bookies.bookies:
                answers = partial(_answers, client, BookieId(bookie.bookie_id))
                await until(answers, f"{bookie.bookie_id} answers", seconds=START_TIMEOUT_S)

    def switch_recovery(self, to: str) -> None:
        command = [*MAGNETAR, "recovery", to, "--metadata", self.bookies.metadata]
        subprocess.run(command, check=True, timeout=START_TIMEOUT_S)

    async def wait_repaired(self) -> None:
        """Until no ledger is marked any more."""

        async def is_repaired() -> bool:
            return not await _marks(self)

        await until(is_repaired, "the workers have deleted all marks", seconds=_REPAIR_S)

    def close(self) -> None:
        self.broker.kill()
        self.bookies.end()


class _Client:
    """A ledger client on ZooKeeper, `async with`."""

    def __init__(self, metadata: str) -> None:
        self._config = Config(metadata=MetadataConfig(url=metadata))

    async def __aenter__(self) -> LedgerClient:
        runtime = SystemRuntime()
        self.store = await open_store(self._config, runtime)
        self._client = LedgerClient(self.store, self._config, runtime)
        return await self._client.__aenter__()

    async def __aexit__(self, *_exc: object) -> None:
        await self._client.aclose()
        await self.store.aclose()


async def _answers(client: LedgerClient, bookie: BookieId) -> bool:
    try:
        channel = await client.bookies.channel(bookie)
        await channel.request(GetBookieInfo(), timeout_s=START_TIMEOUT_S)
    except MagnetarError:
        return False
    return True


async def _plant(
    stopped: StoppedBookie, ledgers: list[int], random: Random, counts: tuple[int, int, int], hit: set[tuple[int, int]]
) -> list[Planted]:
    missing, flipped, cut = counts
    async with stopped as bookie:
        return await bookie.plant(ledgers, random, missing=missing, flipped=flipped, cut=cut, hit=hit)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(Path(tmp_path_factory.mktemp("scrub")))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_fifty_planted_damages_and_nothing_else_are_found_marked_and_repaired(spark: Any, storage: World) -> None:
    before = run(spark, ScrubOptions(cluster=storage.options))
    assert before.is_clean, before.document()
    closed = sum(ENTRIES * quorum for quorum in (3, 2, 3, 3, 2, 3))
    assert before.replicas == closed + 9 * 3

    planted = storage.damage(Random(7))
    assert len(planted) == 50
    found = run(spark, ScrubOptions(cluster=storage.options, mark=True))
    said = {
        (finding.ledger_id, entry, finding.bookie): finding.what
        for finding in found.findings
        for entry in range(finding.first_entry, finding.last_entry + 1)
    }
    assert said == {damage.replica: SAID[damage.kind] for damage in planted}
    assert not found.skipped
    assert found.replicas == before.replicas - len(planted)
    marked = {ledger for ledger, _, _ in said}
    assert found.marked == len(marked)
    assert asyncio.run(_marks(storage)) == {
        ledger: {bookie for other, _, bookie in said if other == ledger} for ledger in marked
    }

    done = pipeline(storage.broker, "scrub", "--json")
    assert done.returncode == 1, done.stderr
    printed = json.loads(done.stdout)
    assert printed["clean"] is False
    assert printed["findings"] == found.document()["findings"]

    storage.switch_recovery("enable")
    asyncio.run(storage.wait_repaired())
    after = run(spark, ScrubOptions(cluster=storage.options))
    assert after.is_clean, after.document()
    assert after.replicas == before.replicas


async def _marks(world: World) -> dict[int, set[str]]:
    opened = world.client()
    async with opened:
        marks = UnderreplicationMarks(opened.store, BookKeeperPaths("/ledgers"))
        found = {ledger: await marks.read(LedgerId(ledger)) for ledger in world.ledgers}
    return {ledger: set(mark.replicas) for ledger, mark in found.items() if mark is not None}
