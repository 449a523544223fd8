"""Decision: makes the one intent of an epoch from what its tasks staged, or finds the one that another client made.

Order:     read the owner's record → is it done, or decided? → is an earlier epoch unfinished? finish that first → do
           all ledgers exist, closed, and as their tasks left them? → create the intent at the version that was read.
           Any change in between changes the version: read again. An epoch without any row is done by the same
           compare-and-set, without an intent. The loop is not that of metadata/compare_and_set.py: a try may finish
           other epochs first, and every try reads the record as it is now, which distinguishes an unknown outcome from
           a failure. The caller waits for a store that cannot be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from magnetar.errors import (
    BadVersionError,
    EpochOrderError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    StagedLedgerGoneError,
    StagingError,
    TransactionFailedError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.gather import gather_bounded
from magnetar.staging.intents import Intents, OwnerNode, VersionedRecord
from magnetar.staging.publisher import Reached
from magnetar.staging.records import Intent, OwnerRecord, StagedPart
from magnetar.staging.register import StagingSettings

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
