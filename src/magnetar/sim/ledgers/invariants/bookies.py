"""What a bookie's disks hold, what a start makes of it, and what a bookie may answer: B1 to B9."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from magnetar.errors import (
    CookieMismatchError,
    DigestMismatchError,
    JournalDamagedError,
    MarkDamagedError,
    StorageDamagedError,
)
from magnetar.sim.devices.device import Fault
from magnetar.sim.ledgers.durable import EXTENT
from magnetar.sim.ledgers.invariants.ledgers import has_promised
from magnetar.sim.ledgers.watch import AddAnswer, BookieWatch, Invariant, LacAnswer, ReadAnswer, Watch
from magnetar.storage.entry_log.format import log_path
from magnetar.storage.index.extents import Extent, decode
from magnetar.storage.index.ordered_store import Changes
from magnetar.wire.bookkeeper.codes import Code

if TYPE_CHECKING:
    from magnetar.bookie.bookie import Bookie


# --- disks ------------------------------------------------------------------------------------------------------------

_LEDGER: Final = struct.Struct(">Q")
DAMAGE: Final = (JournalDamagedError, StorageDamagedError, MarkDamagedError, CookieMismatchError)
"""Why a bookie refuses to start, for good."""


class Replay(Invariant):
    """B2: after any crash a bookie starts, and knows again all that it answered."""

    id = "B2"

    def on_bookie_refused(self, bookie: BookieWatch, error: BaseException) -> None:
        if isinstance(error, DAMAGE) and not bookie.is_excused:
            self.violated(f"{bookie.name} refuses to start, and nothing was done to its disks: {error}")

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        if bookie.is_excused:
            return
        for ledger_id, entries in bookie.promised.items():
            if ledger_id not in self.watch.ledgers:
                continue
            lost = [entry_id for entry_id in entries if not _knows(bookie, opened, ledger_id, entry_id)]
            if lost:
                self.violated(f"{bookie.name} does not know entries {lost} of ledger {ledger_id} after its start")
        for ledger_id in bookie.fenced:
            flags = opened._storage._flags_nowait(ledger_id) or bookie.image.flags(ledger_id)
            if flags is None or not flags.fenced:
                self.violated(f"{bookie.name} does not know after its start that ledger {ledger_id} is fenced")


def _knows(bookie: BookieWatch, opened: Bookie, ledger_id: int, entry_id: int) -> bool:
    if opened._storage.get_entry_nowait(ledger_id, entry_id) is not None:
        return True
    return bool(bookie.image.extents_of(ledger_id, entry_id))


class TailOrDamage(Invariant):
    """B3: a start cuts off a torn tail and nothing else: what was durable before is known after it, or it refuses."""

    id = "B3"

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        for ledger_id, entry_id in bookie.durable_before:
            if ledger_id in self.watch.ledgers and not _knows(bookie, opened, ledger_id, entry_id):
                self.violated(f"{bookie.name} cut entry {entry_id} of ledger {ledger_id} off, which was durable")


class ReadIsDurable(Invariant):
    """B9: what a bookie has read from its journal is durable when it serves, whatever a former life left in a cache."""

    id = "B9"

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        if bookie.is_excused:
            return
        for device, journal in zip(bookie.image.journals, opened.journals.all, strict=True):
            for file in journal._files.old:
                if device.tree.find(file.path) is not None and device.durable(file.path) != device.cached(file.path):
                    self.violated(f"{bookie.name} serves, and a power loss may change {file.path}, which it has read")


class Mark(Invariant):
    """B4: the journal's mark passes a record only when its entries are durable in a log, and in the index."""

    id = "B4"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._checked: dict[tuple[str, int], int] = {}

    def on_mark_moved(self, bookie: BookieWatch) -> None:
        if bookie.is_excused:
            return
        for number in range(len(bookie.image.journals)):
            mark = bookie.image.mark(number)
            before = self._checked.get((bookie.name, number), 0)
            if mark > before:
                self._checked[bookie.name, number] = mark
                self._check(bookie, number, before, mark)

    def _check(self, bookie: BookieWatch, number: int, before: int, mark: int) -> None:
        image = bookie.image
        for (journal, _), view in image.views().items():
            if journal != number:
                continue
            for (ledger_id, entry_id), (sequence, _) in view.entries.items():
                if not before < sequence <= mark or ledger_id not in self.watch.ledgers:
                    continue
                if image.logged_entry(ledger_id, entry_id) is None:
                    self.violated(
                        f"the mark of {bookie.name} passed record {sequence} with entry {entry_id} of ledger "
                        f"{ledger_id}, which is not in the logs"
                    )


