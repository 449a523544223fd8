"""Bugs of entry logs and index: letting the old place go before the new one is durable."""

from __future__ import annotations

from typing import Final

from magnetar.sim.mutants.mutant import Mutant
from magnetar.sim.mutants.planting import Edit
from magnetar.storage.compaction import Compactor
from magnetar.storage.entry_log_writer import EntryLogWriter

MUTANTS: Final = [
    Mutant(
        number=22,
        sentence="the mark moves when one of two directories is synced",
        caught_by=("B4",),
        budget=1_000,
        edits=[
            Edit(
                EntryLogWriter.sync,
                [
                    (
                        "for log in self._unsynced:",
                        "for log in [log for log in self._unsynced if log.directory is self._unsynced[0].directory]:",
                    )
                ],
            )
        ],
    ),
    Mutant(
        number=23,
        sentence="compaction removes the old log before the index refers to the new one",
        caught_by=("B6",),
        budget=1_000,
        edits=[
            Edit(
                Compactor._copy_all,
                [
                    (
                        "await copy.commit()\n",
                        "await copy._write()\n    await self._remove(log_id)\n    await copy.commit()\n",
                    )
                ],
            ),
            Edit(Compactor._rewrite, [("    await self._remove(log_id)\n", "")]),
        ],
    ),
]
