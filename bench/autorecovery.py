"""magnetar's auto-recovery beside Apache's: a bookie is killed with -9 and its disk is wiped, on the same data.

mb-per-s         bytes that the lost bookie had, per second from the first mark to the moment when none is left
detect           seconds from the kill to the first mark, with the same session timeout on both sides
foreground-p99   latency of adds of 1 KiB during this repair, FOREGROUND_RATE a second, at the same settings

Each side has four bookies, each with auto-recovery at its defaults, and a ZooKeeper of its own. magnetar's client
writes the same ledgers to both (E2/Qw2/Qa2, entries of 10 kB), and loads them during a repair. The sides take turns; a
new bookie replaces the lost one before the next round.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.bookie_contest import data_directory, machine_cpu_seconds
from bench.report import Better, Row, Side, print_table
from bench.rows import PEER, say
from interop.apache import ApacheBookie
from interop.bookies import Bookie, BookieCluster, MakeBookie
from interop.magnetar_bookies import MagnetarBookie
from magnetar.autorecovery.drain import bytes_on
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import ProcessFailedError
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.uncancelled import end_task
from workloads.healing import Healing, append

BOOKIES: Final = 4
LEDGERS, ENTRIES, BYTES = 40, 1_000, 10_000
ROUNDS: Final = 3
SESSION_MS: Final = 5_000
FOREGROUND_BYTES, FOREGROUND_RATE = 1_024, 200
_SEED: Final = 1
_QUORUM: Final = (2, 2, 2)
_MARKED_S: Final = 60.0
_HEALED_S: Final = 300.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Repair:
    """One sample: a bookie was lost, and its ledgers were repaired."""

    detect_s: float
    marked_after_s: float
    """From the end of the bookie's session, as far as it can be seen, to the first mark."""
    restore_s: float
    mb: float
    p99_ms: float
    adds: int
    bookie_cpu_s: float
    other_cores: float


def our_bookie(directory: Path, zookeeper: str) -> Bookie:
    return MagnetarBookie(directory, zookeeper, f"metadata.session_timeout_ms={SESSION_MS}")


def apaches_bookie(directory: Path, zookeeper: str) -> Bookie:
    return ApacheBookie(directory, zookeeper, zkTimeout=SESSION_MS, autoRecoveryDaemonEnabled="true")


class Contender:
    """One side: its cluster, its ledgers, and a client."""

    def __init__(self, directory: Path, cluster: BookieCluster, make: MakeBookie) -> None:
        self._directory = directory
        self._cluster = cluster
        self._make = make
        self._made = 0
        self._ids: list[int] = []
        self._stack = AsyncExitStack()

    async def begin(self) -> None:
        config = replace(Config(), metadata=MetadataConfig(url=f"zk://{self._cluster.zookeeper}"))
        runtime = SystemRuntime()
        store = await self._stack.enter_async_context(await open_store(config, runtime))
        self._client = await self._stack.enter_async_context(LedgerClient(store, config, runtime))
        self._healing = Healing(store, LedgerMetadataStore(store, BookKeeperPaths(), runtime.entropy))
        for _ in range(LEDGERS):
            async with await self._create() as writer:
                await append(writer, _SEED, ENTRIES, BYTES)
                await writer.close()
            self._ids.append(writer.ledger_id)

    async def end(self) -> None:
        await self._stack.aclose()

    async def _create(self) -> LedgerWriter:
        ensemble, write, ack = _QUORUM
        return await self._client.create(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)

    async def _bytes_on(self, bookie: str) -> int:
        found = [(await self._healing.ledgers.read(LedgerId(each))).value for each in self._ids]
        return sum(bytes_on(metadata, BookieId(bookie)) for metadata in found)

    async def repair(self) -> Repair:
        victim = self._cluster.bookies.pop(0)
        lost, lost_bytes = victim.id, await self._bytes_on(victim.id)
        latencies: list[tuple[float, float]] = []
        load = asyncio.create_task(self._load(latencies))
        try:
            victim.kill()
            killed_at = time.monotonic()
            await asyncio.to_thread(shutil.rmtree, victim.directory)
            await self._wait_unregistered(lost)
            ended_at = time.monotonic()
            marked_at = await self._healing.wait_marked(seconds=_MARKED_S)
            cpu, machine = self._cpu_seconds(), machine_cpu_seconds()
            await self._wait_unmarked()
            healed_at = time.monotonic()
            cpu, machine = self._cpu_seconds() - cpu, machine_cpu_seconds() - machine
        finally:
            await end_task(load)
        await self._healing.wait_healed(self._ids, [lost], seconds=_HEALED_S)
        self._refill()
        during = sorted(took for at, took in latencies if marked_at <= at <= healed_at)
        if not during:
            raise ProcessFailedError("no add was answered during the repair")
        seconds = healed_at - marked_at
        p99_ms = during[min(len(during) - 1, int(len(during) * 0.99))] * 1000
        return Repair(
            marked_at - killed_at,
            marked_at - ended_at,
            seconds,
            lost_bytes / 1e6,
            p99_ms,
            len(during),
            cpu,
            (machine - cpu) / seconds,
        )

    async def _wait_unregistered(self, bookie: str) -> None:
        registry = self._cluster.registry
        assert registry is not None
        async with asyncio.timeout(_MARKED_S):
            while bookie in registry.available():  # noqa: ASYNC110 - ZooKeeper ends the session.
                await asyncio.sleep(_POLL_S)

    async def _wait_unmarked(self) -> None:
        async with asyncio.timeout(_HEALED_S):
            while await self._healing.marked():  # noqa: ASYNC110 - The condition is in other processes.
                await asyncio.sleep(_POLL_S)

    def _refill(self) -> None:
        self._made += 1
        new = self._make(self._directory / f"new-{self._made}", self._cluster.zookeeper)
        self._cluster.bookies.append(new)
        new.launch()
        assert self._cluster.registry is not None
        new.wait_ready(self._cluster.registry)

    async def _load(self, latencies: list[tuple[float, float]]) -> None:
        """At a constant rate; each latency counts from the moment at which the add was due."""
        payload = bytes(FOREGROUND_BYTES)
        async with await self._create() as writer:
            due = time.monotonic()
            while True:
                due += 1 / FOREGROUND_RATE
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                writer.enqueue(payload).add_done_callback(
                    lambda _, at=due: latencies.append((at, time.monotonic() - at))  # type: ignore[misc]
                )

    def _cpu_seconds(self) -> float:
        return sum(bookie.cpu_seconds() for bookie in self._cluster.bookies)


