"""Bugs of a bookie's disks: the journal calls durable what is not, or continues after damage; entry logs and the index
drop the old place of an entry before the new one is durable."""

from __future__ import annotations

from typing import Final

from magnetar.sim.devices.file import OpenFile
from magnetar.sim.mutants.planting import Mutant
from magnetar.storage.entry_log.compaction import Compactor
from magnetar.storage.entry_log.writer import EntryLogWriter
from magnetar.storage.journal.chunked_file import Window
from magnetar.storage.journal.files import JournalFiles
from magnetar.storage.journal.journal import Journal
from magnetar.storage.journal.replay import _Reader, later_group
from magnetar.storage.reads import Reads
from magnetar.storage.tombstones import Tombstones

MUTANTS: Final = [
    Mutant(13, "an add is acknowledged when its group is written, not when it is synced", ("B1",), budget=500)
    .edit(
        Journal._write,
        "await file.append_and_sync(chunks)",
        "await file.append(chunks)\n    self._announce(group)\n    await file.sync()",
    )
    .edit(Journal._write, "if self._failure is None:", "if False:"),
    Mutant(14, "a torn tail is not cut off before the journal goes on", ("B2", "B3"), budget=500).edit(
        JournalFiles._make_durable, "if file.size > found.end:", "if False:"
    ),
    Mutant(15, "damage in the middle of the journal is taken for a torn tail", ("B3",), budget=500)
    .edit(_Reader.run, "if not may_be_torn and not self._is_reused:", "if False:")
    .edit(_Reader.run, "if later is not None:", "if False:"),
    Mutant(22, "the mark moves when one of two directories is synced", ("B4",), budget=1_000).edit(
        EntryLogWriter.sync,
        "for log in self._unsynced:",
        "for log in [log for log in self._unsynced if log.directory is self._unsynced[0].directory]:",
    ),
    Mutant(23, "compaction removes the old log before the index refers to the new one", ("B6",), budget=1_000)
    .edit(
        Compactor._copy_all,
        "await copy.commit()\n",
        "await copy._write()\n    await self._remove(log_id)\n    await copy.commit()\n",
    )
    .edit(Compactor._rewrite, "    await self._remove(log_id)\n", ""),
    # The disk itself refuses a file whose sync has failed, so a journal that tried again would only meet the same
    # failure. The bug must therefore be in the disk, of which a world has the twin.
    Mutant(40, "a sync that failed is tried again", ("B8", "B2"), budget=500).edit(
        OpenFile.sync_anyway,
        'raise self._refuse(f"syncing {self._name} failed: {reason(error)}") from error',
        "self._device.sync(self._image)",
    ),
    Mutant(80, "a file that ends with a closing group is taken for durable", ("B9", "B2"), budget=500).edit(
        JournalFiles._make_durable,
        "await file.write_again(found.last_group, group)",
        "if header is None or header.records: await file.write_again(found.last_group, group)",
    ),
    Mutant(81, "a journal is searched for its mark, which clients know", ("V8",), budget=0)
    .edit(later_group, "pattern = file_id_bytes(file_id)", 'pattern = b"MNJG"')
    .edit(later_group, "offset + FILE_ID_OFFSET)", "offset)")
    .edit(later_group, "intact_group(window, file_id, found - FILE_ID_OFFSET)", "intact_group(window, file_id, found)")
    .edit(later_group, "return found - FILE_ID_OFFSET", "return found"),
    Mutant(82, "a journal file is read anew for every group", ("V8",), budget=0).edit(
        Window.at, "if offset < self._start or", "if length or"
    ),
    Mutant(83, "a deleted ledger is remembered as fenced for minutes, not for days", ("L8", "V7"), budget=0).edit(
        Tombstones.due, "self._config.tombstone_days * _DAY_MS", "self._config.tombstone_days * 60_000"
    ),
    Mutant(84, "a deleted ledger is remembered as fenced forever", ("V7",), budget=0).edit(
        Tombstones.due, "if each.deleted_at_ms < before_ms", "if each.deleted_at_ms < 0"
    ),
    Mutant(85, "a wall clock that jumps ahead lets the fences of deleted ledgers go", ("V7", "L8"), budget=0).edit(
        Tombstones._now_ms,
        "min(self._entropy.wall_ms(), self._wall_ms + int(lived_ms) + _TOLERANCE_MS)",
        "self._entropy.wall_ms()",
    ),
    Mutant(
        86,
        "an entry that stands in a damaged block is denied",
        ("B5", "L9"),
        budget=100,
        options={"faults": ("ruin", "kill")},
    ).edit(Reads._another_copy, "raise first_error", "return None"),
]
