"""The journals of a bookie, as requests use them: one, or several on a device each, written at once, replayed as one.

Invariant: a ledger's records all go to one journal, chosen by its id, so they are replayed in their order. With another
           number of journals the choice differs; then everything is flushed before the first request, so that no
           ledger ever has needed records in two of them.
Order:     a token is a list of adds, or a future; one call per group: all answers of a group leave in one turn of the
           loop. With one journal, requests reach it directly (`front` is the journal itself). With several, a run of
           adds for several of them becomes one record in each; each part is answered when its own journal has synced.
           Each journal has a mark. `submitted` notes all positions at once, under their total; when storage has flushed
           up to that total, each journal may forget what is at or below its own position (storage/journal/mark.py).
           Replay puts entries into the write cache at once. Flags are gathered, and applied when the journals have been
           read to their ends: the old flags must come from the index, and replay does not wait.
Failure:   any failure that ends the bookie, of a journal or of another part, ends this: nothing more is reported as
           durable, and nothing more is accepted.
Read next: storage/journal/journal.py
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import struct
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from magnetar.bookie.adds import Adds, DurableAdds
from magnetar.bookie.ledgers import RecordSink
from magnetar.config.storage import JournalConfig
from magnetar.errors import ConfigError, DiskError, JournalDamagedError, JournalFailedError, MagnetarError
from magnetar.runtime.disk import Buffer, Disk
from magnetar.runtime.runtime import Runtime
from magnetar.storage.frames import ENTRY_OFFSET, by_ledger, keys_of, scan_frames
from magnetar.storage.journal.files import DIRECTORY
from magnetar.storage.journal.format import ExplicitLac, JournalRecord, RecordKind, decode_explicit_lac, decode_fence
from magnetar.storage.journal.journal import Journal, OnDurable, OnFailed
from magnetar.storage.journal.mark import JournalMark
from magnetar.storage.journal.replay import replay_files
from magnetar.storage.ledger_flags import EXPLICIT_LAC_BYTES_MAX, NO_FLAGS, LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage

log = logging.getLogger(__name__)

Change = Callable[[LedgerFlags], LedgerFlags]


class Replay:
    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._changes: dict[int, list[Change]] = {}
        self._keys: dict[int, bytes] = {}
        self.records = 0
        self.entries = 0

    def deliver(self, record: JournalRecord) -> None:
        self.records += 1
        match record.kind:
            case RecordKind.ADDS:
                self._add(bytes(record.body), f"journal record {record.sequence}")
            case RecordKind.FENCE:
                fence = decode_fence(record.body)
                self._change(fence.ledger_id, fence.master_key, lambda flags: dataclasses.replace(flags, fenced=True))
            case RecordKind.EXPLICIT_LAC:
                lac = decode_explicit_lac(record.body)
                self._change(lac.ledger_id, lac.master_key, _lac_change(lac))

    def _add(self, chunk: bytes, where: str) -> None:
        run = scan_frames(chunk, where)
        self.entries += len(run.entry_ids)
        for ledger_id, a, b in by_ledger(run):
            self._storage.add_run(ledger_id, chunk, run.entry_ids[a:b], run.offsets[a:b], run.lengths[a:b])
        for ledger_id, master_key in keys_of(run):
            self._keys.setdefault(ledger_id, master_key)

    def _change(self, ledger_id: int, master_key: bytes, change: Change) -> None:
        self._keys.setdefault(ledger_id, master_key)
        self._changes.setdefault(ledger_id, []).append(change)

    async def finish(self) -> None:
        for ledger_id, master_key in self._keys.items():
            known = await self._storage.get_flags(ledger_id) or NO_FLAGS
            changed = known if known.master_key is not None else dataclasses.replace(known, master_key=master_key)
            for change in self._changes.get(ledger_id, ()):
                changed = change(changed)
            if changed != known:
                self._storage.set_flags(ledger_id, changed)


def _lac_change(lac: ExplicitLac) -> Change:
    """Returns the change, or leaves an explicit LAC out that is too long for storage; the one before it stays.

    Earlier versions journaled any LAC, and then failed at every flush. To leave it out is safe: no client makes such a
    LAC, and without one, readers only wait for an entry that has the same LAC; they never see a missing entry. A cut
    one would be of no use, since its digest would be wrong.
    """
    if len(lac.body) <= EXPLICIT_LAC_BYTES_MAX:
        return lambda flags: dataclasses.replace(flags, explicit_lac=lac.body)
    log.warning("an explicit LAC is too long and left out", extra={"ledger": lac.ledger_id, "bytes": len(lac.body)})
    return lambda flags: flags


_LEDGER_ID = struct.Struct(">q")


_HOW_TO_REMOVE = (
    "Name it again, start the bookie and stop it gracefully (SIGTERM), which writes them to the entry logs; "
    "then take the directory out"
)


class Journals:
    """Made with the marks, before storage is; opened after it, because replay needs it. Ended by `aclose`."""

    def __init__(self, paths: Sequence[str], marks: JournalMark, on_durable: OnDurable, on_failed: OnFailed) -> None:
        self._paths = paths
        self._marks = marks
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._closing = AsyncExitStack()
        self._noted: dict[int, dict[str, int]] = {}
        self._is_failed = False
        self.all: list[Journal] = []
        self._front: RecordSink | None = None

    async def open(self, runtime: Runtime, config: JournalConfig, storage: LedgerStorage) -> None:
        """Replays all of them. JournalDamagedError has the whole path of the file."""
        await self._check_left_behind(runtime)
        replay = Replay(storage)
        for path in self._paths:
            self.all.append(await self._open_one(runtime, path, config, replay))
        await replay.finish()
        self._front = self.all[0] if len(self.all) == 1 else SeveralJournals(self.all)
        if not self._marks.has_same_journals:
            await self.settle(await storage.flush(), always=True)
        if replay.records:
            log.info("journal replayed", extra={"records": replay.records, "entries": replay.entries})

    async def _open_one(self, runtime: Runtime, path: str, config: JournalConfig, replay: Replay) -> Journal:
        number = f"-{len(self.all)}" if len(self._paths) > 1 else ""
        disk = runtime.disk(path, name=f"journal{number}")
        self._closing.push_async_callback(disk.aclose)
        try:
            journal = await Journal.open(
                disk,
                config,
                self._marks.positions[path],
                replay.deliver,
                is_begun=path in self._marks.begun,
                entropy=runtime.entropy,
                on_durable=self._on_durable if len(self._paths) == 1 else self._on_group,
                on_failed=self._on_failure,
            )
        except JournalDamagedError as error:
            raise JournalDamagedError(f"{path}/{error.path}", error.offset, error.what) from error
        self._closing.push_async_callback(journal.aclose)
        return journal

    @property
    def front(self) -> RecordSink:
        assert self._front is not None, "nothing is served before the journals are open"
        return self._front

    async def aclose(self) -> None:
        await self._closing.aclose()

    # --- failures -----------------------------------------------------------------------------------------------------

    def _on_group(self, tokens: list[object]) -> None:
        if not self._is_failed:
            self._on_durable(tokens)

    def _on_failure(self, error: JournalFailedError) -> None:
        self._is_failed = True
        if isinstance(self._front, SeveralJournals):
            self._front.fail(error)
        self._on_failed(error)

    # --- the mark -----------------------------------------------------------------------------------------------------

    def submitted(self) -> int:
        """Returns the total of everything handed to the journals; before they are open, what is known to be flushed."""
        if len(self.all) < len(self._paths):
            return self._marks.sequence
        positions = {path: journal.last_sequence for path, journal in zip(self._paths, self.all, strict=True)}
        total = self._marks.total(positions)
        self._noted[total] = positions
        return total

    async def settle(self, total: int, *, always: bool = False) -> None:
        """Moves the marks up to this flushed total, and removes what no journal needs. One call at a time.

        `always`: also if nothing has moved, to keep the list of journals.
        """
        positions = self._noted.get(total)
        self._noted = {noted: each for noted, each in self._noted.items() if noted >= total}
        if total <= self._marks.sequence and not always:
            return
        assert positions is not None, f"{total} is not a total that was submitted"
        await self._marks.move_all(positions)
        for path, journal in zip(self._paths, self.all, strict=True):
            await journal.forget_through(positions[path])

    # --- journals of before -------------------------------------------------------------------------------------------

    async def _check_left_behind(self, runtime: Runtime) -> None:
        """Refuses the start if a journal that is no longer configured has records that only it has."""
        for path, mark in self._marks.left_behind.items():
            disk = runtime.disk(path, name="journal-of-before")
            try:
                count = await _count_after(disk, mark)
            except (DiskError, JournalDamagedError) as error:
                raise ConfigError(
                    f"bookie.journal_dirs no longer names {path}, and that journal cannot be read ({error}): it may "
                    f"have records that exist nowhere else. {_HOW_TO_REMOVE}"
                ) from error
            finally:
                await disk.aclose()
            if count:
                raise ConfigError(
                    f"bookie.journal_dirs no longer names {path}, whose journal has {count} records that are in no "
                    f"entry log yet. {_HOW_TO_REMOVE}"
                )


class SeveralJournals:
    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals
        self._failure: JournalFailedError | None = None

    def fail(self, error: JournalFailedError) -> None:
        self._failure = error

    @property
    def has_room(self) -> bool:
        """Reports room in all of them: the next record may be for any."""
        return all(journal.has_room for journal in self._journals)

    async def wait_for_room(self) -> None:
        while True:
            for journal in self._journals:
                await journal.wait_for_room()
            if self.has_room:  # Otherwise the first is full again.
                return

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        """Returns the number of the journal that was written to last; numbers of two journals are never compared."""
        if self._failure is not None:
            raise self._failure
        chunk = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if isinstance(token, list) and isinstance(token[0], DurableAdds) and len(token[0].ledger_ids) > 1:
            return self._submit_run(token[0])
        (ledger_id,) = _LEDGER_ID.unpack_from(chunk, ENTRY_OFFSET if kind is RecordKind.ADDS else 0)
        return self.of(ledger_id).submit(kind, (chunk,), token)

    def of(self, ledger_id: int) -> Journal:
        return self._journals[ledger_id % len(self._journals)]

    def _submit_run(self, token: DurableAdds) -> int:
        """Submits adds of several ledgers: each journal gets the frames of its own, in their order, and a token for
        them."""
        connection, frames, offsets, ledger_ids = token
        count = len(self._journals)
        view = memoryview(frames)
        starts = [offset - ENTRY_OFFSET for offset in offsets]
        ends = [*starts[1:], len(frames)]
        sequence = 0
        for number, journal in enumerate(self._journals):
            mine = [index for index, ledger_id in enumerate(ledger_ids) if ledger_id % count == number]
            if mine:
                its_offsets = [offsets[index] for index in mine]
                told = DurableAdds(connection, frames, its_offsets, [ledger_ids[index] for index in mine])
                sequence = journal.submit(RecordKind.ADDS, [view[starts[i] : ends[i]] for i in mine], [told])
        return sequence


class Records:
    def __init__(self) -> None:
        """`open_with` follows when the journals are open; nothing is written before."""
        self._journals: Journals | None = None
        self._front: RecordSink | None = None
        self._failure: MagnetarError | None = None
        self.adds: Adds | None = None

    def open_with(self, journals: Journals) -> None:
        self._journals = journals
        self._front = journals.front

    def fail(self, error: MagnetarError) -> None:
        """After this, nothing is reported as durable."""
        self._failure = self._failure or error

    @property
    def has_room(self) -> bool:
        return self._open_front().has_room

    async def wait_for_room(self) -> None:
        await self._open_front().wait_for_room()

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        return self._open_front().submit(kind, chunks, token)

    async def write(self, kind: RecordKind, chunks: Sequence[Buffer]) -> None:
        """Returns when the record is durable, and with it everything submitted before of the same ledger."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open_front().submit(kind, chunks, durable)
        await durable

    async def write_nothing(self) -> None:
        """Returns when everything submitted before is durable, in all journals."""
        await self.wait_for_room()
        assert self._journals is not None
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        for journal in self._journals.all:
            waiting.append(loop.create_future())
            journal.submit(RecordKind.ADDS, (), waiting[-1])
        for durable in waiting:
            await durable

    def _open_front(self) -> RecordSink:
        assert self._front is not None, "nothing is served before the journals are open"
        if self._failure is not None:
            raise self._failure
        return self._front

    def on_durable(self, tokens: list[object]) -> None:
        if self._failure is not None:
            return
        adds = self.adds
        assert adds is not None
        for token in tokens:
            if isinstance(token, list):
                adds.on_durable(token)
            elif isinstance(token, asyncio.Future) and not token.done():
                token.set_result(None)
        adds.on_group_written()


async def _count_after(disk: Disk, mark: int) -> int:
    count = 0

    def deliver(_: JournalRecord) -> None:
        nonlocal count
        count += 1

    await replay_files(disk, DIRECTORY, mark, deliver, is_begun=True)
    return count
