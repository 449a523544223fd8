"""What the checks of this part share: bookies of both makes without auto-recovery of their own, and ledgers on them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import pytest

from interop.apache import ApacheBookie, shell
from interop.autorecovery.makes import SESSION_MS, ApacheRecovery, OurRecovery
from interop.bookies import Bookie, Registry, init_metadata
from interop.java_program import QUICK_JVM
from interop.magnetar_bookies import MagnetarBookie
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import RecoveryPaths, elected_auditor
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.zookeeper import ZooKeeperServer
from magnetar.testing.waiting import until
from workloads.healing import QUORUM, REPLICAS, Healing, append, write_ledgers
from workloads.replica_count import count_replicas

MAKES: Final = ("apache", "magnetar")
COUNTS: Final = {"apache": 2, "magnetar": 3}
LEDGERS, ENTRIES, BYTES = 20, 40, 3_000
SEED: Final = 20_261_119
HEALED_S: Final = 90.0
_SETTINGS: Final = (f"metadata.session_timeout_ms={SESSION_MS}", "recovery.enabled=false")


class Mixed:
    """A ZooKeeper, and bookies of both makes, of which each can be lost for good."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._server = ZooKeeperServer(directory / "zookeeper")
        self._stack = ExitStack()
        self._made = 0
        self.bookies: dict[str, list[Bookie]] = {make: [] for make in MAKES}

    @property
    def zookeeper(self) -> str:
        return self._server.address

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._server)
            init_metadata(self._server.url)
            self.registry = stack.enter_context(Registry(self.zookeeper))
            stack.callback(self._end)
            launched = [self._launch(make) for make, count in COUNTS.items() for _ in range(count)]
            for bookie in launched:
                bookie.wait_ready(self.registry)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        for bookies in self.bookies.values():
            for bookie in bookies:
                bookie.kill()

    def _launch(self, make: str) -> Bookie:
        self._made += 1
        directory = self.directory / f"bookie-{self._made}"
        bookie: Bookie
        if make == "apache":
            bookie = ApacheBookie(directory, self.zookeeper, jvm=(QUICK_JVM,), zkTimeout=SESSION_MS)
        else:
            bookie = MagnetarBookie(directory, self.zookeeper, *_SETTINGS)
        bookie.launch()
        self.bookies[make].append(bookie)
        return bookie

    def lose(self, bookie: Bookie) -> None:
        """SIGKILL, and the disk is wiped."""
        bookie.kill()
        shutil.rmtree(bookie.directory)

    def refill(self) -> None:
        """Starts a new bookie, under a new id, for each that was lost."""
        for make in MAKES:
            self.bookies[make] = [bookie for bookie in self.bookies[make] if bookie.directory.exists()]
        launched = [self._launch(make) for make in MAKES for _ in range(COUNTS[make] - len(self.bookies[make]))]
        for bookie in launched:
            bookie.wait_ready(self.registry)


@dataclass(slots=True)
class Cluster:
    """The mixed cluster as one check sees it: all of its ledgers are counted replica by replica at its end."""

    mixed: Mixed
    store: MetadataStore
    client: LedgerClient
    healing: Healing
    ids: list[int] = field(default_factory=list)

    @property
    def zookeeper(self) -> str:
        return self.mixed.zookeeper

    async def write(self) -> None:
        self.ids += await write_ledgers(self.client, SEED, LEDGERS, ENTRIES, BYTES)

    async def leave_open(self, bookie: str) -> int:
        """Returns a ledger on this bookie, among others, that its writer has left."""
        while True:
            writer = await self.client.create(**QUORUM)
            await append(writer, SEED, ENTRIES, BYTES)
            if bookie in writer.metadata.fragments[-1].ensemble:
                await writer.release()
                break
            await writer.close()
            self.ids.append(writer.ledger_id)
        self.ids.append(writer.ledger_id)
        return writer.ledger_id

    async def lose_one(self, make: str) -> str:
        """Writes ledgers, leaves one open, and takes one of their bookies away."""
        victim = self.mixed.bookies[make][0]
        lost = victim.id
        await self.write()
        await self.leave_open(lost)
        await asyncio.to_thread(self.mixed.lose, victim)
        return lost

    async def expect_healed(self, *gone: str) -> None:
        """Every replica of every entry is where the metadata says, and none of them on a bookie that is gone."""
        await self.healing.wait_healed(self.ids, gone, seconds=HEALED_S)
        counted = await count_replicas(self.healing.ledgers, self.ids, SEED, size_of=BYTES, absent=gone)
        assert (counted.wrong, counted.replicas) == (0, len(self.ids) * ENTRIES * REPLICAS), counted.notes

    async def auditor(self) -> str | None:
        return await elected_auditor(self.store, RecoveryPaths(BookKeeperPaths()))

    async def wait_auditor(self, name: str) -> None:
        async def is_so() -> bool:
            return await self.auditor() == name

        await until(is_so, f"{name} is the auditor", seconds=HEALED_S)

    async def wait_away(self, bookie: str) -> None:
        def is_so() -> bool:
            return bookie not in self.mixed.registry.available()

        await until(is_so, f"{bookie} is no longer registered", seconds=HEALED_S)

    async def shell(self, *words: str) -> str:
        return await asyncio.to_thread(shell, self.mixed.directory / "shell", self.zookeeper, *words)

    @asynccontextmanager
    async def apaches(self, role: str) -> AsyncIterator[ApacheRecovery]:
        with ApacheRecovery(self.mixed.directory / "apaches", self.zookeeper) as running:
            await running.begin(role)
            yield running

    @asynccontextmanager
    async def ours(self, *settings: str) -> AsyncIterator[OurRecovery]:
        with OurRecovery(self.mixed.directory / "ours", self.zookeeper, *settings) as running:
            yield running


@pytest.fixture(scope="package")
def mixed() -> Iterator[Mixed]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary, Mixed(Path(temporary)) as running:
        yield running


@pytest.fixture
async def cluster(mixed: Mixed) -> AsyncIterator[Cluster]:
    """Whole, and without auto-recovery. Ledgers of former checks are deleted: this check's are enough."""
    mixed.refill()
    config = replace(Config(), metadata=MetadataConfig(url=f"zk://{mixed.zookeeper}"))
    runtime = SystemRuntime()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await open_store(config, runtime))
        client = await stack.enter_async_context(LedgerClient(store, config, runtime))
        async for ledger_id in client.list():
            await client.delete(ledger_id)
        ledgers = LedgerMetadataStore(store, BookKeeperPaths(), runtime.entropy)
        healing = Healing(store, ledgers)
        await healing.marks.prepare()
        yield Cluster(mixed, store, client, healing)
