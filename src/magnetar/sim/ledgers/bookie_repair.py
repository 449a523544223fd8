"""The operator: what a person does about a bookie that refuses to start, because a disk was lost or is damaged.

As `magnetar bookie limbo` does it: ledgers of which something may be missing are fenced and in limbo, damaged journal
files are set aside, the index is made anew if a ledger directory was lost, and the cookie is written again. It runs as
a process on the bookie's node, so it can be cut short as well.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.bookie.directories import BookieDirectories, DirectoryLayout, open_directories
from magnetar.bookie.identity import identify_for_repair, restore_port
from magnetar.bookie.limbo import find_suspects, repair
from magnetar.config.root import Config
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.store import MetadataStore
from magnetar.sim.machine import SimMachine, SimRuntime
from magnetar.storage.entry_log.format import LOGS
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import EntryLogReader
from magnetar.storage.index.memory_store import MemoryImage
from magnetar.storage.index.rebuild import rebuild_index
from magnetar.storage.journal.mark import JournalMark
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.storage.open_storage import INDEX, open_rocksdb_index, open_storage

_NEW = ".new"


async def put_in_limbo(config: Config, runtime: SimRuntime, store: MetadataStore, machine: SimMachine) -> None:
    """When it returns, the bookie may start. MagnetarError if this bookie is beyond repair."""
    layout = DirectoryLayout.from_config(config.bookie, base="/")
    directories = await open_directories(runtime, layout)
    try:
        await _repair(config, runtime, store, machine, directories)
    finally:
        await directories.aclose()


async def _repair(
    config: Config, runtime: SimRuntime, store: MetadataStore, machine: SimMachine, directories: BookieDirectories
) -> None:
    paths = BookKeeperPaths(config.metadata.ledgers_root)
    found = await identify_for_repair(directories, store, paths, config.bookie)
    ledgers = LedgerMetadataStore(store, paths, runtime.entropy)
    suspects = await find_suspects(ledgers, found.cookie.bookie_id)
    await restore_port(directories, config.bookie, found.cookie.bookie_id)

    async def open_it(submitted: Callable[[], int], mark: int) -> LedgerStorage:
        return await open_storage(
            runtime, directories.layout.ledger, config.storage, submitted=submitted, journal_mark=mark
        )

    async def rebuild_it() -> None:
        for directory in directories.ledger:
            await directory.disk.make_dir(LOGS)
        await _rebuild(config, runtime, machine, directories)

    await repair(
        directories,
        found.cookie,
        found.lost,
        suspects,
        entropy=runtime.entropy,
        open_storage=open_it,
        rebuild_index=rebuild_it,
    )


async def _rebuild(config: Config, runtime: SimRuntime, machine: SimMachine, directories: BookieDirectories) -> None:
    """Beside the old one, whose place it takes when it is complete. The flags of the old one are not trusted."""
    roots = directories.layout.ledger
    current, new = f"{roots[0]}/{INDEX}", f"{roots[0]}/{INDEX}{_NEW}"
    machine.put_index(new, MemoryImage())
    disks = {directory.path: directory.disk for directory in directories.ledger}
    mark = (await JournalMark.open(disks, directories.layout.journal)).sequence
    dirs = await LedgerDirs.open(runtime, roots)
    try:
        logs = EntryLogReader(dirs, config.storage.open_logs_max)
        index = await open_rocksdb_index(runtime, new)
        try:
            await rebuild_index(dirs, logs, index, old=None, mark=mark)
        finally:
            await index.aclose()
            await logs.aclose()
    finally:
        await dirs.aclose()
    machine.put_index(current, machine.index_image(new))
