"""Opening a bookie's ledger storage on the real machine: the one place that names RocksDB.

Order:     `index/` in the first ledger directory. RocksDB syncs its own directory, not the one above it: this does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from magnetar.config.storage import StorageConfig
from magnetar.runtime.runtime import Offload, Runtime
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.index.ordered_store import OrderedStore
from magnetar.storage.ledger_storage import LedgerStorage

INDEX: Final = "index"


async def open_storage(
    runtime: Runtime,
    roots: Sequence[str],
    config: StorageConfig,
    *,
    submitted: Callable[[], int],
    journal_mark: int = 0,
) -> LedgerStorage:
    dirs = await LedgerDirs.open(runtime, roots)
    index: LocationIndex | None = None
    try:
        index = await open_rocksdb_index(runtime, f"{roots[0]}/{INDEX}")
        await dirs.dirs[0].writing.sync_dir("")
        return await LedgerStorage.open(
            dirs, index, runtime.entropy, config, submitted=submitted, journal_mark=journal_mark
        )
    except BaseException:
        if index is not None:
            await index.aclose()
        await dirs.aclose()
        raise


async def open_rocksdb_index(runtime: Runtime, path: str, *, read_only: bool = False) -> LocationIndex:
    """Opens RocksDB, or the counterpart that a simulated runtime has for it. `read_only`: nothing changes."""
    open_store = runtime.ordered_store or _rocksdb(read_only)
    reading, writing = runtime.offload(name="index-read"), runtime.offload(name="index-write")
    try:
        return LocationIndex(await writing(open_store, path), reading, writing)
    except BaseException:
        await _close(reading, writing)
        raise


def _rocksdb(read_only: bool) -> Callable[[str], OrderedStore]:
    # Imported here: loading the library takes a good part of a second of every command that does not need it.
    from magnetar.storage.index.rocksdb_store import RocksDbStore

    return partial(RocksDbStore, read_only=read_only)


async def _close(*lanes: Offload) -> None:
    for lane in lanes:
        await lane.aclose()
