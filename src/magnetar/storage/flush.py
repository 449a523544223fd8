"""Flush: one write cache becomes blocks of entry logs and a batch for the index.

Order:     blocks written → logs synced → index applied. Only then may the cache, and the journal's part of it, go.
Failure:   after a full disk the logs are written anew from the cache. Once they are synced the batch is fixed, and
           only applying it is tried again.
Threads:   building blocks is interpreter work: on a thread it would hold the same lock as the loop does, for longer at
           a time. So it is done on the loop, in slices of SLICE_BYTES; while one is being written the next is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.errors import SyncFailedError
from magnetar.runtime.disk import Buffer
from magnetar.storage.entry_log.writer import EntryLogWriter, NewBlock
from magnetar.storage.index.extents import Extent, extents_of
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.write_cache import CachedRun, WriteCache

SLICE_BYTES: Final = 512 * 2**10  # About a millisecond of work, or less.


@dataclass(slots=True)
class Flush:
    """A write cache that was swapped out and is not durable in logs and index yet."""

    cache: WriteCache
    flags: dict[int, LedgerFlags]
    mark: int
    batch: IndexBatch | None = field(default=None)
    """Set when the logs are synced."""

    def drop(self, ledger_id: int) -> None:
        """Writes nothing more of a ledger that is being deleted."""
        self.cache.drop(ledger_id)
        self.flags.pop(ledger_id, None)
        if self.batch is not None:
            self.batch.flags.pop(ledger_id, None)
            self.batch.extents = [extent for extent in self.batch.extents if extent.ledger_id != ledger_id]

    async def run(self, writer: EntryLogWriter, index: LocationIndex, block_bytes: int) -> None:
        if self.batch is None:
            extents = await self._write(writer, block_bytes)
            self.batch = IndexBatch(extents=extents, flags=self.flags, mark=self.mark)
        await index.apply(self.batch)

    async def _write(self, writer: EntryLogWriter, block_bytes: int) -> list[Extent]:
        try:
            extents = await _write_slices(writer, _slices(_blocks(self.cache, block_bytes)))
            await writer.sync()
        except SyncFailedError:
            raise
        except BaseException:
            await writer.abandon()
            raise
        return extents


class _Built(NamedTuple):
    block: NewBlock
    runs: list[CachedRun]
    """What it is made of."""


async def _write_slices(writer: EntryLogWriter, slices: Iterator[list[_Built]]) -> list[Extent]:
    extents: list[Extent] = []
    writing: asyncio.Task[list[Extent]] | None = None
    try:
        for pending in slices:
            if writing is not None:
                extents += await writing
            writing = asyncio.create_task(_write_slice(writer, pending), name="flush-slice")
            await asyncio.sleep(0)  # The write is with the disk's thread now, and other tasks had a turn.
        if writing is not None:
            extents += await writing
    finally:
        if writing is not None:
            await asyncio.wait([writing])  # However this ended, no write may continue after it.
    return extents


async def _write_slice(writer: EntryLogWriter, pending: list[_Built]) -> list[Extent]:
    places = await writer.append([built.block for built in pending])
    return [
        extent
        for (_, runs), place in zip(pending, places, strict=True)
        for ledger_id, entry_ids, _, _ in runs
        for extent in extents_of(ledger_id, entry_ids, place)
    ]


def _blocks(cache: WriteCache, block_bytes: int) -> Iterator[_Built]:
    """Yields the blocks to write. Runs of small ledgers share a block."""
    runs: list[CachedRun] = []
    views: list[memoryview] = []
    frames = size = 0
    for run in cache.runs(block_bytes):
        _, entry_ids, its_views, its_bytes = run
        runs.append(run)
        views += its_views
        frames += len(entry_ids)
        size += its_bytes
        if size >= block_bytes:
            yield _built(runs, views, frames)
            runs, views = [], []
            frames = size = 0
    if runs:
        yield _built(runs, views, frames)


def _built(runs: list[CachedRun], views: list[memoryview], frames: int) -> _Built:
    body: Buffer = views[0] if len(views) == 1 else b"".join(views)
    ledgers = [(ledger_id, its_bytes) for ledger_id, _, _, its_bytes in runs]
    return _Built(NewBlock(body, frames, ledgers), runs)


def _slices(blocks: Iterator[_Built]) -> Iterator[list[_Built]]:
    pending: list[_Built] = []
    size = 0
    for built in blocks:
        pending.append(built)
        size += len(built.block.body)
        if size >= SLICE_BYTES:
            yield pending
            pending, size = [], 0
    if pending:
        yield pending
