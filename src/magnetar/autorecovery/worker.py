"""The replication worker: takes marked ledgers, repairs them, and clears their marks.

Order:     lock → read the mark → repair → look again → delete the mark at the version that was read → unlock. A ledger
           that is marked again meanwhile stays marked, and is repaired again.
Invariant: a mark is cleared only after a look at the ledger that found nothing wrong, or that found no ledger.
           A worker whose session ends has lost its locks: it commits and clears nothing of what it had begun.
Failure:   A ledger that cannot be repaired now keeps its mark. Its worker holds the lock during a pause, which grows
           from try to try and ends early when bookies come or go; then any worker may try. An open ledger whose end
           needs a repair is left to its writer for a grace time, and then fenced and closed.
           A ledger with entries that no bookie has is unrepairable: its note names them, an error is logged and counted
           once, and the ledger is tried again only when one of its bookies comes back, when it is marked again, or
           when it was deleted, which ends its mark.
Limits:    `recovery.ledgers_at_once` repairs at a time; ledgers that wait with a lock do not count, up to a number.
Read next: repair.py, mark_tree.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from magnetar.autorecovery.copy import CopyProgress
from magnetar.autorecovery.mark_tree import MarkTree
from magnetar.autorecovery.repair import LedgerRepair, Outcome, OutcomeKind, RepairTools
from magnetar.errors import (
    MagnetarError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    SessionExpiredError,
    StoreClosedError,
)
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import MarkNote, MarkState, RecoveryNotes, RecoveryPaths
from magnetar.metadata.bookkeeper.underreplication import Mark, UnderreplicationMarks
from magnetar.metadata.store import MetadataStore, SessionState
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import cancel_all
from magnetar.runtime.uncancelled import end_task

log = logging.getLogger(__name__)

PASSING: Final = (MetadataUnavailableError, SessionExpiredError, OutcomeUnknownError)
"""Errors of the metadata store after which the same is simply tried again."""
_TASKS_MAX: Final = 1_000  # Ledgers whose locks are held, most of them during a pause.
_PATIENCE_TRIES: Final = 3  # After this many tries, a bookie that is registered and never answers counts as lost.
_PAUSE_FIRST_S: Final = 0.5
_NOTE_AFTER_S: Final = 1.0  # Short repairs write no progress.
_NOTE_EVERY_S: Final = 2.0
_TIDY_S: Final = 2.0  # At the end: the session's own end gives locks back, too.
_REMEMBERED_MAX: Final = 10_000
_SKIPPED_LOOK_S: Final = 600.0  # Between two times that the notes of unrepairable ledgers are read again.


@dataclass(slots=True)
class WorkerCounters:
    ledgers_repaired: int = 0
    ledgers_deleted: int = 0
    ledgers_closed: int = 0
    repairs_postponed: int = 0
    unrepairable: int = 0
    """How often a ledger was found unrepairable."""
    entries_copied: int = 0
    bytes_copied: int = 0


class _Slot:
    """A place among the repairs that run at a time; it can be given away during a pause."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_taken = True

    def free(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._places.release()

    async def take(self) -> None:
        assert not self._is_taken
        await self._places.acquire()
        self._is_taken = True


class ReplicationWorker:
    """`run` is a task of its owner."""

    def __init__(self, store: MetadataStore, paths: BookKeeperPaths, tools: RepairTools, name: str) -> None:
        """`name`: what locks and notes call this worker, for operators."""
        self._store = store
        self._tools = tools
        self._config = tools.config
        self._roster = tools.roster
        self._name = name
        self._random = tools.context.entropy.random
        self._wall_ms = tools.context.entropy.wall_ms
        self._notes = RecoveryNotes(store, RecoveryPaths(paths))
        self._marks = UnderreplicationMarks(store, paths)
        self._tree = MarkTree(store, paths, self._random)
        self._places = asyncio.Semaphore(self._config.ledgers_at_once)
        self._tasks: dict[LedgerId, asyncio.Task[None]] = {}
        self._tries: dict[LedgerId, int] = {}
        self._skipped: dict[LedgerId, None] = {}
        """Unrepairable ledgers whose bookies have not come back."""
        self._skipped_until = 0.0
        self._roster_moved = asyncio.Event()
        self.counters = WorkerCounters()
        self.progress: dict[LedgerId, CopyProgress] = {}
        """Of the repairs that are in progress."""

    # --- taking marks -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until it is cancelled. Raises an error that does not pass by itself."""
        unlisten = self._roster.listen(self._on_roster)
        backoff = Backoff(self._random)
        has_begun = False
        try:
            while await self._store.session.wait_usable_or_closed() is not SessionState.CLOSED:
                try:
                    if not has_begun:
                        await self._begin()
                        has_begun = True
                    await self._round()
                except PASSING as error:
                    log.info("auto-recovery waits for the metadata store", extra={"why": str(error)})
                    await asyncio.sleep(backoff.next_s())
                else:
                    backoff.reset()
            raise StoreClosedError("the metadata store was closed")
        finally:
            unlisten()
            await cancel_all(list(self._tasks.values()))

    async def _begin(self) -> None:
        await self._marks.prepare()
        await self._marks.unlock_all()  # What a former worker of this session left.

    def _on_roster(self) -> None:
        self._skipped.clear()
        self._roster_moved.set()
        self._roster_moved = asyncio.Event()
        self._tree.poke()

    async def _round(self) -> None:
        """Walks through the marks once, and waits for a change."""
        now = asyncio.get_running_loop().time()
        if now >= self._skipped_until:
            self._skipped.clear()
            self._skipped_until = now + _SKIPPED_LOOK_S
        self._tree.begin()
        if not self._roster.is_disabled:
            async for ledger_id in self._tree.walk():
                if ledger_id in self._tasks or ledger_id in self._skipped:
                    continue
                await self._places.acquire()
                if len(self._tasks) >= _TASKS_MAX or self._roster.is_disabled:
                    self._places.release()
                    break
                self._spawn(ledger_id)
        await self._tree.wait_changed(self._skipped_until - now if self._skipped else None)

    def _spawn(self, ledger_id: LedgerId) -> None:
        work = self._handle(ledger_id, _Slot(self._places))
        task = asyncio.get_running_loop().create_task(work, name=f"repair of ledger {ledger_id}")
        self._tasks[ledger_id] = task
        task.add_done_callback(lambda done: self._on_done(ledger_id, done))

    def _on_done(self, ledger_id: LedgerId, task: asyncio.Task[None]) -> None:
        del self._tasks[ledger_id]
        self._tree.poke()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the repair of a ledger failed", extra={"ledger_id": ledger_id}, exc_info=error)

    # --- one ledger ---------------------------------------------------------------------------------------------------

    async def _handle(self, ledger_id: LedgerId, slot: _Slot) -> None:
        try:
            generation = self._store.session.generation
            try:
                if await self._marks.lock(ledger_id, self._name):
                    await self._work(ledger_id, slot, generation)
            except asyncio.CancelledError:
                with contextlib.suppress(MetadataError, TimeoutError):
                    async with asyncio.timeout(_TIDY_S):
                        await self._marks.unlock(ledger_id)
                raise
            except Exception:
                await self._unlock(ledger_id)
                raise
            await self._unlock(ledger_id)
        except MetadataError as error:
            log.info("a repair was interrupted", extra={"ledger_id": ledger_id, "why": str(error)})
            await self._pause(ledger_id, slot)
        except Exception:
            log.exception("the repair of a ledger failed", extra={"ledger_id": ledger_id})
            await self._pause(ledger_id, slot)
        finally:
            slot.free()
            self.progress.pop(ledger_id, None)

    async def _pause(self, ledger_id: LedgerId, slot: _Slot) -> None:
        slot.free()
        await asyncio.sleep(self._next_pause_s(ledger_id))

    async def _unlock(self, ledger_id: LedgerId) -> None:
        """Also after the session was lost: the lock may have been taken by the next one. Never gives up: no worker
        could repair the ledger while this session has its lock."""
        backoff = Backoff(self._random)
        while self._store.session.state is not SessionState.CLOSED:  # The lock ends with its session.
            try:
                await self._marks.unlock(ledger_id)
            except PASSING:
                await asyncio.sleep(backoff.next_s())
            else:
                return

    async def _work(self, ledger_id: LedgerId, slot: _Slot, generation: int) -> None:
        mark = await self._marks.read_versioned(ledger_id)
        if mark is None:
            return
        note = await self._notes.read(ledger_id) or MarkNote()
        if note.state is MarkState.UNREPAIRABLE and not await self._is_worth_a_try(ledger_id, note, mark):
            self._skip(ledger_id)
            return
        roster = self._roster.changes
        outcome = await self._repair(ledger_id, mark.value, generation)
        if outcome.kind is OutcomeKind.NEEDS_CLOSE:
            outcome = await self._close_after_grace(ledger_id, mark.value, generation, outcome, slot)
        match outcome.kind:
            case OutcomeKind.REPAIRED | OutcomeKind.DELETED:
                await self._clear(ledger_id, mark, generation, outcome)
            case OutcomeKind.UNREPAIRABLE:
                await self._give_up(ledger_id, mark, note, outcome, slot, roster)
            case OutcomeKind.WAIT | OutcomeKind.NEEDS_CLOSE:
                await self._wait(ledger_id, outcome, slot, roster)

    async def _repair(self, ledger_id: LedgerId, mark: Mark, generation: int, *, old_lac: int | None = None) -> Outcome:
        progress = self.progress[ledger_id] = CopyProgress(began_at=asyncio.get_running_loop().time())
        repair = LedgerRepair(
            ledger_id,
            mark.replicas,
            self._tools,
            progress,
            is_ours=lambda: self._store.session.generation == generation,
            is_patient=self._tries.get(ledger_id, 0) < _PATIENCE_TRIES,
            old_lac=old_lac,
        )
        reporting = asyncio.get_running_loop().create_task(self._report(ledger_id, progress), name="repair-progress")
        try:
            return await repair.run()
        finally:
            await end_task(reporting)
            self.counters.entries_copied += progress.entries
            self.counters.bytes_copied += progress.bytes

    async def _report(self, ledger_id: LedgerId, progress: CopyProgress) -> None:
        """Writes the progress of a long repair into its note."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(_NOTE_AFTER_S)
        while True:
            now_ms = self._wall_ms()
            seconds = round(loop.time() - progress.began_at, 3)
            try:
                await self._notes.change(
                    ledger_id,
                    lambda note: replace(
                        note,
                        state=MarkState.REPAIRING,
                        why="",
                        since_ms=note.since_ms if note.state is MarkState.REPAIRING else now_ms,  # noqa: B023
                        worker=self._name,
                        copied_entries=progress.entries,
                        copied_bytes=progress.bytes,
                        entries_to_copy=progress.entries_to_copy,
                        seconds=seconds,  # noqa: B023
                    ),
                )
            except MetadataError as error:
                log.info("the progress of a repair is not written", extra={"why": str(error)})
            await asyncio.sleep(_NOTE_EVERY_S)

    # --- how it ends --------------------------------------------------------------------------------------------------

    async def _clear(self, ledger_id: LedgerId, mark: Versioned[Mark], generation: int, outcome: Outcome) -> None:
        if self._store.session.generation != generation:
            return
        if not await self._marks.clear(ledger_id, mark.version, outcome.ledger_version):
            return  # It was marked again or has changed, or the lock was lost: the mark stays.
        self._tries.pop(ledger_id, None)
        if outcome.kind is OutcomeKind.DELETED:
            self.counters.ledgers_deleted += 1
        else:
            self.counters.ledgers_repaired += 1
        log.info("a ledger is repaired", extra={"ledger_id": ledger_id, "how": outcome.kind.value})
        await self._notes.delete(ledger_id)

    async def _close_after_grace(
        self, ledger_id: LedgerId, mark: Mark, generation: int, outcome: Outcome, slot: _Slot
    ) -> Outcome:
        """Gives the writer time to replace the bookie; then the ledger is closed, if it still has to be."""
        grace_s = self._config.open_ledger_grace_ms / 1000
        await self._tell(ledger_id, MarkState.WAITING, f"{outcome.why}; it is closed in {grace_s:g} s unless its "
                         "writer replaces the bookie")  # fmt: skip
        slot.free()
        await asyncio.sleep(grace_s)
        await slot.take()
        outcome = await self._repair(ledger_id, mark, generation, old_lac=outcome.lac)
        if outcome.kind is not OutcomeKind.NEEDS_CLOSE or self._store.session.generation != generation:
            return outcome
        try:
            await LedgerRepair(ledger_id, mark.replicas, self._tools, CopyProgress()).close()
        except NoSuchLedgerError:
            return Outcome(OutcomeKind.DELETED)
        except MagnetarError as error:
            return Outcome(OutcomeKind.WAIT, str(error))
        self.counters.ledgers_closed += 1
        return await self._repair(ledger_id, mark, generation)

    async def _wait(self, ledger_id: LedgerId, outcome: Outcome, slot: _Slot, roster: int) -> None:
        self.counters.repairs_postponed += 1
        log.info("a ledger cannot be repaired yet", extra={"ledger_id": ledger_id, "why": outcome.why})
        await self._tell(ledger_id, MarkState.WAITING, outcome.why)
        slot.free()
        pause_s = self._next_pause_s(ledger_id)
        moved = self._roster_moved
        if self._roster.changes != roster:
            pause_s = min(pause_s, _PAUSE_FIRST_S)
        try:
            async with asyncio.timeout(pause_s):
                await moved.wait()
        except TimeoutError:
            return

    def _next_pause_s(self, ledger_id: LedgerId) -> float:
        tries = self._tries.pop(ledger_id, 0) + 1
        while len(self._tries) >= _REMEMBERED_MAX:
            del self._tries[next(iter(self._tries))]
        self._tries[ledger_id] = tries
        longest_s = self._config.retry_ms / 1000
        pause_s = min(longest_s, _PAUSE_FIRST_S * float(1 << min(tries - 1, 20)))
        return pause_s * (0.5 + self._random.random() / 2)

    async def _give_up(
        self,
        ledger_id: LedgerId,
        mark: Versioned[Mark],
        note: MarkNote,
        outcome: Outcome,
        slot: _Slot,
        roster: int,
    ) -> None:
        bookies = await self._registrations(ledger_id)
        if self._roster.changes != roster:  # What was found may be out of date.
            await self._wait(ledger_id, outcome, slot, roster)
            return
        if note.state is not MarkState.UNREPAIRABLE or note.entries != outcome.entries:
            self.counters.unrepairable += 1
            log.error(
                "a ledger cannot be repaired: entries are on no bookie; it is tried again when a bookie comes back",
                extra={"ledger_id": ledger_id, "entries": outcome.entries, "why": outcome.why},
            )
        now_ms = self._wall_ms()
        await self._notes.change(
            ledger_id,
            lambda found: replace(
                found,
                state=MarkState.UNREPAIRABLE,
                why=outcome.why,
                since_ms=found.since_ms if found.state is MarkState.UNREPAIRABLE else now_ms,
                entries=outcome.entries,
                bookies=bookies,
                mark_version=mark.version,
                worker="",
            ),
        )
        if self._roster.changes == roster:  # Otherwise a bookie came back while the note was written.
            self._skip(ledger_id)

    async def _is_worth_a_try(self, ledger_id: LedgerId, note: MarkNote, mark: Versioned[Mark]) -> bool:
        if note.mark_version != mark.version or await self._came_back(note.bookies):
            return True
        return not await self._exists(ledger_id)

    async def _exists(self, ledger_id: LedgerId) -> bool:
        try:
            await self._tools.context.ledgers.read(ledger_id)
        except NoSuchLedgerError:
            return False
        return True

    async def _came_back(self, before: Mapping[str, int]) -> bool:
        now = {bookie: await self._roster.registered_at_ms(BookieId(bookie)) or 0 for bookie in before}
        return any(now[bookie] not in (0, was) for bookie, was in before.items())

    def _skip(self, ledger_id: LedgerId) -> None:
        self._skipped[ledger_id] = None

    async def _registrations(self, ledger_id: LedgerId) -> dict[str, int]:
        """Returns when each bookie of the ledger had registered; 0 if it was not, as far as the roster shows."""
        try:
            metadata = (await self._tools.context.ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return {}
        bookies = dict.fromkeys(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
        return {
            bookie: (await self._roster.registered_at_ms(bookie) or 0) if self._roster.is_serving(bookie) else 0
            for bookie in bookies
        }

    async def _tell(self, ledger_id: LedgerId, state: MarkState, why: str) -> None:
        now_ms = self._wall_ms()

        def change(note: MarkNote) -> MarkNote:
            since_ms = note.since_ms if note.state is state else now_ms
            return replace(note, state=state, why=why, since_ms=since_ms, worker=self._name, tries=note.tries + 1)

        await self._notes.change(ledger_id, change)
