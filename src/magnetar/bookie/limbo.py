"""Limbo: a bookie that may have forgotten something continues without ever answering "no such entry" for it.

Purpose:   a recovery takes "no such entry" from enough bookies as the end of a ledger. From a bookie that lost part of
           its journal, or a disk, that answer could cut acknowledged entries off. In limbo it answers "unknown"
           instead.
Invariant: every ledger that is not closed and has this bookie in its last ensemble is put in limbo, and fenced. Ledgers
           that are closed or being recovered and name this bookie are fenced only, as their fence may be lost, and a
           former writer must not get access again. Nothing is recovered there any more, so "no such entry" cuts nothing
           off: a reader asks the next bookie. Limbo ends when the ledger is deleted. (A copy of all its entries from
           others would end it, too.)
Order:     flags durable in the index → journal files set aside → the cookie in a directory that was lost. Until the
           last of these is done, the bookie refuses to start; after a kill at any line, the repair is run again.
           The marks that prevent the start (REPAIRING) are removed last, also the one of a rebuild without fences.
Failure:   the readable part of a journal is flushed to entry logs and index; a damaged file is set aside (renamed,
           never removed), and replay continues with the file after it. A journal without any file gets a new one: a
           start takes a journal without one for damaged. A damaged mark is made anew, so that all that the journal
           still has is replayed.
Read next: docs/bookie.md, cli/bookie/repair.py
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.directories import COOKIE_FILE, REPAIR_FILE, BookieDirectories, Directory
from magnetar.bookie.journals import Replay
from magnetar.errors import JournalDamagedError, MalformedMetadataError, NoSuchLedgerError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.cookies import Cookie, encode_cookie
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.runtime.disk import Disk
from magnetar.runtime.runtime import Entropy
from magnetar.storage.journal.files import DIRECTORY, JournalFiles
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    JournalRecord,
    decode_file_header,
    decode_group_header,
    file_number,
    is_intact,
)
from magnetar.storage.journal.mark import NAME as MARK_FILE
from magnetar.storage.journal.mark import JournalMark, Marks, decode_marks, encode_marks
from magnetar.storage.journal.replay import Window, journal_names, replay_files
from magnetar.storage.ledger_flags import NO_FLAGS
from magnetar.storage.ledger_storage import LedgerStorage

_READS_AT_ONCE: Final = 100  # Ledgers whose metadata is read: a cluster has many, and each is a round trip.
_ASIDE: Final = ".damaged"

OpenStorage = Callable[[Callable[[], int], int], Awaitable[LedgerStorage]]
"""Given the `submitted` and `journal_mark` of `LedgerStorage.open`."""


# --- which ledgers ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Suspects:
    """Ledgers of which this bookie may have promised something that it no longer knows."""

    in_limbo: list[int] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    """Besides those."""
    unreadable: list[int] = field(default_factory=list)
    """Ledgers whose metadata is damaged. They are put in limbo, too, to be safe."""


async def find_suspects(ledgers: LedgerMetadataStore, bookie: BookieId) -> Suspects:
    """Finds the suspects. The bookie does not run, so no later ledger can have entries on it."""
    found = Suspects()
    async for batch in _batches(ledgers.list()):
        read = await asyncio.gather(*[_read(ledgers, ledger_id) for ledger_id in batch])
        for ledger_id, metadata in zip(batch, read, strict=True):
            if metadata is _DAMAGED:
                found.unreadable.append(ledger_id)
                found.in_limbo.append(ledger_id)
            elif isinstance(metadata, LedgerMetadata):
                _judge(metadata, bookie, found)
    return found


def _judge(metadata: LedgerMetadata, bookie: BookieId, found: Suspects) -> None:
    is_named = any(bookie in fragment.ensemble for fragment in metadata.fragments)
    if not metadata.is_closed and bookie in metadata.fragments[-1].ensemble:
        found.in_limbo.append(metadata.ledger_id)
    elif is_named and metadata.state is not LedgerState.OPEN:
        # Open, and this bookie is in an earlier fragment only: its writer may come back to us, and is not shut out.
        found.fenced.append(metadata.ledger_id)


_DAMAGED: Final = "damaged"


async def _read(ledgers: LedgerMetadataStore, ledger_id: LedgerId) -> LedgerMetadata | str | None:
    try:
        return (await ledgers.read(ledger_id)).value
    except NoSuchLedgerError:  # It was deleted since.
        return None
    except MalformedMetadataError:
        return _DAMAGED


async def _batches(ledger_ids: AsyncIterator[LedgerId]) -> AsyncIterator[list[LedgerId]]:
    batch: list[LedgerId] = []
    async for ledger_id in ledger_ids:
        batch.append(ledger_id)
        if len(batch) >= _READS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


# --- flags and journals -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RepairReport:
    records: int = 0
    entries: int = 0
    """Records read from the journals, and flushed."""
    missing_records: int = 0
    """Missing numbers before later files. Those at the very end cannot be counted."""
    set_aside: list[str] = field(default_factory=list)
    """Damaged journal files, under their new names."""
    stamped: list[str] = field(default_factory=list)
    """Directories that were lost and belong to the bookie again."""


class JournalRepair:
    """Writes flags and entries to storage, durably; then sets the obstacles to opening the journals aside."""

    def __init__(
        self, marks: JournalMark, journals: Mapping[str, Disk], report: RepairReport, entropy: Entropy
    ) -> None:
        self._marks = marks
        self._journals = journals
        self._entropy = entropy
        self._positions = marks.positions
        self._report = report

    def submitted(self) -> int:
        return self._marks.total(self._positions)

    async def run(self, storage: LedgerStorage, suspects: Suspects) -> None:
        await _set_flags(storage, suspects)
        await self._flush(storage)
        for path, disk in self._journals.items():
            await self._salvage(storage, path, disk)
            await self._begin_anew(path, disk)

    async def _flush(self, storage: LedgerStorage) -> None:
        await storage.flush()
        await self._marks.move_all(self._positions)

    async def _salvage(self, storage: LedgerStorage, path: str, disk: Disk) -> None:
        """Repeats: every turn brings records, or a file less, or a greater mark. The index gets a mark before the
        file."""
        while True:
            before = self._positions[path]
            damage = await self._replay(storage, path, disk)
            await self._flush(storage)
            if damage is None:
                return
            if self._positions[path] == before:
                await self._get_past(path, disk, damage)
                await self._flush(storage)

    async def _replay(self, storage: LedgerStorage, path: str, disk: Disk) -> JournalDamagedError | None:
        """Replays up to the damage, if there is any."""
        replay = Replay(storage)

        def deliver(record: JournalRecord) -> None:
            replay.deliver(record)
            self._positions[path] = record.sequence

        damage: JournalDamagedError | None = None
        try:
            is_begun = bool(await journal_names(disk, DIRECTORY))  # One without any file is begun anew, below.
            await replay_files(disk, DIRECTORY, self._positions[path], deliver, is_begun=is_begun)
        except JournalDamagedError as error:
            damage = error
        await replay.finish()
        self._report.records += replay.records
        self._report.entries += replay.entries
        return damage

    async def _get_past(self, path: str, disk: Disk, damage: JournalDamagedError) -> None:
        if file_number(damage.path.rpartition("/")[2]) is None:
            raise JournalDamagedError(f"{path}/{damage.path}", damage.offset, damage.what)  # Not our file.
        first = await _first_sequence(disk, damage.path)
        expected = self._positions[path] + 1
        if first is not None and first > expected and (damage.offset or 0) <= FILE_HEADER_BYTES:
            self._report.missing_records += first - expected  # They preceded this file, which is whole so far.
            self._positions[path] = first - 1
            return
        self._report.set_aside.append(f"{path}/{await _set_aside(disk, damage.path)}")

    async def _begin_anew(self, path: str, disk: Disk) -> None:
        """Makes a new file if none is left. The bookie may start when one exists, so this comes after all flags."""
        if await journal_names(disk, DIRECTORY):
            return
        files = JournalFiles(disk, self._entropy)
        begun = await files.open(self._positions[path], lambda _: None, is_begun=False)  # All readable is flushed.
        await begun.file.aclose()


async def _set_flags(storage: LedgerStorage, suspects: Suspects) -> None:
    for ledger_ids, limbo in ((suspects.in_limbo, True), (suspects.fenced, False)):
        for ledger_id in ledger_ids:
            known = await storage.get_flags(ledger_id) or NO_FLAGS
            wanted = dataclasses.replace(known, fenced=True, limbo=known.limbo or limbo)
            if wanted != known:
                storage.set_flags(ledger_id, wanted)


async def _first_sequence(disk: Disk, path: str) -> int | None:
    """Returns the number of the first group; None if no group is intact."""
    file = await disk.open(path)
    try:
        window = Window(file)
        header = decode_file_header(await window.at(0, FILE_HEADER_BYTES), path)
        group = decode_group_header(await window.at(FILE_HEADER_BYTES, GROUP_HEADER_BYTES))
        if header is None or group is None or group.file_id != header.file_id:
            return None
        data = await window.at(FILE_HEADER_BYTES, min(group.size, window.size - FILE_HEADER_BYTES))
        return group.first_sequence if len(data) == group.size and is_intact(group, data) else None
    finally:
        await file.aclose()


async def _set_aside(disk: Disk, path: str) -> str:
    """Returns its new path, which replay ignores."""
    taken = [f"{DIRECTORY}/{name}" for name in await disk.list(DIRECTORY)]
    names = itertools.chain((f"{path}{_ASIDE}",), (f"{path}{_ASIDE}.{number}" for number in itertools.count(2)))
    aside = next(name for name in names if name not in taken)
    await disk.rename(path, aside)
    await disk.sync_dir(DIRECTORY)
    return aside


# --- the whole --------------------------------------------------------------------------------------------------------


async def repair(
    directories: BookieDirectories,
    cookie: Cookie,
    lost: list[Directory],
    suspects: Suspects,
    *,
    entropy: Entropy,
    open_storage: OpenStorage,
    rebuild_index: Callable[[], Awaitable[None]],
) -> RepairReport:
    """`lost` are the directories without a cookie (identity.py); they are empty, or a repair was interrupted.

    The index is rebuilt if a ledger directory is among them: it refers to logs that are missing.
    """
    report = RepairReport()
    for directory in lost:
        await directory.write(REPAIR_FILE, b"")
    ledger_paths = [directory.path for directory in directories.ledger]
    lost_ledgers = [directory for directory in lost if directory.path in ledger_paths]
    journals = {d.path: d.disk for d in directories.all if d.path in directories.layout.journal}
    await _restore_marks(directories, journals, lost_ledgers)
    if lost_ledgers:
        await rebuild_index()
    marks = await JournalMark.open({d.path: d.disk for d in directories.ledger}, directories.layout.journal)
    repairing = JournalRepair(marks, journals, report, entropy)
    storage = await open_storage(repairing.submitted, marks.sequence)
    try:
        await repairing.run(storage, suspects)
    finally:
        await storage.aclose()
    for directory in lost:
        await directory.write(COOKIE_FILE, encode_cookie(cookie))
        report.stamped.append(directory.path)
    for directory in directories.all:  # Also after a rebuild, or after a repair that was interrupted after the cookie.
        await directory.remove(REPAIR_FILE)
    return report


async def _restore_marks(
    directories: BookieDirectories, journals: Mapping[str, Disk], lost_ledgers: list[Directory]
) -> None:
    """Restores missing and damaged marks: a directory without a mark counts as 0, and replay would ask for files that
    were removed long ago."""
    lost_paths = [directory.path for directory in lost_ledgers]
    found = {directory.path: await directory.read(MARK_FILE) for directory in directories.ledger}
    known = [content for content in found.values() if content is not None and decode_marks(content) is not None]
    for directory in directories.ledger:
        content = found[directory.path]
        if content in known or (content is None and directory.path not in lost_paths):
            continue  # It was restored by an interrupted repair, or has not moved yet.
        if content is not None:  # The new mark may hide that something is missing: no start before the flags.
            await directories.first_ledger.write(REPAIR_FILE, b"")
        # Any of them will do: the lowest of all is in force.
        await directory.write(MARK_FILE, known[0] if known else await _marks_of_all(directories, journals))


async def _marks_of_all(directories: BookieDirectories, journals: Mapping[str, Disk]) -> bytes:
    return encode_marks(Marks({path: await _before_first_file(journals[path]) for path in directories.layout.journal}))


async def _before_first_file(disk: Disk) -> int:
    """Returns the mark with which all that the journal still has is replayed."""
    await disk.make_dir(DIRECTORY)
    for name in sorted(await disk.list(DIRECTORY)):
        if file_number(name) is None:
            continue
        file = await disk.open(f"{DIRECTORY}/{name}")
        try:
            header = decode_file_header(await Window(file).at(0, FILE_HEADER_BYTES), file.path)
        finally:
            await file.aclose()
        if header is not None:
            return max(0, header.floor - 1)
    return 0
