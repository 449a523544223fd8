"""The journals of a bookie: one, or several on a device each, written at once and replayed as one.

Choice:    a ledger's records all go to one journal, chosen by its id, so they are replayed in their order. With another
           number of journals the choice is another one; then everything is flushed before the first request, so that
           no ledger ever has needed records in two of them.
One:       requests reach it without a detour (`front` is the journal itself).
Several:   a run of adds that spans ledgers of several journals becomes one record in each; whoever waits hears of each
           part when its own journal has synced it. When one of them fails, none acknowledges anything more.
Marks:     one for each journal. `submitted` notes all positions at once, under their total; when storage has flushed
           up to that total, each journal may forget what is at or below its own position (journal_mark.py).
Read next: records.py, replay.py
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from magnetar.bookie.adds import DurableAdds
from magnetar.bookie.replay import Replay
from magnetar.config.journal import JournalConfig
from magnetar.errors import ConfigError, DiskError, JournalDamagedError, JournalFailedError
from magnetar.runtime.disk import Buffer, Disk
from magnetar.runtime.runtime import Runtime
from magnetar.storage.frames import ENTRY_OFFSET
from magnetar.storage.journal import Journal, OnDurable, OnFailed
from magnetar.storage.journal_files import DIRECTORY
from magnetar.storage.journal_format import JournalRecord, RecordKind
from magnetar.storage.journal_mark import JournalMark
from magnetar.storage.journal_replay import replay_files
from magnetar.storage.ledger_storage import LedgerStorage

log = logging.getLogger(__name__)

_LEDGER_ID = struct.Struct(">q")


class Front(Protocol):
    """What requests see: a journal, or several as if they were one."""

    @property
    def has_room(self) -> bool: ...
    async def wait_for_room(self) -> None: ...
    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int: ...


class Journals:
    """Made with the marks, before storage is; opened behind it, because replay needs it. Ended by `aclose`."""

    def __init__(self, paths: Sequence[str], marks: JournalMark, on_durable: OnDurable, on_failed: OnFailed) -> None:
        self._paths = paths
        self._marks = marks
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._closing = AsyncExitStack()
        self._noted: dict[int, dict[str, int]] = {}
        self._is_failed = False
        self.all: list[Journal] = []
        self._front: Front | None = None

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
    def front(self) -> Front:
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
        """The total of everything handed to the journals; before they are open, what is known to be flushed."""
        if len(self.all) < len(self._paths):
            return self._marks.sequence
        positions = {path: journal.last_sequence for path, journal in zip(self._paths, self.all, strict=True)}
        total = self._marks.total(positions)
        self._noted[total] = positions
        return total

    async def settle(self, total: int, *, always: bool = False) -> None:
        """Storage has flushed up to this total: moves the marks and removes what no journal needs. Not two at once.

        `always`: also if nothing has moved, to keep which journals there are.
        """
        positions = self._noted.get(total)
        self._noted = {noted: each for noted, each in self._noted.items() if noted >= total}
        if total <= self._marks.sequence and not always:
            return
        assert positions is not None, f"{total} is no total that was submitted"
        await self._marks.move_all(positions)
        for path, journal in zip(self._paths, self.all, strict=True):
            await journal.forget_through(positions[path])

    # --- journals of before -------------------------------------------------------------------------------------------

    async def _check_left_behind(self, runtime: Runtime) -> None:
        """A journal that is no longer configured must have nothing that only it has."""
        for path, mark in self._marks.left_behind.items():
            disk = runtime.disk(path, name="journal-of-before")
            try:
                count = await _count_behind(disk, mark)
            except (DiskError, JournalDamagedError) as error:
                raise ConfigError(
                    f"bookie.journal_dirs no longer names {path}, and that journal cannot be read ({error}): it may "
                    f"have records that are nowhere else. {_HOW_TO_REMOVE}"
                ) from error
            finally:
                await disk.aclose()
            if count:
                raise ConfigError(
                    f"bookie.journal_dirs no longer names {path}, whose journal has {count} records that are in no "
                    f"entry log yet. {_HOW_TO_REMOVE}"
                )


_HOW_TO_REMOVE = (
    "Name it again, start the bookie and stop it in peace (SIGTERM), which writes them to the entry logs; "
    "then take the directory out"
)


async def _count_behind(disk: Disk, mark: int) -> int:
    count = 0

    def deliver(_: JournalRecord) -> None:
        nonlocal count
        count += 1

    await replay_files(disk, DIRECTORY, mark, deliver, is_begun=True)
    return count


class SeveralJournals:
    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals
        self._failure: JournalFailedError | None = None

    def fail(self, error: JournalFailedError) -> None:
        self._failure = error

    @property
    def has_room(self) -> bool:
        """In all of them: what comes next may be for any."""
        return all(journal.has_room for journal in self._journals)

    async def wait_for_room(self) -> None:
        while True:
            for journal in self._journals:
                await journal.wait_for_room()
            if self.has_room:  # Else the first is full again.
                return

    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        """The number is the one of the journal that was last written to; nobody compares it with another's."""
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
        """Adds of several ledgers: each journal gets the frames of its own, in their order, and a token for them."""
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