def run() -> list[Row]:
    say("autorecovery")
    with data_directory() as temporary, ExitStack() as stack:
        sides = []
        for name, make in (("ours", our_bookie), ("theirs", apaches_bookie)):
            directory = Path(temporary) / name
            cluster = stack.enter_context(BookieCluster(directory, make, BOOKIES))
            sides.append(Contender(directory, cluster, make))
        ours, theirs = asyncio.run(_measure(*sides))
    return _rows(ours, theirs)


async def _measure(ours: Contender, theirs: Contender) -> tuple[list[Repair], list[Repair]]:
    taken: tuple[list[Repair], list[Repair]] = ([], [])
    try:
        for side in (ours, theirs):
            await side.begin()
        for _ in range(ROUNDS):
            for side, samples in zip((ours, theirs), taken, strict=True):
                samples.append(await side.repair())
                say(f"autorecovery {samples[-1]}")
    finally:
        await ours.end()
        await theirs.end()
    return taken


def _rows(ours: list[Repair], theirs: list[Repair]) -> list[Row]:
    def side(samples: list[Repair], figure: Callable[[Repair], float]) -> Side:
        return Side(tuple(map(figure, samples)), (0.0,) * len(samples))

    def row(name: str, unit: str, figure: Callable[[Repair], float], goal: float, better: Better = "lower") -> Row:
        return Row(
            f"autorecovery/{name}", unit, better, side(ours, figure), PEER, side(theirs, figure), goal,
            detail=_detail(ours, theirs),
        )  # fmt: skip

    return [
        row("mb-per-s", "MB/s", lambda sample: sample.mb / sample.restore_s, 4, "higher"),
        row("detect", "s", lambda sample: sample.detect_s, 1),
        row("foreground-p99", "ms", lambda sample: sample.p99_ms, 1),
    ]


def _detail(ours: list[Repair], theirs: list[Repair]) -> dict[str, tuple[float, float]]:
    def both(figure: Callable[[Repair], float]) -> tuple[float, float]:
        first, second = (sum(map(figure, samples)) / len(samples) for samples in (ours, theirs))
        return first, second

    return {
        "s from the end of the session to the mark": both(lambda sample: sample.marked_after_s),
        "s of a repair": both(lambda sample: sample.restore_s),
        "MB of a lost bookie": both(lambda sample: sample.mb),
        "bookies' CPU s": both(lambda sample: sample.bookie_cpu_s),
        "cores busy elsewhere": both(lambda sample: sample.other_cores),
        "adds during a repair": both(lambda sample: sample.adds),
    }


if __name__ == "__main__":
    print_table(run())
