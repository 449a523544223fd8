"""What a bookie may answer: B1, B5, B7, B8."""

from __future__ import annotations

from typing import Final

from magnetar.errors import DigestMismatchError
from magnetar.sim.disk_faults import Fault
from magnetar.sim.ledgers.invariants.fencing import has_promised
from magnetar.sim.ledgers.watch import AddAnswer, BookieWatch, Invariant, LacAnswer, ReadAnswer, Watch
from magnetar.wire.bookkeeper.codes import Code

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
    """B7: a bookie that lost a disk, or its cookie, answers nothing until somebody who knows has repaired it."""

    id = "B7"

    def on_any_answer(self, bookie: BookieWatch) -> None:
        if bookie.emptied:
            self.violated(f"{bookie.name} serves, though a disk of it was emptied, or its cookie deleted")
            bookie.emptied = False


class FailedSync(Invariant):
    """B8: behind a failed sync, of whichever of its disks, a bookie acknowledges nothing until it is started again."""

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
