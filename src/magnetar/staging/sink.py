"""Sink: the driver's side. It decides which staged ledgers make up an epoch, and has them published.

    sink = Sink(store, ledgers, publisher, settings)
        await sink.commit(owner, epoch, staged)         # of all tasks; returns when every reader can see it
    await sink.last_done(owner)                     # −1: nothing yet

Order:     decide: read the owner's record → is it done, or decided? → is an earlier epoch unfinished? finish that first
           → do all ledgers exist, closed, and as their tasks left them? → create the intent at the version that was
           read. Any change in between changes the version: read again. An epoch without any row is done by the same
           compare-and-set, without an intent.
           creating the intent is the commit point (intents.py). If several clients commit an epoch, whatever they
           staged, one creates it; the others continue with its content. If it is done already, that is a success at
           once. An earlier epoch that was decided and not finished is finished first.
           last_done moves up by compare-and-set → the intent is deleted → its ledgers are deleted. The sweeper finds
           what is left after a crash in between.
Failure:   a lost answer is resolved by reading, never by guessing. An error that may pass is tried again for
           `patience_s`; then it is raised. A repeated commit continues where the first one was.
           `Decision.decide` and `_note_done` do not use the loop of metadata/compare_and_set.py: a try may finish other
           epochs first, and every try reads the record as it is now, which distinguishes an unknown outcome from a
           failure; `_patiently` waits for a store that cannot be reached.
Read next: intents.py, sweeper.py, docs/staging.md
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from magnetar.errors import (
    BadVersionError,
    EpochOrderError,
    JobAlreadyCommittedError,
    MagnetarError,
    MetadataError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    StagedLedgerGoneError,
    StagingError,
    TransactionFailedError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import gather_bounded
from magnetar.staging.intents import Intents, OwnerNode, VersionedRecord
from magnetar.staging.publisher import Publisher, Reached, nothing_reached
from magnetar.staging.records import NONE_DONE, Intent, JobIdentity, OwnerRecord, Staged, StagedPart
from magnetar.staging.register import Register, StagingSettings, register_path

_TRIES_MAX: Final = 50  # Each is lost to another change of the record: by drivers of one owner, or by sweepers.
_VERIFIED_AT_ONCE: Final = 32

FinishEarlier = Callable[[str, int], Awaitable[None]]


class Decision:
    """The decision of one commit."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        settings: StagingSettings,
        ours: Intent,
        finish_earlier: FinishEarlier,
        reached: Reached,
        *,
        is_job: bool = False,
        is_passing: bool = False,
    ) -> None:
        self.is_ours = False
        """Whether our own ledgers were decided. Known when `decide` has returned."""
        self._ours = ours
        self._ledgers = ledgers
        self._finish_earlier = finish_earlier
        self._reached = reached
        self._node = OwnerNode(store, ours.owner)
        self._intents = Intents(store, ledgers, settings, ours.owner)
        self._is_prepared = False
        self._is_job = is_job or is_passing
        self._is_passing = is_passing

    async def decide(self) -> Intent | None:
        """Returns the intent to publish; None if the epoch is done. May be called again after an error."""
        epoch = self._ours.epoch
        for _ in range(_TRIES_MAX):
            found = await self._node.read()
            record = found.record
            self.is_ours = record.decided == epoch and record.decided_by == self._ours.digest
            if record.last_done >= epoch:
                return None
            if record.decided > epoch:
                raise EpochOrderError(
                    f"{self._ours.owner!r} has decided on epoch {record.decided} and not on {epoch}: two queries use "
                    "one checkpoint's id, or a checkpoint was copied"
                )
            if record.decided > record.last_done:
                if record.decided < epoch:
                    await self._finish_earlier(self._ours.owner, record.decided)
                elif (intent := await self._intents.read(epoch)) is not None:
                    return intent
                continue  # It was finished since, by this or by another client.
            if await self._try(found):
                return self._ours if self._ours.parts else None
            await asyncio.sleep(0)
        raise StagingError(f"the record of {self._ours.owner!r} changes too often: is one query running many times?")

    async def _try(self, found: VersionedRecord) -> bool:
        """Returns False if another client was faster, or the outcome is unknown. The stored record shows which."""
        await self._verify(found.record)
        self._reached("before-intent", self._ours.epoch)
        try:
            record = replace(found.record, is_job=self._is_job, is_passing=self._is_passing)
            await self._write(found._replace(record=record))
        except (TransactionFailedError, BadVersionError, OutcomeUnknownError):
            return False
        self.is_ours = True
        return True

    async def _write(self, found: VersionedRecord) -> None:
        ours = self._ours
        if not ours.parts:
            done = replace(found.record, last_done=ours.epoch, decided=ours.epoch, decided_by=ours.digest)
            await self._node.put(done, found.version)
            return
        if not self._is_prepared:
            self._ours, self._is_prepared = await self._intents.prepare(ours), True
        await self._intents.create(self._ours, found)

    async def _verify(self, record: OwnerRecord) -> None:
        """Runs after the record was read: a later sweeper changes it."""
        doomed = frozenset(record.doomed)
        for part in self._ours.parts:
            if part.ledger_id in doomed:
                raise _gone(part, "a sweeper is deleting it: it was staged too long ago (staging TTL)")
        await gather_bounded([partial(self._verify_part, part) for part in self._ours.parts], _VERIFIED_AT_ONCE)

    async def _verify_part(self, part: StagedPart) -> None:
        try:
            metadata = await self._ledgers.metadata(part.ledger_id)
        except NoSuchLedgerError:
            raise _gone(part, "it was deleted") from None
        if not metadata.is_closed:
            raise _gone(part, "it is not closed")
        if (metadata.last_entry_id + 1, metadata.length) != (part.entries, part.size_bytes):
            raise _gone(
                part,
                f"it ends with entry {metadata.last_entry_id} of {metadata.length} bytes in all, and its task wrote "
                f"{part.entries} entries of {part.size_bytes}",
            )


