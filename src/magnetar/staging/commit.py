"""Sink: the driver's side. Decides which staged ledgers make up an epoch, has them published, says when that is done.

    sink = Sink(store, ledgers, publisher, settings)
    await sink.commit(owner, epoch, staged)         # of all tasks; returns when everybody can read it
    await sink.last_done(owner)                     # −1: nothing yet

Decide:    creating the intent is the commit point (intents.py). Of several who want to commit an epoch, whatever they
           staged, one creates it; the others go on with what it says. What is done already is a success at once.
Order:     an earlier epoch that was decided and not finished is finished first, whoever left it behind.
Lost:      an answer that did not come is resolved by reading, never by guessing.
Finish:    last_done moves up by compare-and-set → the intent goes → its ledgers go. What is left on the way is found by
           the sweeper.
Patience:  what may be tried again is, for `patience_s`; then the error says so. Committing again goes on where it was.
Read next: intents.py, decide.py, sweeper.py, docs/staging.md
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
    JobAlreadyCommittedError,
    MagnetarError,
    MetadataError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    StagingError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.staging.at_once import all_of
from magnetar.staging.decide import Decision
from magnetar.staging.intents import Intents
from magnetar.staging.owner_node import OwnerNode
from magnetar.staging.paths import register_path
from magnetar.staging.publisher import Publisher, Reached, nothing_reached
from magnetar.staging.records import NONE_DONE, Intent, Staged
from magnetar.staging.register import Register
from magnetar.staging.settings import StagingSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

_TOPICS_AT_ONCE: Final = 8
_LEDGERS_AT_ONCE: Final = 16
_CAS_TRIES_MAX: Final = 20  # Others who change the same record: drivers of one owner, sweepers. They are few.


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
        """The last epoch of this owner that everybody can read; −1 if there is none."""
        found = await self._patiently(OwnerNode(self._store, owner).find)
        return NONE_DONE if found is None else found.record.last_done

    async def commit(
        self, owner: str, epoch: int, staged: Sequence[Staged], *, is_job: bool = False, is_passing: bool = False
    ) -> None:
        """Returns when the epoch is published and done: by this call, or by whoever was first.

        `is_job`: what was committed before is not this run's, and the caller must know: JobAlreadyCommittedError.
        `is_passing`: the owner's name is random; nothing of it is kept when it is done.
        StagedLedgerGoneError, EpochOrderError: nothing was committed. Any other error: commit again, and it goes on.
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
        if is_job and not decision.is_ours:
            raise JobAlreadyCommittedError(
                f"the job of {owner!r} was committed by another run: what this run wrote is dropped"
            )
        if is_passing:
            await self._forget(owner)

    async def abort(self, owner: str, epoch: int, staged: Sequence[Staged | None]) -> None:
        """After a failure, whatever it was. Deletes nothing: a commit that failed may have taken effect, and then what
        was staged is all there is. The sweeper knows."""
        kept = sum(each is not None for each in staged)
        log.info("an epoch was given up", extra={"owner": owner, "epoch": epoch, "kept": kept})

    async def recover(self, owner: str) -> int:
        """Finishes what was decided and left behind. Returns the last epoch that is done, then."""
        found = await self._patiently(OwnerNode(self._store, owner).find)
        if found is None:
            return NONE_DONE
        record = found.record
        if record.decided > record.last_done:
            await self._finish_earlier(owner, record.decided)
        return max(record.last_done, record.decided)

    async def _finish_earlier(self, owner: str, epoch: int) -> None:
        intents = Intents(self._store, self._ledgers, self._settings, owner)
        intent = await self._patiently(partial(intents.read, epoch))
        if intent is not None:  # Else somebody else has finished it meanwhile.
            await self.complete(intent)

    # --- publishing ---------------------------------------------------------------------------------------------------

    async def complete(self, intent: Intent) -> None:
        """Publishes an intent, and finishes it."""
        topics = intent.topics
        await all_of([partial(self._publish, topic, intent) for topic in topics], _TOPICS_AT_ONCE)
        self._reached("published", intent.epoch)
        await self._finish(intent)

    async def _publish(self, topic: str, intent: Intent) -> None:
        await self._patiently(partial(self._publisher.publish, topic, intent.owner, intent.epoch))
        if topic != intent.topics[-1]:
            self._reached("between-topics", intent.epoch)

    # --- finishing ----------------------------------------------------------------------------------------------------

    async def _finish(self, intent: Intent) -> None:
        if await self._patiently(partial(self._note_done, intent)):
            forget = self._publisher.forget
            await all_of(
                [partial(self._patiently, partial(forget, topic, intent.owner)) for topic in intent.topics],
                _TOPICS_AT_ONCE,
            )
        intents = Intents(self._store, self._ledgers, self._settings, intent.owner)
        await self._patiently(partial(intents.delete, intent.epoch))
        delete = partial(self._delete_ledger, Register(self._store, intent.owner))
        await all_of([partial(delete, ledger_id) for ledger_id in intent.ledgers], _LEDGERS_AT_ONCE)

    async def _note_done(self, intent: Intent) -> bool:
        """Returns whether it was a job, whose topics need not remember it: nobody publishes what is done."""
        node = OwnerNode(self._store, intent.owner)
        for _ in range(_CAS_TRIES_MAX):
            found = await node.find()
            if found is None:  # A passing owner's, which somebody else has finished.
                return False
            record = found.record
            if record.last_done >= intent.epoch:
                return record.is_job
            with contextlib.suppress(BadVersionError, OutcomeUnknownError):
                await node.put(replace(record, last_done=intent.epoch), found.version)
        raise StagingError(f"the record of {intent.owner!r} changes all the time: is one query running many times?")

    async def _delete_ledger(self, register: Register, ledger_id: int) -> None:
        try:
            with contextlib.suppress(NoSuchLedgerError):
                await self._ledgers.delete(ledger_id)
            await register.forget(ledger_id)
        except MagnetarError as error:  # All is done; only room is left to give back, and the sweeper does.
            log.info("a staged ledger is left to the sweeper", extra={"ledger": ledger_id, "why": str(error)})

    async def _forget(self, owner: str) -> None:
        """Of a passing owner, whose own driver knows that all is done. If it fails, the sweeper does it."""
        with contextlib.suppress(MetadataError):
            await self._store.delete(register_path(owner))
        with contextlib.suppress(MetadataError):
            await self._store.delete(OwnerNode(self._store, owner).path)

    # --- patience -----------------------------------------------------------------------------------------------------

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Again and again while the error is one that may pass."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._ledgers.parts.metadata.entropy.random, first_s=0.05)
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
    """All that staging does may be done again, so an unknown outcome is one to try again after."""
    return error.retryable or isinstance(error, OutcomeUnknownError)


def _check(owner: str, epoch: int, staged: Sequence[Staged]) -> None:
    strangers = [each for each in staged if (each.owner, each.epoch) != (owner, epoch)]
    if strangers:
        raise StagingError(
            f"what {strangers[0].owner!r} staged for epoch {strangers[0].epoch} is not {owner!r}'s {epoch}"
        )
    partitions = [each.partition for each in staged]
    if len(set(partitions)) != len(partitions):
        raise StagingError(f"two attempts of one partition of epoch {epoch} are to be committed: only one may")
