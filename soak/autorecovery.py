"""Seven bookies lose three disks one after the other, and then one bookie for good: no replica of any entry is missing.

Failures:  a bookie is killed with -9 and its disk is wiped; a new one with a new id joins before the next failure. The
           first repair is left alone, and measured. The other two, and the decommission at the end, meet trouble.
Trouble:   drawn from the seed, two at a time, as soon as ledgers are marked: another bookie is killed, and comes back
           with its disk while its ledgers are being repaired; a worker ends after its copies and before it writes the
           metadata; a ledger that is being written is marked; a bookie stands still until its session, and each of its
           locks, has expired.
Verdict:   after each repair no mark is left, no ledger has entries on a bookie that is gone, and a separate reader
           finds every entry on each of its bookies, byte for byte. Every entry that the writer was told of is among
           them.
Figures:   seconds from the kill to the first mark, from there to the end of the repair, and the bytes that the lost
           bookie had per second of the repair.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import MagnetarError, ProcessFailedError
from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.quorum.sizes import write_set
from magnetar.runtime.gather import gather_bounded
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.uncancelled import end_task
from magnetar.testing.processes.child import Child
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import MAGNETAR, BookieProcess
from magnetar.testing.waiting import until
from workloads.doomed_worker import DOOMED
from workloads.healing import QUORUM, REPLICAS, Healing, append, write_ledgers
from workloads.replica_count import count_replicas

BOOKIES: Final = 7
LEDGERS, ENTRIES, BYTES = 200, 525, 10_240
"""A little more than 1 GiB in all."""
FAILURES: Final = 3
SESSION_S: Final = 4.0
HEALED_S: Final = 300.0
_STEP_S: Final = 60.0
_OPEN_BYTES: Final = 1_000
_OPEN_PAUSE_S: Final = 0.02
_DECOMMISSION_S: Final = 900.0
_SETTINGS: Final = (
    f"metadata.session_timeout_ms={SESSION_S * 1000:.0f}",
    "storage.write_cache_bytes_max=33_554_432",
    "storage.read_cache_bytes_max=16_777_216",
    "recovery.open_ledger_grace_ms=10_000",
    "recovery.retry_ms=3_000",
)
_DOOMED_PROGRAM: Final = Path(__file__).parent.parent / "workloads" / "doomed_worker.py"


class Trouble(enum.Enum):
    COMES_BACK = "another bookie killed, and back during the repair"
    WORKER_KILLED = "worker ended between copy and metadata"
    OPEN_MARKED = "a ledger marked while it was written"
    SESSION_LOST = "a bookie's session expired in the middle"


class OpenLedger:
    """A ledger that is written all the time, slowly."""

    def __init__(self, client: LedgerClient, seed: int) -> None:
        self._client = client
        self._seed = seed
        self.added = 0
        self._task: asyncio.Task[None] | None = None
        self._writer: LedgerWriter | None = None

    @property
    def writer(self) -> LedgerWriter:
        assert self._writer is not None
        return self._writer

    async def begin(self) -> None:
        self._writer = await self._client.create(**QUORUM)
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while True:
            await append(self.writer, self._seed, 1, _OPEN_BYTES)
            self.added += 1
            await asyncio.sleep(_OPEN_PAUSE_S)

    def check(self) -> None:
        assert self._task is not None
        if self._task.done():
            raise AssertionError(f"the writer of the open ledger has failed: {self._task.exception()!r}")

    async def wait_progress(self) -> None:
        wanted = self.added + 20

        def is_so() -> bool:
            self.check()
            return self.added >= wanted

        await until(is_so, "the writer of the open ledger continues", seconds=_STEP_S)

    async def end(self) -> None:
        """Closes the ledger with all that was added."""
        self.check()
        await end_task(self._task)
        await self.writer.close()

    async def abandon(self) -> None:
        await end_task(self._task)


class Soak:
    def __init__(self, cluster: ProcessCluster, directory: Path, healing: Healing, client: LedgerClient, seed: int):
        self._cluster = cluster
        self._directory = directory
        self._healing = healing
        self._client = client
        self._seed = seed
        self._random = random.Random(seed)
        self._bookies: list[BookieProcess] = list(cluster.bookies)
        self._made = 0
        self._in_trouble: list[BookieProcess] = []
        self._doomed: list[Child] = []
        self._ids: list[int] = []
        self._opens: list[OpenLedger] = []
        self._gone: list[str] = []
        self.figures: list[dict[str, Any]] = []
        self.troubles: dict[str, int] = {trouble.value: 0 for trouble in Trouble}
        self.missed: list[str] = []
        """Troubles that came too late, because the repair had ended."""

    async def run(self, ledgers: int) -> None:
        self._ids = await write_ledgers(self._client, self._seed, ledgers, ENTRIES, BYTES)
        order = self._random.sample(list(Trouble), len(Trouble))
        for failure in range(FAILURES):
            await self._fail(failure, order[2 * failure - 2 : 2 * failure] if failure else [])
        await self._decommission()

    def end(self) -> None:
        for bookie in self._bookies:
            bookie.kill()
        for child in self._doomed:
            child.kill()

    async def abandon(self) -> None:
        for each in self._opens:
            with suppress(MagnetarError):
                await each.abandon()

    # --- a lost disk --------------------------------------------------------------------------------------------------

    async def _fail(self, number: int, troubles: list[Trouble]) -> None:
        open_ledger = OpenLedger(self._client, self._seed)
        await open_ledger.begin()
        self._opens.append(open_ledger)
        doomed = await self._start_doomed() if Trouble.WORKER_KILLED in troubles else None
        victim = await self._choose_filled()
        lost = victim.bookie_id
        bytes_lost = await self._bytes_on(lost)
        victim.kill()
        killed_at = time.monotonic()
        shutil.rmtree(self._directory / victim.name)
        self._bookies.remove(victim)
        self._gone.append(lost)
        marked_at = await self._healing.wait_marked(seconds=_STEP_S)
        works = [partial(self._make, trouble, open_ledger, doomed) for trouble in troubles]
        await gather_bounded(works, len(Trouble))
        await self._healing.wait_healed(self._ids, self._gone, seconds=HEALED_S)
        restored_s = time.monotonic() - marked_at
        await open_ledger.wait_progress()
        await open_ledger.end()
        await self._healing.wait_healed([*self._ids, open_ledger.writer.ledger_id], self._gone, seconds=HEALED_S)
        found = await self._count()
        self._say(
            what=f"failure {number + 1}", trouble=[each.value for each in troubles],
            detect_s=round(marked_at - killed_at, 2), restore_s=round(restored_s, 2),
            mb_lost=round(bytes_lost / 1e6, 1), mb_per_s=round(bytes_lost / restored_s / 1e6, 1), **found,
        )  # fmt: skip
        self._start_bookie()

    async def _choose_filled(self) -> BookieProcess:
        """A bookie that has something to lose: one that has just joined has nothing."""
        filled = [bookie for bookie in self._bookies if await self._bytes_on(bookie.bookie_id)]
        return self._random.choice(filled)

    def _start_bookie(self) -> None:
        self._made += 1
        new = BookieProcess(self._directory / f"new-bookie-{self._made}", self._cluster.metadata, *_SETTINGS)
        self._bookies.append(new)
        new.start()

    async def _bytes_on(self, bookie: str) -> int:
        """What it has of the closed ledgers, by the metadata."""
        entries = 0
        for ledger_id in self._ids:
            metadata = (await self._healing.ledgers.read(LedgerId(ledger_id))).value
            for entry_id in range(metadata.last_entry_id + 1):
                ensemble = metadata.fragment_of(entry_id).ensemble  # type: ignore[arg-type]
                positions = write_set(metadata.ensemble_size, metadata.write_quorum, entry_id)
                entries += bookie in [ensemble[position] for position in positions]
        return entries * BYTES

    async def _count(self) -> dict[str, Any]:
        """Every replica of every entry, by a reader with connections of its own."""
        began = time.monotonic()
        closed = await count_replicas(self._healing.ledgers, self._ids, self._seed, size_of=BYTES, absent=self._gone)
        opens = [each.writer.ledger_id for each in self._opens]
        opened = await count_replicas(self._healing.ledgers, opens, self._seed, size_of=_OPEN_BYTES, absent=self._gone)
        wanted = len(self._ids) * ENTRIES + sum(each.added for each in self._opens)
        entries, replicas = closed.entries + opened.entries, closed.replicas + opened.replicas
        notes = [*closed.notes, *opened.notes]
        if notes or entries < wanted or replicas != entries * REPLICAS:
            raise AssertionError(f"{replicas} replicas of {entries} entries, of which {wanted} were added: {notes}")
        return {"replicas": replicas, "count_s": round(time.monotonic() - began, 1)}

    # --- trouble ------------------------------------------------------------------------------------------------------

    async def _make(self, trouble: Trouble, open_ledger: OpenLedger, doomed: Child | None) -> None:
        if not await self._healing.marked():
            self.missed.append(trouble.value)
        match trouble:
            case Trouble.COMES_BACK:
                await self._come_back()
            case Trouble.WORKER_KILLED:
                assert doomed is not None
                await until(lambda: not doomed.is_running, "the doomed worker wrote metadata", seconds=_STEP_S)
                if doomed.popen.returncode != DOOMED:
                    raise ProcessFailedError(f"the doomed worker ended otherwise: {doomed.log_tail()}")
            case Trouble.OPEN_MARKED:
                ensemble = open_ledger.writer.metadata.fragments[-1].ensemble
                ledger_id = LedgerId(open_ledger.writer.ledger_id)
                await self._healing.marks.mark(ledger_id, [self._random.choice(ensemble)], int(time.time() * 1000))
                await open_ledger.wait_progress()
            case Trouble.SESSION_LOST:
                await self._lose_session()
        self.troubles[trouble.value] += 1

    async def _come_back(self) -> None:
        """It stays away until its ledgers are marked."""
        victim = self._choose(self._bookies)
        mine = await self._healing.naming(self._ids, [victim.bookie_id])
        victim.kill()

        async def is_marked() -> bool:
            for ledger_id in mine:
                mark = await self._healing.marks.read(LedgerId(ledger_id))
                if mark is not None and victim.bookie_id in mark.replicas:
                    return True
            return False

        await until(is_marked, f"ledgers are marked because {victim.bookie_id} is away", seconds=_STEP_S)
        await asyncio.sleep(self._random.uniform(0.0, 2.0))  # Not a wait for anything: the moment is the random input.
        victim.start()
        self._in_trouble.remove(victim)

    async def _start_doomed(self) -> Child:
        command: list[str | Path] = [sys.executable, _DOOMED_PROGRAM, self._cluster.metadata, *_SETTINGS[:1]]
        doomed = Child(command, log=self._directory / "doomed.log", stdout=subprocess.PIPE)
        self._doomed.append(doomed)
        stdout = doomed.popen.stdout
        assert stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(stdout.readline), _STEP_S)
        if line != b"ready\n":
            raise ProcessFailedError(f"the doomed worker did not get ready: {doomed.log_tail()}")
        return doomed

    async def _lose_session(self) -> None:
        """Of a bookie that repairs a ledger now, if one does."""
        holders: dict[str, None] = {}
        for ledger_id in await self._healing.marked():
            holder = await self._healing.marks.holder(ledger_id)
            if holder is not None:
                holders[holder] = None
        victim = self._choose([bookie for bookie in self._bookies if bookie.bookie_id in holders] or self._bookies)
        victim.pause()
        await asyncio.sleep(SESSION_S * 1.5 + self._random.uniform(0.0, 1.0))
        victim.resume()
        self._in_trouble.remove(victim)

    def _choose(self, bookies: list[BookieProcess]) -> BookieProcess:
        """One that is not in trouble; now it is."""
        chosen = self._random.choice([bookie for bookie in bookies if bookie not in self._in_trouble])
        self._in_trouble.append(chosen)
        return chosen

    # --- a bookie that leaves -----------------------------------------------------------------------------------------

    async def _decommission(self) -> None:
        """While another bookie is killed and comes back."""
        leaving = await self._choose_filled()
        bytes_moved = await self._bytes_on(leaving.bookie_id)
        command = [*MAGNETAR, "bookie", "decommission", leaving.bookie_id, "--json", "--metadata"]
        began = time.monotonic()
        command.append(self._cluster.metadata)
        running = Child(command, log=self._directory / "decommission.log")
        self._doomed.append(running)
        await self._healing.wait_marked(seconds=_STEP_S)
        others = [bookie for bookie in self._bookies if bookie is not leaving]
        other = self._random.choice(others)
        other.kill()
        await asyncio.sleep(SESSION_S + self._random.uniform(0.0, 3.0))
        other.start()
        await until(lambda: not running.is_running, "the decommission has ended", seconds=_DECOMMISSION_S)
        seconds = time.monotonic() - began
        if running.popen.returncode:
            raise ProcessFailedError(f"the decommission failed: {running.log_tail()}")
        self._gone.append(leaving.bookie_id)
        await self._healing.wait_healed(self._ids, self._gone, seconds=HEALED_S)
        found = await self._count()
        self._say(
            what="decommission", trouble=["another bookie killed meanwhile, and back"], restore_s=round(seconds, 2),
            mb_moved=round(bytes_moved / 1e6, 1), mb_per_s=round(bytes_moved / seconds / 1e6, 1), **found,
        )  # fmt: skip

    def _say(self, **figures: Any) -> None:
        self.figures.append(figures)
        print(f"  {json.dumps(figures)}", flush=True)


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(seed, directory, LEDGERS)


def run(seed: int, directory: Path, ledgers: int) -> dict[str, Any]:
    with ProcessCluster(directory, BOOKIES, _SETTINGS) as cluster:
        return asyncio.run(_run(cluster, seed, directory, ledgers))


async def _run(cluster: ProcessCluster, seed: int, directory: Path, ledgers: int) -> dict[str, Any]:
    config, runtime = Config(metadata=MetadataConfig(url=cluster.metadata)), SystemRuntime()
    stopped_by = None
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        healing = Healing(store, LedgerMetadataStore(store, BookKeeperPaths(), runtime.entropy))
        soaking = Soak(cluster, directory, healing, client, seed)
        try:
            await soaking.run(ledgers)
        except (MagnetarError, AssertionError) as error:
            stopped_by = f"{type(error).__name__}: {error}"
        finally:
            soaking.end()
            await soaking.abandon()
    return {
        "ledgers": ledgers,
        "mib": round(ledgers * ENTRIES * BYTES / 2**20, 1),
        "figures": soaking.figures,
        "troubles": soaking.troubles,
        "too_late": soaking.missed,
        "stopped_by": stopped_by,
        "passed": stopped_by is None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ledgers", type=int, default=LEDGERS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-autorecovery-") as directory:
        verdict = run(arguments.seed, Path(directory), arguments.ledgers)
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