def _gone(part: StagedPart, why: str) -> StagedLedgerGoneError:
    return StagedLedgerGoneError(
        f"ledger {part.ledger_id}, staged for {part.topic}, cannot be published: {why}. Nothing was committed: run the "
        "batch again"
    )


log = logging.getLogger(__name__)

T = TypeVar("T")

_TOPICS_AT_ONCE: Final = 8
_LEDGERS_AT_ONCE: Final = 16
_CAS_TRIES_MAX: Final = 20  # Other clients change the same record: drivers of one owner, sweepers. They are few.


class Sink:
    """Keeps nothing between calls: any number of them may serve one owner, in any processes."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        publisher: Publisher,
        settings: StagingSettings | None = None,
        *,
        patience_s: float = 300.0,
        reached: Reached = nothing_reached,
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._publisher = publisher
        self._settings = settings or StagingSettings()
        self._patience_s = patience_s
        self._reached = reached

    async def last_done(self, owner: str) -> int:
        """Returns the last epoch of this owner that every reader can see; −1 if none."""
        found = await self._patiently(OwnerNode(self._store, owner).find)
        return NONE_DONE if found is None else found.record.last_done

    async def commit(
        self, owner: str, epoch: int, staged: Sequence[Staged], *, is_job: bool = False, is_passing: bool = False
    ) -> None:
        """Returns when the epoch is published and done: by this call, or by an earlier one.

        `is_job`: an earlier commit is not this run's, and the caller must know: JobAlreadyCommittedError.
        `is_passing`: the owner's name is random; nothing of it is kept when it is done.
        StagedLedgerGoneError, EpochOrderError: nothing was committed. Any other error: commit again to continue.
        """
        _check(owner, epoch, staged)
        self._reached("tasks-done", epoch)
        ours = Intent.of(owner, epoch, staged)
        decision = Decision(
            self._store,
            self._ledgers,
            self._settings,
            ours,
            self._finish_earlier,
            self._reached,
            is_job=is_job,
            is_passing=is_passing,
        )
        decided = await self._patiently(decision.decide)
        self._reached("intent-reply-lost", epoch)
        if decided is not None:
            await self.complete(decided)
        if not decision.is_ours:
            await self._note_skip(owner, epoch)
            if is_job:
                raise JobAlreadyCommittedError(
                    f"job {owner!r} was committed by another run: this run's data is dropped"
                )
            log.warning("epoch %d of %s was committed before: nothing is written", epoch, owner)
        if is_passing:
            await self._forget(owner)

    async def abort(self, owner: str, epoch: int, staged: Sequence[Staged | None]) -> None:
        """Gives the epoch up after any failure. Deletes nothing: a commit that failed may have taken effect, and then
        the staged ledgers are the only copy. The sweeper knows."""
        kept = sum(each is not None for each in staged)
        log.info("an epoch was given up", extra={"owner": owner, "epoch": epoch, "kept": kept})

    async def recover(self, owner: str) -> int:
        """Finishes decided epochs that were left unfinished. Returns the last epoch that is done then."""
        found = await self._patiently(OwnerNode(self._store, owner).find)
        if found is None:
            return NONE_DONE
        record = found.record
        if record.decided > record.last_done:
            await self._finish_earlier(owner, record.decided)
        return max(record.last_done, record.decided)

    async def is_job_done(self, job: JobIdentity) -> bool:
        """Reports, logs and counts whether an earlier run has published this job, so that this run must write nothing.
        A decision of an earlier run that is not published is published first."""
        if await self.recover(job.owner) > NONE_DONE:
            log.warning("job %s was committed before: nothing is written to %s", job.job, job.target_text)
            await self._note_skip(job.owner, 0)
            return True
        if await self.recover(job.owner_without_target) > NONE_DONE:
            log.warning(
                "job %s was committed before by a version that noted no target: nothing is written to %s. If that "
                "target was never written, run it with another job id",
                *(job.job, job.target_text),
            )
            await self._note_skip(job.owner_without_target, 0)
            return True
        return False

    async def _note_skip(self, owner: str, epoch: int) -> None:
        """Counts the skip in the brokers' metrics: a broker that cannot be asked fails nothing."""
        try:
            await self._publisher.note_skip(owner, epoch)
        except MagnetarError as error:
            log.info(
                "a skipped epoch is not counted: no broker could be asked",
                extra={"owner": owner, "epoch": epoch, "why": str(error)},
            )

    async def tidy(self, owner: str, epoch: int) -> None:
        """Deletes the rest of an epoch that is noted as done."""
        intents = Intents(self._store, self._ledgers, self._settings, owner)
        intent = await self._patiently(partial(intents.read, epoch))
        if intent is not None:
            await self._finish(intent)

    async def _finish_earlier(self, owner: str, epoch: int) -> None:
        intents = Intents(self._store, self._ledgers, self._settings, owner)
        intent = await self._patiently(partial(intents.read, epoch))
        if intent is not None:  # Otherwise another client has finished it since.
            await self.complete(intent)

    async def complete(self, intent: Intent) -> None:
        """Publishes an intent, and finishes it."""
        topics = intent.topics
        await gather_bounded([partial(self._publish, topic, intent) for topic in topics], _TOPICS_AT_ONCE)
        self._reached("published", intent.epoch)
        await self._finish(intent)

    async def _publish(self, topic: str, intent: Intent) -> None:
        await self._patiently(partial(self._publisher.publish, topic, intent.owner, intent.epoch))
        if topic != intent.topics[-1]:
            self._reached("between-topics", intent.epoch)

    async def _finish(self, intent: Intent) -> None:
        if await self._patiently(partial(self._note_done, intent)):
            forget = self._publisher.forget
            await gather_bounded(
                [partial(self._patiently, partial(forget, topic, intent.owner)) for topic in intent.topics],
                _TOPICS_AT_ONCE,
            )
        intents = Intents(self._store, self._ledgers, self._settings, intent.owner)
        await self._patiently(partial(intents.delete, intent.epoch))
        delete = partial(self._delete_ledger, Register(self._store, intent.owner))
        await gather_bounded([partial(delete, ledger_id) for ledger_id in intent.ledgers], _LEDGERS_AT_ONCE)

    async def _note_done(self, intent: Intent) -> bool:
        """Returns whether it was a job: its topics need not remember it, as a done job is never published."""
        node = OwnerNode(self._store, intent.owner)
        for _ in range(_CAS_TRIES_MAX):
            found = await node.find()
            if found is None:  # The record of a passing owner, which another client has finished.
                return False
            record = found.record
            if record.last_done >= intent.epoch:
                return record.is_job
            with contextlib.suppress(BadVersionError, OutcomeUnknownError):
                await node.put(replace(record, last_done=intent.epoch), found.version)
        raise StagingError(f"the record of {intent.owner!r} changes too often: is one query running many times?")

    async def _delete_ledger(self, register: Register, ledger_id: int) -> None:
        try:
            with contextlib.suppress(NoSuchLedgerError):
                await self._ledgers.delete(ledger_id)
            await register.forget(ledger_id)
        except MagnetarError as error:  # Everything is done; only room is not given back yet, which the sweeper does.
            log.info("a staged ledger is left to the sweeper", extra={"ledger": ledger_id, "why": str(error)})

    async def _forget(self, owner: str) -> None:
        """Forgets a passing owner, whose own driver knows that all is done. If it fails, the sweeper does it."""
        with contextlib.suppress(MetadataError):
            await self._store.delete(register_path(owner))
        with contextlib.suppress(MetadataError):
            await self._store.delete(OwnerNode(self._store, owner).path)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeats the work while its error is one that may pass."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._ledgers.context.metadata.entropy.random, first_s=0.05)
        end_s = loop.time() + self._patience_s
        while True:
            try:
                return await work()
            except MagnetarError as error:
                if not may_pass(error) or loop.time() >= end_s:
                    raise
                log.info("staging tries again", extra={"why": str(error)})
            await asyncio.sleep(backoff.next_s())


def may_pass(error: MagnetarError) -> bool:
    """Reports whether to try again. All steps of staging are repeatable, so also after an unknown outcome."""
    return error.retryable or isinstance(error, OutcomeUnknownError)


def _check(owner: str, epoch: int, staged: Sequence[Staged]) -> None:
    strangers = [each for each in staged if (each.owner, each.epoch) != (owner, epoch)]
    if strangers:
        raise StagingError(
            f"parts that {strangers[0].owner!r} staged for epoch {strangers[0].epoch} are not {owner!r}'s {epoch}"
        )
    partitions = [each.partition for each in staged]
    if len(set(partitions)) != len(partitions):
        raise StagingError(f"two attempts of one partition of epoch {epoch} are to be committed: only one may")
