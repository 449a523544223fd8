"""Entries, chunks of add frames, and storages on real and simulated machines."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from magnetar.config.storage import StorageConfig
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime
from magnetar.sim.device import Crash, DiskTiming
from magnetar.sim.machine import SimMachine
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.frames import add_frame, by_ledger
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.index.ordered_store import MemoryImage, MemoryStore
from magnetar.storage.ledger_flags import NO_FLAGS
from magnetar.storage.ledger_storage import LedgerStorage, open_storage
from magnetar.wire.bookkeeper.hot_path import scan_adds

KEY = b"k" * 20
Wanted = Sequence[tuple[int, int]]


def entry_bytes(ledger_id: int, entry_id: int, payload: int = 50, salt: int = 0) -> bytes:
    head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, payload * (entry_id % 1000))
    seed = struct.pack(">QQQ", ledger_id, entry_id, salt)
    return head + b"dddd" + (seed * (payload // len(seed) + 1))[:payload]


def chunk_of(entries: Iterable[bytes]) -> bytes:
    return b"".join(add_frame(KEY, entry) for entry in entries)


def add(storage: LedgerStorage, entries: Iterable[bytes]) -> None:
    """One chunk, as the bookie adds it."""
    chunk = chunk_of(entries)
    run = scan_adds(chunk, 0, len(chunk), len(chunk))
    assert run.end == len(chunk)
    for ledger_id, first, end in by_ledger(run):
        storage.add_run(ledger_id, chunk, run.entry_ids[first:end], run.offsets[first:end], run.lengths[first:end])


async def listed(storage: LedgerStorage, ledger_id: int) -> list[int]:
    """Every entry that the storage says it has."""
    return [entry_id async for page in storage.entry_pages(ledger_id) for entry_id in page]


async def change_flags(storage: LedgerStorage, ledger_id: int, **changes: Any) -> None:
    """As a bookie does it: nothing runs between the look at the current flags and the change."""
    current = await storage.get_flags(ledger_id)
    storage.set_flags(ledger_id, dataclasses.replace(current or NO_FLAGS, **changes))


def small_config(**changes: int) -> StorageConfig:
    """Everything at its smallest, so that a few entries meet every boundary."""
    values = {
        "write_cache_bytes_max": 1 << 20,
        "block_bytes": 300,
        "log_bytes_max": 4096,
        "read_ahead_bytes": 1000,
        "read_cache_bytes_max": 2000,
        "open_logs_max": 2,
        "index_reserve_bytes": 0,
    }
    return StorageConfig(**(values | changes))


class Counter:
    """Stands for the journal's numbers."""

    def __init__(self) -> None:
        self.value = 0

    def __call__(self) -> int:
        return self.value


async def real_storage(
    root: Path, config: StorageConfig | None = None, *, dirs: int = 1, submitted: Counter | None = None, mark: int = 0
) -> LedgerStorage:
    roots = [str(root / f"ledgers-{number}") for number in range(dirs)]
    return await open_storage(
        SystemRuntime(), roots, config or small_config(), submitted=submitted or Counter(), journal_mark=mark
    )


class World:
    """A machine whose disks and index outlive its processes."""

    def __init__(
        self, seed: str = "0", config: StorageConfig | None = None, *, dirs: int = 1, timing: DiskTiming | None = None
    ) -> None:
        self.machine = SimMachine(seed, disk_timing=timing)
        self.roots = [f"/ledgers-{number}" for number in range(dirs)]
        self.devices = [self.machine.mount(root) for root in self.roots]
        self.image = MemoryImage()
        self.config = config or small_config()
        self.submitted = Counter()
        self.runtime: Runtime = self.machine.start()

    async def open(self, mark: int = 0) -> LedgerStorage:
        dirs = await LedgerDirs.open(self.runtime, self.roots)
        return await LedgerStorage.open(
            dirs, self.index(), self.runtime.entropy, self.config, submitted=self.submitted, journal_mark=mark
        )

    def index(self, image: MemoryImage | None = None) -> LocationIndex:
        reading, writing = self.runtime.offload(name="index-read"), self.runtime.offload(name="index-write")
        return LocationIndex(MemoryStore(image if image is not None else self.image), reading, writing)

    def crash(self, kind: Crash = Crash.POWER_LOSS) -> None:
        self.machine.crash(kind)
        self.runtime = self.machine.start()


async def check(storage: LedgerStorage, expected: dict[tuple[int, int], bytes]) -> None:
    for (ledger_id, entry_id), entry in expected.items():
        assert bytes(await storage.get_entry(ledger_id, entry_id)) == entry
