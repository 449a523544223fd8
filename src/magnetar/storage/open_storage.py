"""Opening a bookie's ledger storage on the real machine: the one place that names RocksDB.

Index:     `index/` in the first ledger directory. RocksDB syncs its own directory, not the one above it: we do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from magnetar.config.storage import StorageConfig
from magnetar.runtime.offload import Offload
from magnetar.runtime.runtime import Runtime
from magnetar.storage.ledger_dirs import LedgerDirs
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.storage.location_index import LocationIndex
from magnetar.storage.ordered_store import OrderedStore

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
    """On RocksDB, or on the twin that a simulated runtime has for it. `read_only`: to look at, and nothing changes."""
    open_store = runtime.ordered_store or _rocksdb(read_only)
    reading, writing = runtime.offload(name="index-read"), runtime.offload(name="index-write")
    try:
        return LocationIndex(await writing(open_store, path), reading, writing)
    except BaseException:
        await _close(reading, writing)
        raise


def _rocksdb(read_only: bool) -> Callable[[str], OrderedStore]:
    # Imported here: loading the library takes a good part of a second of every command that does not need it.
    from magnetar.storage.rocksdb_store import RocksDbStore

    return partial(RocksDbStore, read_only=read_only)


async def _close(*lanes: Offload) -> None:
    for lane in lanes:
        await lane.aclose()
