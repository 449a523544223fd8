"""Journal: the bookie's write-ahead log. A record that was reported durable survives any crash.

Invariant: `on_durable` is called for a record only after its group's sync returned, and in the order of submission. A
           group that was taken from the queue does not change any more; later records go to the next one.
Order:     a group is what was submitted while the last one was being synced, up to `group_bytes_max`: one write, one
           sync, one hand-over to the disk's thread, one callback. There is no timer: a single record is written at
           once. The next file is prepared while the current one is filled, so that no add waits for a new file's sync.
           While groups are small, zeros are filled in ahead of them, which makes their sync quicker (files.py).
Failure:   a failed write or sync is final. Nothing is acknowledged any more, nothing is retried, every later submit
           raises; `on_failed` is called once. The process must restart, and replay finds what is durable.
Limits:    the queue bounds records and bytes, counted from `add` until the group is done, so the group being written
           counts as well. A caller that finds no room waits (`wait_for_room`) and does not submit.
Read next: format.py, replay.py, files.py, docs/journal.md
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from magnetar.config.storage import JournalConfig
from magnetar.errors import (
    ClosedError,
    DiskError,
    DiskFullError,
    JournalFailedError,
    JournalOverloadedError,
    SyncFailedError,
)
from magnetar.runtime.disk import Buffer, Disk
from magnetar.runtime.runtime import Entropy
from magnetar.storage.journal.files import JournalFile, JournalFiles, RoomPolicy
from magnetar.storage.journal.format import (
    GROUP_HEADER_BYTES,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    RecordKind,
    group_header,
    record_header,
)
from magnetar.storage.journal.replay import Deliver


class Group:
    __slots__ = ("body_bytes", "chunks", "first_sequence", "tokens")

    def __init__(self, first_sequence: int) -> None:
        self.first_sequence = first_sequence
        self.chunks: list[Buffer] = [b""]  # The place of the header.
        self.tokens: list[object] = []
        self.body_bytes = 0

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + len(self.tokens) - 1

    def seal(self, file_id: int) -> list[Buffer]:
        """Fills the header in, and returns the chunks to write."""
        body = self.chunks[1:]
        self.chunks[0] = group_header(file_id, self.first_sequence, len(self.tokens), self.body_bytes, body)
        return self.chunks


class JournalQueue:
    def __init__(self, next_sequence: int, *, group_bytes_max: int, records_max: int, bytes_max: int) -> None:
        self.next_sequence = next_sequence
        self.records = 0
        self.bytes = 0
        self._group_bytes_max = group_bytes_max
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._groups: deque[Group] = deque()

    @property
    def has_room(self) -> bool:
        """Reports room for one more record, whatever its size: a record larger than the bound must not wait forever."""
        return self.records < self._records_max and self.bytes < self._bytes_max

    @property
    def is_empty(self) -> bool:
        """Nothing waits; the writer may have a group."""
        return not self._groups

    def add(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        length = sum(map(len, chunks))
        assert length <= RECORD_BYTES_MAX, "no frame that we accept makes such a record"
        size = length + RECORD_HEADER_BYTES
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        groups = self._groups
        if not groups or groups[-1].body_bytes + size > self._group_bytes_max:
            groups.append(Group(sequence))
        group = groups[-1]
        group.chunks.append(record_header(kind, length))
        group.chunks.extend(chunks)
        group.tokens.append(token)
        group.body_bytes += size
        self.records += 1
        self.bytes += size
        return sequence

    def take(self) -> Group:
        return self._groups.popleft()

    def done(self, group: Group) -> None:
        self.records -= len(group.tokens)
        self.bytes -= group.body_bytes

    def drop(self) -> None:
        """Drops everything that waits."""
        self._groups.clear()
        self.records = self.bytes = 0


OnDurable = Callable[[list[object]], None]
OnFailed = Callable[[JournalFailedError], None]


class Journal:
    """Has one owner. Made by `open`, ended by `aclose`; everything but the disk's work happens on the loop."""

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
        self.files = files
        self._current = current
        self._on_durable = on_durable
        self._on_failed = on_failed
        self.queue = JournalQueue(
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
        self.groups = self.records = 0
        """Those that were written since the journal was opened."""
        self.syncs = 1  # The first file's header.
        self.longest_sync_s = 0.0
        """The longest time from handing a group over until it was durable."""
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
        """Replays the records after the mark, then begins a new file.

        When it returns, everything that was replayed is durable. JournalDamagedError: nothing was changed.
        `is_begun`: the journal was opened before, so a file must exist.
        """
        files = JournalFiles(disk, entropy, config.spare_files_max)
        current = await files.open(mark, replay, is_begun=is_begun)
        return cls(config, files, current, on_durable, on_failed)

    @property
    def last_sequence(self) -> int:
        """The number that the last submit got, in this process or a former one."""
        return self.queue.next_sequence - 1

    @property
    def has_room(self) -> bool:
        return self.queue.has_room

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        """Queues one record whose body is these chunks, and returns its sequence number.

        The chunks are not copied: they must not change until `on_durable` had the token, or ever, if that never comes.
        """
        self._check_usable()
        if not self.queue.has_room:
            raise JournalOverloadedError("the journal's queue is full: wait_for_room() before submitting")
        sequence = self.queue.add(kind, chunks, token)
        self._has_work.set()
        return sequence

    async def wait_for_room(self) -> None:
        """Returns when a submit is possible; raises when it never will be. The caller brings the timeout."""
        self._check_usable()
        while not self.queue.has_room:
            self._has_room.clear()
            await self._has_room.wait()
            self._check_usable()

    async def forget_through(self, sequence: int) -> int:
        """Removes the files whose records are all at or below this number, but for the current one; returns how many.

        One call at a time. When it returns, the removal is durable.
        """
        self._check_usable()
        try:
            count = await self.files.forget_through(sequence)
        except SyncFailedError as error:
            self._fail(error)
            raise
        self.syncs += bool(count)
        return count

    async def aclose(self) -> None:
        """Writes what was submitted, then ends. Repeated calls are harmless. The caller brings the timeout."""
        self._is_closing = True
        self._has_work.set()
        self._has_room.set()
        try:
            await self._writer
        finally:
            await self._close_files()

    async def _run(self) -> None:
        try:
            while await self._wait_for_work():
                await self._write(self.queue.take())
                await self._make_room()
            if self._failure is None:
                await self._write_end()
        except DiskError as error:
            self._fail(error)
        except Exception as error:  # A broken invariant: nothing may be acknowledged after it. `aclose` raises it.
            self._fail(error)
            raise

    async def _wait_for_work(self) -> bool:
        """Returns False when no more work will come."""
        while self.queue.is_empty and not self._is_closing and self._failure is None:
            self._has_work.clear()
            await self._has_work.wait()
        return not self.queue.is_empty and self._failure is None

    async def _write(self, group: Group) -> None:
        if self._is_full_for(group):
            await self._roll()
        file, header = self._current.file, self._current.header
        chunks = group.seal(header.file_id)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await file.append_and_sync(chunks)
        self._current.last_sequence = group.last_sequence
        self.longest_sync_s = max(self.longest_sync_s, loop.time() - begin)
        self.groups += 1
        self.syncs += 1
        self.records += len(group.tokens)
        self._room.note_group(GROUP_HEADER_BYTES + group.body_bytes)
        if self._failure is None:  # Otherwise something failed since: durable or not, this is not acknowledged.
            self._announce(group)

    def _announce(self, group: Group) -> None:
        self.durable_sequence = group.last_sequence
        self.queue.done(group)
        self._has_room.set()
        self._on_durable(group.tokens)

    async def _make_room(self) -> None:
        """Runs after a group and not before it: its writers have their answer already."""
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
        self.syncs += 1

    async def _write_end(self) -> None:
        """Writes a group without records: everything before it was complete, so damage there is not a torn tail."""
        end = Group(self.queue.next_sequence)
        await self._current.file.append_and_sync(end.seal(self._current.header.file_id))
        self.syncs += 1

    def _is_full_for(self, group: Group) -> bool:
        size = self._current.file.size + GROUP_HEADER_BYTES + group.body_bytes
        return size > self._config.file_bytes_max and not self._current.is_new

    async def _roll(self) -> None:
        full, following = self._current, await self._following
        if following is None:  # The device was full; it may have room now.
            following = await self.files.create(floor=self.durable_sequence + 1)
        self._current = following
        self._following = asyncio.create_task(self._prepare(full), name="journal-prepare")

    async def _prepare(self, full: JournalFile | None) -> JournalFile | None:
        """Makes the next file, and retires the one before the current. Returns None if the device is full."""
        try:
            if full is not None:
                await self.files.retire(full)
            following = await self.files.create(floor=self.durable_sequence + 1)
        except DiskFullError:
            return None  # The current file may have room, and the device may get room before that file is full.
        except DiskError as error:
            self._fail(error)  # At once: no add is acknowledged after any failed sync.
            raise
        self.syncs += 1
        return following

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
        self.queue.drop()
        self._has_work.set()
        self._has_room.set()
        self._on_failed(self._failure)

    async def _close_files(self) -> None:
        (following,) = await asyncio.gather(self._following, return_exceptions=True)
        if isinstance(following, JournalFile):
            await following.file.aclose()
        await self._current.file.aclose()