class Garbage(Invariant):
    """B6: nothing goes that the metadata assigns to this bookie; compaction moves an entry before it forgets it."""

    id = "B6"

    def on_index_write(self, bookie: BookieWatch, changes: Changes) -> None:
        for first, _ in changes.removed_ranges:
            if first[:1] == EXTENT:
                self._check_deleted(bookie, _LEDGER.unpack_from(first, 1)[0])
        removed = [key for key in changes.removed if key[:1] == EXTENT]
        if removed and not bookie.is_excused:
            self._check_moved(bookie, removed, changes)

    def _check_deleted(self, bookie: BookieWatch, ledger_id: int) -> None:
        known = self.watch.ledgers.get(ledger_id)
        if known is not None and any(bookie.bookie_id in fragment.ensemble for fragment in known.value.fragments):
            self.violated(f"{bookie.name} deletes ledger {ledger_id}, which the metadata assigns to it")

    def _check_moved(self, bookie: BookieWatch, removed: list[bytes], changes: Changes) -> None:
        new = [decode(key[1:], value) for key, value in changes.put if key[:1] == EXTENT]
        durable = [extent for extent in new if bookie.image.is_durable(extent)]
        index = bookie.image.index()
        for key in removed:
            if key not in index.values:
                continue
            old = decode(key[1:], index.values[key])
            lost = [entry_id for entry_id in old.ids if not _is_in(old.ledger_id, entry_id, durable)]
            if lost and old.ledger_id in self.watch.ledgers:
                self.violated(f"{bookie.name} forgets entries {lost} of ledger {old.ledger_id} before they are moved")

    def on_log_names_synced(self, bookie: BookieWatch) -> None:
        if bookie.is_excused:
            return
        there: dict[int, bool] = {}
        for extent in bookie.image.extents():
            log_id = extent.place.log_id
            if log_id not in there:
                there[log_id] = any(device.tree.find(log_path(log_id)) for device in bookie.image.directories)
            if not there[log_id] and extent.ledger_id in self.watch.ledgers:
                self.violated(f"{bookie.name} removed log {log_id}, which has entries of ledger {extent.ledger_id}")
                return

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:  # noqa: ARG002
        self.on_log_names_synced(bookie)

    def at_end(self) -> None:
        for bookie in self.watch.bookies.values():
            self.on_log_names_synced(bookie)


def _is_in(ledger_id: int, entry_id: int, extents: list[Extent]) -> bool:
    return any(extent.ledger_id == ledger_id and extent.holds(entry_id) for extent in extents)


# --- answers ----------------------------------------------------------------------------------------------------------

_NO = (Code.ENOENTRY, Code.ENOLEDGER)
_GRACE_S: Final = 0.35
"""Until a process hears that its sync failed: the longest stall, and the longest sync."""


class SyncBeforeAnswer(Invariant):
    """B1: an add, a fence or an explicit LAC is answered when it is durable."""

    id = "B1"

    def on_add_answer(self, answer: AddAnswer) -> None:
        bookie = answer.bookie
        if answer.code != Code.EOK or answer.deferred or bookie.is_excused or not self._is_alive(answer.ledger_id):
            return
        if bookie.image.entry(answer.ledger_id, answer.entry_id) is None:
            self.violated(f"{bookie.name} answered entry {answer.entry_id} of ledger {answer.ledger_id} undurable")

    def on_read_answer(self, answer: ReadAnswer) -> None:
        bookie = answer.bookie
        if not answer.fence or answer.code not in (Code.EOK, *_NO) or bookie.is_excused:
            return
        if not bookie.image.is_fenced(answer.ledger_id):
            self.violated(f"{bookie.name} answered a fence of ledger {answer.ledger_id} that is not durable")

    def on_lac_answer(self, answer: LacAnswer) -> None:
        bookie = answer.bookie
        if answer.code != Code.EOK or bookie.is_excused or not self._is_alive(answer.ledger_id):
            return
        if not bookie.image.has_lac(answer.ledger_id, answer.lac):
            self.violated(f"{bookie.name} answered an explicit LAC of ledger {answer.ledger_id} undurable")

    def _is_alive(self, ledger_id: int) -> bool:
        """A deleted one may be dropped at any time."""
        return ledger_id in self.watch.ledgers


class BytesVerify(Invariant):
    """B5: what is served verifies, or the answer is an error; a "no" is never an error in disguise."""

    id = "B5"

    def on_read_answer(self, answer: ReadAnswer) -> None:
        if answer.code in _NO and not answer.fence and has_promised(self.watch, answer):
            self.violated(
                f"{answer.bookie.name} denied entry {answer.entry_id} of ledger {answer.ledger_id}, and had stored it"
            )
        ledger = self.watch.history.ledgers.get(answer.ledger_id)
        if ledger is None:
            return
        for step, body in enumerate(answer.bodies):
            try:
                if answer.entry_id < 0:
                    ledger.digest.open_last(answer.ledger_id, body)
                else:
                    ledger.digest.open(answer.ledger_id, answer.entry_id + step, body)
            except DigestMismatchError as error:
                self.violated(f"{answer.bookie.name} served bytes that do not verify: {error}")


class Identity(Invariant):
    """B7: a bookie that lost a disk, or its cookie, answers nothing until an operator has repaired it."""

    id = "B7"

    def on_any_answer(self, bookie: BookieWatch) -> None:
        if bookie.emptied:
            self.violated(f"{bookie.name} serves, though a disk of it was emptied, or its cookie deleted")
            bookie.emptied = False


class FailedSync(Invariant):
    """B8: after a failed sync of any of its disks, a bookie acknowledges nothing until it is started again."""

    id = "B8"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._before: dict[str, tuple[int, int]] = {}

    def on_add_answer(self, answer: AddAnswer) -> None:
        if answer.code != Code.EOK:
            return
        bookie = answer.bookie
        devices = [*bookie.image.journals, *bookie.image.directories]
        failures = sum(device.faults.counts[Fault.SYNC_ERROR] for device in devices)
        process, known = self._before.get(bookie.name, (-1, 0))
        if process != bookie.machine.processes:  # What a start met, it did not survive.
            self._before[bookie.name] = bookie.machine.processes, failures
            bookie.sync_failed_s = None
        elif failures > known:
            self._before[bookie.name] = process, failures
            bookie.sync_failed_s = bookie.sync_failed_s or self.watch.now
        if bookie.sync_failed_s is not None and answer.received_s > bookie.sync_failed_s + _GRACE_S:
            self.violated(f"{bookie.name} acknowledges adds, though a sync of its disks failed")
            bookie.sync_failed_s = None
