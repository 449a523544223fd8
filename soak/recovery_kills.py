"""Bookies are killed and their disks wiped, one after the other; every replica must come back each time, by itself.

Story:     seven bookies, ledgers of E3/Qw2/Qa2. A bookie, drawn from the seed, is killed and its disk removed; another
           one is started under a new id. When no ledger is marked and none names the lost bookie, a reader that shares
           no code with auto-recovery counts every replica of every entry. Three times; then a bookie is decommissioned.
Figures:   `detect_s` from the kill to the first mark, which includes the end of the bookie's session; `restore_s` from
           the first mark to the last; `mb_per_s` for the bytes that the lost bookie had.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import ProcessFailedError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.gather import gather_bounded
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import MAGNETAR, BookieProcess
from workloads.replica_count import ReplicaCount, count_replicas, payload_of

BOOKIES, KILLS = 7, 3
LEDGERS, LEDGER_BYTES, ENTRY_BYTES = 200, 5_400_000, 10_000
SETTINGS = ("metadata.session_timeout_ms=6_000",)
_LOOK_S: Final = 0.05
_HEAL_S: Final = 900.0
_AT_ONCE: Final = 32


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(LEDGERS, LEDGER_BYTES, seed, directory)


def run(ledgers: int, ledger_bytes: int, seed: int, directory: Path) -> dict[str, Any]:
    with ProcessCluster(directory, BOOKIES, SETTINGS) as cluster:
        return asyncio.run(Story(cluster, directory, seed, ledgers, ledger_bytes // ENTRY_BYTES).run())


class Story:
    def __init__(self, cluster: ProcessCluster, directory: Path, seed: int, ledgers: int, entries: int) -> None:
        self._cluster = cluster
        self._directory = directory
        self._seed = seed
        self._ledgers = ledgers
        self._entries = entries
        self._random = random.Random(seed)
        self._bookies: list[BookieProcess] = list(cluster.bookies)
        self._extra: list[BookieProcess] = []
        self._gone: list[str] = []
        self._ids: list[int] = []

    async def run(self) -> dict[str, Any]:
        config, runtime = Config(metadata=MetadataConfig(url=self._cluster.metadata)), SystemRuntime()
        try:
            async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
                return await self._run(store, client)
        finally:
            for bookie in self._extra:
                bookie.kill()

    async def _run(self, store: MetadataStore, client: LedgerClient) -> dict[str, Any]:
        self._client, self._marks = client, UnderreplicationMarks(store, BookKeeperPaths())
        for _ in range(self._ledgers):
            await self._write()
        rounds = [await self._lose_one(number) for number in range(KILLS)]
        drained = await self._decommission()
        wrong = sum(each["wrong"] for each in [*rounds, drained])
        total = self._ledgers * self._entries * ENTRY_BYTES
        return {"ledgers": self._ledgers, "bytes": total, "kills": rounds, "decommission": drained, "wrong": wrong,
                "passed": wrong == 0}  # fmt: skip

    async def _write(self) -> None:
        async with await self._client.create(ensemble_size=3, write_quorum=2, ack_quorum=2) as writer:
            added = [
                writer.enqueue(payload_of(self._seed, writer.ledger_id, entry, ENTRY_BYTES))
                for entry in range(self._entries)
            ]
            await asyncio.gather(*added)
            await writer.close()
        self._ids.append(writer.ledger_id)

    async def _lose_one(self, number: int) -> dict[str, Any]:
        victim = self._bookies.pop(self._random.randrange(len(self._bookies)))
        copies = sum(_copies_on(metadata, victim.bookie_id) for metadata in await self._metadata())
        began = time.monotonic()
        victim.kill()
        shutil.rmtree(self._directory / victim.name)
        self._gone.append(victim.bookie_id)
        await self._until(self._is_marked, "the first mark")
        marked = time.monotonic()
        await self._until(self._is_healed, "no ledger needs the lost bookie any more")
        healed = time.monotonic()
        found = await self._count()
        fresh = BookieProcess(self._directory / f"fresh-{number}", self._cluster.metadata, *SETTINGS)
        self._extra.append(fresh)
        fresh.launch()
        await asyncio.to_thread(fresh.wait_ready)
        self._bookies.append(fresh)
        return {
            "lost": victim.bookie_id,
            "copies": copies,
            "detect_s": round(marked - began, 2),
            "restore_s": round(healed - marked, 2),
            "mb_per_s": round(copies * ENTRY_BYTES / 1e6 / max(healed - marked, 0.001), 1),
            "replicas": found.replicas,
            "wrong": found.wrong,
            "notes": found.notes,
        }

    async def _decommission(self) -> dict[str, Any]:
        leaving = self._bookies[self._random.randrange(len(self._bookies))]
        copies = sum(_copies_on(metadata, leaving.bookie_id) for metadata in await self._metadata())
        began = time.monotonic()
        command = [*MAGNETAR, "bookie", "decommission", leaving.bookie_id, "--metadata", self._cluster.metadata]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=_HEAL_S, check=False
        )
        if done.returncode:
            raise ProcessFailedError(f"the decommission failed: {done.stderr}")
        seconds = time.monotonic() - began
        self._gone.append(leaving.bookie_id)
        found = await self._count()
        return {
            "left": leaving.bookie_id,
            "copies": copies,
            "seconds": round(seconds, 2),
            "mb_per_s": round(copies * ENTRY_BYTES / 1e6 / seconds, 1),
            "replicas": found.replicas,
            "wrong": found.wrong,
            "notes": found.notes,
        }

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _count(self) -> ReplicaCount:
        ledgers = self._client.context.ledgers
        found = await count_replicas(ledgers, self._ids, self._seed, size_of=ENTRY_BYTES, absent=self._gone)
        if found.replicas != self._ledgers * self._entries * 2:
            found.note(f"{found.replicas} replicas instead of {self._ledgers * self._entries * 2}")
        return found

    async def _metadata(self) -> list[LedgerMetadata]:
        works = [partial(self._client.metadata, each) for each in self._ids]
        return await gather_bounded(works, _AT_ONCE)

    async def _is_marked(self) -> bool:
        async for _ in self._marks.list():
            return True
        return False

    async def _is_healed(self) -> bool:
        if await self._is_marked():
            return False
        lost = BookieId(self._gone[-1])
        return not any(lost in each.ensemble for found in await self._metadata() for each in found.fragments)

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        end = time.monotonic() + _HEAL_S
        while not await condition():
            if time.monotonic() > end:
                raise ProcessFailedError(f"waited {_HEAL_S:g} s in vain: {what}")
            await asyncio.sleep(_LOOK_S)


def _copies_on(metadata: LedgerMetadata, bookie: str) -> int:
    """Of a ledger with one fragment, or several of which each bookie has its share."""
    count = 0
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
        count += bookie in (ensemble[(entry_id + step) % 3] for step in range(metadata.write_quorum))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak.recovery_kills")
    parser.add_argument("--ledgers", type=int, default=LEDGERS)
    parser.add_argument("--ledger-bytes", type=int, default=LEDGER_BYTES)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="magnetar-recovery-") as directory:
        verdict = run(arguments.ledgers, arguments.ledger_bytes, arguments.seed, Path(directory))
    print(json.dumps(verdict))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
