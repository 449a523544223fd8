"""Bugs of the journal and its disk: calling durable what is not, and going on behind damage."""

from __future__ import annotations

from typing import Final

from magnetar.sim.file import OpenFile
from magnetar.sim.mutants.mutant import Mutant
from magnetar.sim.mutants.planting import Edit
from magnetar.storage.journal import Journal
from magnetar.storage.journal_files import JournalFiles
from magnetar.storage.journal_replay import _Reader

MUTANTS: Final = [
    Mutant(
        number=13,
        sentence="an add is acknowledged when its group is written, not when it is synced",
        caught_by=("B1",),
        budget=500,
        edits=[
            Edit(
                Journal._write,
                [
                    (
                        "await file.append_and_sync(chunks)",
                        "await file.append(chunks)\n    self._announce(group)\n    await file.sync()",
                    ),
                    ("if self._failure is None:", "if False:"),
                ],
            )
        ],
    ),
    Mutant(
        number=14,
        sentence="a torn tail is not cut off before the journal goes on",
        caught_by=("B2", "B3"),
        budget=500,
        edits=[Edit(JournalFiles.open, [("if not last.is_closed:", "if False:")])],
    ),
    Mutant(
        number=15,
        sentence="damage in the middle of the journal is taken for a torn tail",
        caught_by=("B3",),
        budget=500,
        edits=[
            Edit(
                _Reader.run,
                [
                    ("if not may_be_torn and not self._is_reused:", "if False:"),
                    ("if later is not None:", "if False:"),
                ],
            )
        ],
    ),
    Mutant(
        # The disk itself refuses a file whose sync has failed, so a journal that tried again would only hear of the
        # same failure: the bug must be in the disk, of which a world has the twin.
        number=40,
        sentence="a sync that failed is tried again",
        caught_by=("B8", "B2"),
        budget=500,
        edits=[
            Edit(
                OpenFile.sync_anyway,
                [
                    (
                        'raise self._refuse(f"syncing {self._name} failed: {reason(error)}") from error',
                        "self._device.sync(self._image)",
                    )
                ],
            )
        ],
    ),
]
