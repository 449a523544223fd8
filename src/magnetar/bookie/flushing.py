"""Flushing, as a bookie does it: write cache to entry logs and index, then the marks, then old journal files.

Begin:     what replay brought is flushed before the first request, if it fills the write cache: a bookie that is killed
           again and again would else have a cache more to replay each time. From then on the cache never waits for
           anything but the disk, also not for the registration, which may take as long as a session lives.
Full disk: nothing is lost; it is tried again every second, also when nothing else makes a flush due. Every other
           failure is the bookie's end.
Read next: storage/flush.py, journals.py
"""

from __future__ import annotations

import asyncio
import logging

from magnetar.bookie.gate import Gate
from magnetar.bookie.journals import Journals
from magnetar.errors import DiskFullError
from magnetar.storage.ledger_storage import LedgerStorage

log = logging.getLogger(__name__)

_FULL_DISK_RETRY_S = 1.0


class Flushing:
    """Made when storage and journals are open; `run` and `open_gate` are tasks of its owner."""

    def __init__(self, storage: LedgerStorage, journals: Journals, cache_gate: Gate) -> None:
        self._storage = storage
        self._journals = journals
        self._cache_gate = cache_gate
        self._lock = asyncio.Lock()
        self._last: asyncio.Future[None] | None = None
        self._is_disk_full = False

    async def flush_replayed(self) -> None:
        """Before anything is served."""
        if not self._storage.has_room:
            await self._try()

    async def run(self) -> None:
        while True:
            if self._is_disk_full:  # What could not be written waits in the other cache, which makes no flush due.
                await asyncio.sleep(_FULL_DISK_RETRY_S)
            else:
                await self._storage.wait_flush_due()
            await self._try()

    async def open_gate(self) -> None:
        """Room in the write cache comes when the caches are swapped, which no journal group announces."""
        while True:
            await self._cache_gate.wait_shut()
            while not await self._storage.wait_for_room():
                log.warning("the write cache is full and the disk is slow: adds are refused")
            self._cache_gate.open()

    async def _try(self) -> None:
        """Or notes that the disk is full."""
        try:
            await self.flush()
        except DiskFullError as error:
            self._is_disk_full = True
            log.error("nothing can be flushed", extra={"why": str(error)})
        else:
            self._is_disk_full = False

    async def flush(self) -> None:
        """One at a time.

        It goes to its end even if who waits for it is cancelled: a stop in the middle would find files that are gone
        and still counted.
        """
        self._last = asyncio.ensure_future(self._flush_one_by_one())
        await asyncio.shield(self._last)

    async def _flush_one_by_one(self) -> None:
        async with self._lock:
            await self._journals.settle(await self._storage.flush())

    async def aclose(self) -> None:
        """Returns when no flush is under way."""
        if self._last is not None:  # Those before it have ended.
            await asyncio.wait([self._last])
