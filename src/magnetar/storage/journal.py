"""Journal: the bookie's write-ahead log. What it has called durable is there after any crash.

Invariant: `on_durable` is called for a record only after its group's sync returned, and in the order of submission.
Group:     what was submitted while the last group was being synced, up to `group_bytes_max`: one write, one sync, one
           hand-over to the disk's thread, one callback. There is no timer: who comes alone does not wait for company.
Failure:   a failed write or sync is the end. Nothing is acknowledged any more, nothing is retried, every later submit
           raises; `on_failed` is told once. The process must restart, and replay tells what is there.
Room:      while groups are small, zeros are filled in ahead of them, which makes their sync quicker (journal_room.py).
Files:     the next one is prepared while the current one is filled, so that rolling costs no sync in an add's way.
Backpressure: the queue is bounded; who finds no room waits (`wait_for_room`) and does not submit.
Read next: journal_format.py, journal_replay.py, journal_files.py, docs/journal.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.config.journal import JournalConfig
from magnetar.errors import (
    ClosedError,
    DiskError,
    DiskFullError,
    JournalFailedError,
    JournalOverloadedError,
    SyncFailedError,
)
from magnetar.runtime.disk import Buffer, Disk
from magnetar.runtime.entropy import Entropy
from magnetar.storage.journal_files import JournalFile, JournalFiles
from magnetar.storage.journal_format import GROUP_HEADER_BYTES, RecordKind
from magnetar.storage.journal_queue import Group, JournalQueue
from magnetar.storage.journal_replay import Deliver
from magnetar.storage.journal_room import RoomPolicy

OnDurable = Callable[[list[object]], None]
OnFailed = Callable[[JournalFailedError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    """Since the journal was opened; the queue as it is now."""

    groups: int
    records: int
    bytes: int
    syncs: int
    files: int
    queue_records: int
    queue_bytes: int
    longest_sync_s: float
    """The longest time from handing a group over until it was durable."""
    durable_sequence: int


class Journal:
    """One owner. Made by `open`, ended by `aclose`; everything but the disk's work happens on the loop."""

    def __init__(
        self,
        config: JournalConfig,
        files: JournalFiles,
        current: JournalFile,
        on_durable: OnDurable,
        on_failed: OnFailed,
    ) -> None:
        """For `open` only."""
        self.durable_sequence = files.next_sequence - 1
        """Everything up to here is durable, in the journal or, below the mark, elsewhere."""
        self._config = config
        self._files = files
        self._current = current
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._queue = JournalQueue(
            files.next_sequence,
            group_bytes_max=config.group_bytes_max,
            records_max=config.queue_entries_max,
            bytes_max=config.queue_bytes_max,
        )
        self._room = RoomPolicy(config.preallocated_bytes, config.file_bytes_max)
        self._failure: JournalFailedError | None = None
        self._is_closing = False
        self._has_work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._groups = self._records = self._bytes = 0
        self._syncs = 1  # The first file's header.
        self._longest_sync_s = 0.0
        self._following = asyncio.create_task(self._prepare(None), name="journal-prepare")
        self._writer = asyncio.create_task(self._run(), name="journal-writer")

    @classmethod
    async def open(
        cls,
        disk: Disk,
        config: JournalConfig,
        mark: int,
        replay: Deliver,
        *,
        is_begun: bool,
        entropy: Entropy,
        on_durable: OnDurable,
        on_failed: OnFailed,
    ) -> Journal:
        """Replays what is behind the mark, then begins a new file.

        When it returns, everything that was replayed is durable. JournalDamagedError: nothing was changed.
        `is_begun`: it was opened before, so there must be a file.
        """
        files = JournalFiles(disk, entropy, config.spare_files_max)
        await files.open(mark, replay, is_begun=is_begun)
        current = await files.create(floor=files.next_sequence)
        return cls(config, files, current, on_durable, on_failed)

    @property
    def last_sequence(self) -> int:
        """The number that the last submit got, in this life or a former one."""
        return self._queue.next_sequence - 1

    @property
    def has_room(self) -> bool:
        return self._queue.has_room

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        """Queues one record whose body is these chunks, and returns its sequence number.

        The chunks are not copied: they must not change until `on_durable` had the token, or ever, if that never comes.
        """
        self._check_usable()
        if not self._queue.has_room:
            raise JournalOverloadedError("the journal's queue is full: wait_for_room() before submitting")
        sequence = self._queue.add(kind, chunks, token)
        self._has_work.set()
        return sequence

    async def wait_for_room(self) -> None:
        """Returns when a submit is possible; raises when none ever will be. The caller brings the timeout."""
        self._check_usable()
        while not self._queue.has_room:
            self._has_room.clear()
            await self._has_room.wait()
            self._check_usable()

    async def forget_through(self, sequence: int) -> int:
        """Removes the files whose records are all at or below this number, but for the current one. How many.

        One call at a time. When it returns, they are gone for good.
        """
        self._check_usable()
        try:
            count = await self._files.forget_through(sequence)
        except SyncFailedError as error:
            self._fail(error)
            raise
        self._syncs += bool(count)
        return count

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            groups=self._groups,
            records=self._records,
            bytes=self._bytes,
            syncs=self._syncs,
            files=len(self._files.old) + 1,
            queue_records=self._queue.records,
            queue_bytes=self._queue.bytes,
            longest_sync_s=self._longest_sync_s,
            durable_sequence=self.durable_sequence,
        )

    async def aclose(self) -> None:
        """Writes what was submitted, then ends. Again is harmless. The caller brings the timeout."""
        self._is_closing = True
        self._has_work.set()
        self._has_room.set()
        try:
            await self._writer
        finally:
            await self._close_files()

    # --- the writer ---

    async def _run(self) -> None:
        try:
            while await self._wait_for_work():
                await self._write(self._queue.take())
                await self._make_room()
            if self._failure is None:
                await self._write_end()
        except DiskError as error:
            self._fail(error)
        except Exception as error:  # A broken invariant: nothing may be acknowledged behind it. `aclose` raises it.
            self._fail(error)
            raise

    async def _wait_for_work(self) -> bool:
        """False: there will be none."""
        while self._queue.is_empty and not self._is_closing and self._failure is None:
            self._has_work.clear()
            await self._has_work.wait()
        return not self._queue.is_empty and self._failure is None

    async def _write(self, group: Group) -> None:
        if self._is_full_for(group):
            await self._roll()
        file, header = self._current.file, self._current.header
        chunks = group.seal(header.file_id)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await file.append_and_sync(chunks)
        self._current.last_sequence = group.last_sequence
        self._longest_sync_s = max(self._longest_sync_s, loop.time() - begin)
        self._groups += 1
        self._syncs += 1
        self._records += len(group.tokens)
        self._bytes += GROUP_HEADER_BYTES + group.body_bytes
        self._room.note_group(GROUP_HEADER_BYTES + group.body_bytes)
        if self._failure is None:  # Else something failed meanwhile: durable or not, this is not acknowledged.
            self._announce(group)

    def _announce(self, group: Group) -> None:
        self.durable_sequence = group.last_sequence
        self._queue.done(group)
        self._has_room.set()
        self._on_durable(group.tokens)

    async def _make_room(self) -> None:
        """Behind a group and not before it: its writers have their answer already."""
        current = self._current
        wanted = self._room.wanted(current.file.size, current.room)
        if wanted is None or self._is_closing or self._failure is not None:
            return
        try:
            await current.file.preallocate(wanted)
        except DiskFullError:
            self._room.give_up()  # It is only for speed; a group may still find room.
            return
        current.room = wanted
        self._syncs += 1

    async def _write_end(self) -> None:
        """A group without records: what stands before it was complete, so damage there is not a torn tail."""
        end = Group(self._queue.next_sequence)
        await self._current.file.append_and_sync(end.seal(self._current.header.file_id))
        self._syncs += 1

    def _is_full_for(self, group: Group) -> bool:
        size = self._current.file.size + GROUP_HEADER_BYTES + group.body_bytes
        return size > self._config.file_bytes_max and not self._current.is_new

    async def _roll(self) -> None:
        full, self._current = self._current, await self._following
        self._following = asyncio.create_task(self._prepare(full), name="journal-prepare")

    async def _prepare(self, full: JournalFile | None) -> JournalFile:
        """The next file; and the one before the current is put away."""
        try:
            if full is not None:
                await self._files.retire(full)
            following = await self._files.create(floor=self.durable_sequence + 1)
        except DiskError as error:
            self._fail(error)  # At once: no add is acknowledged after a failed sync, whatever it was of.
            raise
        self._syncs += 1
        return following

    # --- the end ---

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise ClosedError("the journal is closed")

    def _fail(self, cause: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = JournalFailedError(f"the journal has failed and acknowledges nothing more: {cause}")
        self._failure.__cause__ = cause
        self._queue.drop()
        self._has_work.set()
        self._has_room.set()
        self._on_failed(self._failure)

    async def _close_files(self) -> None:
        (following,) = await asyncio.gather(self._following, return_exceptions=True)
        if isinstance(following, JournalFile):
            await following.file.aclose()
        await self._current.file.aclose()
