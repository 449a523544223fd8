"""Entry log writer: appends blocks to the current log, and begins another when it is full.

Invariant: when `sync` returns, everything appended is durable, names included. Only then may the index refer to it.
Failure:   a full disk leaves the logs as they were at the last sync (`abandon`), and the next try begins a new log, in
           the next directory. A reader that has seen what is cut off opens the log anew. A failed sync is final: the
           caller stops.
Limits:    the newest `cached_bytes` stay in the kernel's page cache for readers that follow closely; older pages are
           given back once they are durable, so that the next blocks find free pages.
Read next: format.py
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.errors import DiskError, MagnetarError, SyncFailedError
from magnetar.runtime.disk import Buffer, File
from magnetar.storage.entry_log.format import (
    BLOCK_HEADER_BYTES,
    ENTRIES,
    LOGS,
    encode_block,
    encode_header,
    finish,
    log_path,
)
from magnetar.storage.entry_log.ledger_dirs import LedgerDir, LedgerDirs
from magnetar.storage.index.extents import BlockPlace

_log = logging.getLogger(__name__)

_FINISHED_MAX = 8  # Files that stay open only for their pages; with logs of the usual size, it is one.


class NewBlock(NamedTuple):
    body: Buffer
    frames: int
    ledgers: list[tuple[int, int]]
    """(ledger, bytes) pairs for the log's ledger map."""


@dataclass(slots=True, eq=False)
class _Log:
    log_id: int
    directory: LedgerDir
    file: File
    offset: int = 0
    """The place of the next block."""
    written: int = 0
    synced: int = 0
    """Bytes that the last sync covered; 0 for a log that is not durable at all yet."""
    is_finished: bool = False
    ledger_bytes: dict[int, int] = field(default_factory=dict)


class EntryLogWriter:
    def __init__(self, dirs: LedgerDirs, log_bytes_max: int, cached_bytes: int) -> None:
        self._dirs = dirs
        self._log_bytes_max = log_bytes_max
        self._cached_bytes = cached_bytes
        self._finished: deque[_Log] = deque()
        """Durable logs that are still open because some of their pages are wanted."""
        self._current: _Log | None = None
        self._unsynced: list[_Log] = []

    async def append(self, blocks: list[NewBlock]) -> list[BlockPlace]:
        """Writes the blocks one after the other, in as few calls as logs are needed. They are not durable yet."""
        places: list[BlockPlace] = []
        chunks: list[Buffer] = []
        for block in blocks:
            size = BLOCK_HEADER_BYTES + len(block.body)
            if self._current is not None and self._current.offset + size > self._log_bytes_max:
                await self._append_chunks(self._current, chunks)
                chunks = []
                await self._finish_current()
            log = self._current or await self._begin()
            chunks += (encode_block(ENTRIES, log.log_id, log.offset, block.frames, block.body), block.body)
            places.append(BlockPlace(log.log_id, log.offset, size))
            log.offset += size
            for ledger_id, ledger_bytes in block.ledgers:
                log.ledger_bytes[ledger_id] = log.ledger_bytes.get(ledger_id, 0) + ledger_bytes
        if self._current is not None:
            await self._append_chunks(self._current, chunks)
        return places

    async def sync(self) -> None:
        for log in self._unsynced:
            await log.file.sync()
            if not log.synced:  # Its name is new as well.
                await log.directory.writing.sync_dir(LOGS)
            log.synced = log.offset
        self._finished.extend([log for log in self._unsynced if log.is_finished])
        self._unsynced.clear()
        await self._forget_old_pages()

    def log_ids(self) -> set[int]:
        """Returns the logs that are not finished and durable yet."""
        return {log.log_id for log in (*self._unsynced, *filter(None, [self._current]))}

    async def abandon(self) -> None:
        """Gives the room of unsynced bytes back, as far as the disk allows it; nothing refers to them."""
        logs, self._unsynced = self._unsynced, []
        if self._current in logs:
            self._current = None
        for log in logs:
            try:
                await self._undo(log)
            except MagnetarError as error:
                _log.warning("%s keeps bytes that nothing refers to: %s", log_path(log.log_id), error)

    async def aclose(self) -> None:
        """Finishes the current log, so that the next start need not scan it. Everything was synced before.

        SyncFailedError: what was synced still exists, but the caller must stop.
        """
        try:
            if self._current is not None:
                await self._finish_for_good(self._current)
        finally:
            for log in self._finished:
                await log.file.aclose()
            self._finished.clear()

    async def _finish_for_good(self, log: _Log) -> None:
        try:
            await self._finish_current()
            await self.sync()
        except DiskError as error:  # Only the ledger map is missing: a scan finds the same.
            _log.warning("%s is left without its ledger map: %s", log_path(log.log_id), error)
            await log.file.aclose()
            if isinstance(error, SyncFailedError):
                raise

    async def _forget_old_pages(self) -> None:
        wanted = self._cached_bytes
        if self._current is not None:
            await self._current.file.forget_cached(max(0, self._current.synced - wanted))
            wanted = max(0, wanted - self._current.synced)
        total = sum(log.synced for log in self._finished)
        while self._finished and (total > wanted or len(self._finished) > _FINISHED_MAX):
            log = self._finished[0]
            await log.file.forget_cached(max(0, total - wanted))
            if total - wanted < log.synced and len(self._finished) <= _FINISHED_MAX:
                return
            total -= log.synced
            await log.file.aclose()
            self._finished.popleft()

    async def _begin(self) -> _Log:
        log_id, directory = self._dirs.new_log()
        try:
            file = await directory.writing.open(log_path(log_id), create=True)
        except DiskError:
            self._dirs.forget(log_id)
            raise
        log = _Log(log_id, directory, file)
        self._unsynced.append(log)
        self._current = log
        header = encode_header(log_id)
        log.offset = len(header)
        await self._append_chunks(log, [header])
        return log

    async def _append_chunks(self, log: _Log, chunks: list[Buffer]) -> None:
        if not chunks:
            return
        if log not in self._unsynced:
            self._unsynced.append(log)
        start = await log.file.append(chunks)
        assert start == log.written, f"{log.file.path} has {start} bytes where {log.written} were written"
        log.written += sum(len(chunk) for chunk in chunks)

    async def _finish_current(self) -> None:
        log, self._current = self._current, None
        assert log is not None, "there is a log to finish"
        log.is_finished = True
        ending = finish(log.log_id, log.offset, log.ledger_bytes)
        await self._append_chunks(log, list(ending))
        log.offset += sum(len(chunk) for chunk in ending)

    async def _undo(self, log: _Log) -> None:
        if log.synced:
            await log.file.truncate(log.synced)
            await log.file.aclose()
        else:
            await log.file.aclose()
            await log.directory.writing.remove(log_path(log.log_id))
            self._dirs.forget(log.log_id)
