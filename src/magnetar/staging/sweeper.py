"""Sweeper: finishes what drivers left unfinished, and deletes staged ledgers that will not be published.

    report = await sweep(store, ledgers, now_ms, ttl_ms, sink=sink)

Order:     an intent that is older than a while most likely has no driver any more; publishing it is safe if it has.
           One whose epoch is done is deleted with its ledgers: its driver ended in between.
           Deleted are staged ledgers of epochs that are done, and those older than the TTL, which is longer than any
           task runs; never one that an intent names. The candidates are written into the owner's record as doomed, by
           compare-and-set → the intents are read again, and their ledgers are spared → ledgers are fenced and deleted →
           their register nodes are deleted. A driver that verified before that cannot create its intent, as the record
           has changed; a later one sees that its ledger is doomed.
Limits:    any number of sweepers may work at a time; every broker runs one.
Read next: sink.py, docs/staging.md
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from magnetar.errors import (
    BadVersionError,
    MagnetarError,
    MetadataError,
    NoNodeError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.gather import gather_bounded
from magnetar.staging.intents import Intents, OwnerNode, VersionedRecord
from magnetar.staging.records import OwnerRecord, Registration
from magnetar.staging.register import SINKS, Register, StagingSettings, intent_path, owner_of, register_path
from magnetar.staging.sink import Sink

log = logging.getLogger(__name__)

DOOMED_MAX: Final = 2_000
"""The most of one owner in one sweep: they are in its record, which has to stay small."""
_AT_ONCE: Final = 16


@dataclass(slots=True)
class SweepReport:
    owners: int = 0
    finished: list[tuple[str, int]] = field(default_factory=list)
    """Owner and epoch of intents that were left unfinished."""
    deleted: list[int] = field(default_factory=list)
    """Staged ledgers."""
    forgotten: list[str] = field(default_factory=list)
    """Owners of which nothing is left."""
    failures: list[str] = field(default_factory=list)
    """The failures of this sweep, in words."""


async def sweep(
    store: MetadataStore,
    ledgers: LedgerClient,
    now_ms: int,
    ttl_ms: int,
    *,
    sink: Sink | None = None,
    finish_after_ms: int = 60_000,
) -> SweepReport:
    """Sweeps all owners, one after the other. Without a sink, unfinished intents stay."""
    report = SweepReport()
    try:
        await store.sync()
        names = await store.children(SINKS)
    except NoNodeError:
        return report
    for name in names:
        sweeping = _OwnerSweep(store, ledgers, owner_of(name), now_ms, ttl_ms, report)
        try:
            if sink is not None:
                await sweeping.finish(sink, finish_after_ms)
            await sweeping.delete()
        except MagnetarError as error:
            report.failures.append(f"{owner_of(name)}: {error}")
            log.info("the sweep of an owner is postponed", extra={"owner": owner_of(name), "why": str(error)})
        report.owners += 1
    return report


class _OwnerSweep:
    def __init__(
        self, store: MetadataStore, ledgers: LedgerClient, owner: str, now_ms: int, ttl_ms: int, report: SweepReport
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._owner = owner
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        self._report = report
        self._node = OwnerNode(store, owner)
        self._register = Register(store, owner)
        self._intents = Intents(store, ledgers, StagingSettings(), owner)

    async def finish(self, sink: Sink, after_ms: int) -> None:
        """Finishes every intent that still exists after a while. An error is noted, and the sweep continues."""
        found = await self._node.find()
        if found is None:
            return
        for epoch in await self._intents.epochs():
            node = await self._store.get(intent_path(self._owner, epoch))
            if node is not None and self._now_ms - node.created_ms >= after_ms:
                await self._finish_one(sink, epoch, is_published=epoch <= found.record.last_done)

    async def _finish_one(self, sink: Sink, epoch: int, *, is_published: bool) -> None:
        """`is_published`: the driver died, or gave up, after it had noted the epoch as done and before it had deleted
        the intent, whose ledgers are kept for as long as it exists."""
        log.info("an unfinished epoch is being finished", extra={"owner": self._owner, "epoch": epoch})
        try:
            if is_published:
                await sink.tidy(self._owner, epoch)
            else:
                await sink.recover(self._owner)
        except MagnetarError as error:
            self._report.failures.append(f"{self._owner}, epoch {epoch}: {error}")
            log.warning(
                "a decided epoch cannot be finished", extra={"owner": self._owner, "epoch": epoch, "why": str(error)}
            )
        else:
            self._report.finished.append((self._owner, epoch))

    async def delete(self) -> None:
        found = await self._node.find()
        if found is None:
            return
        noted = await self._register.ledger_ids()
        candidates = await self._candidates(found.record, noted)
        if candidates and await self._doom(found, candidates, noted):
            victims = await self._spare_named(candidates)
            await gather_bounded([partial(self._delete_one, each) for each in victims], _AT_ONCE)
        if not noted:
            await self._forget(found)

    async def _candidates(self, record: OwnerRecord, noted: list[int]) -> list[Registration]:
        read = await gather_bounded([partial(self._register.read, ledger_id) for ledger_id in noted], _AT_ONCE)
        old = [each for each in read if each is not None and (each.epoch <= record.last_done or self._is_old(each))]
        return (await self._spare_named(old))[:DOOMED_MAX] if old else []

    def _is_old(self, noted: Registration) -> bool:
        return self._now_ms - noted.created_ms >= self._ttl_ms

    async def _spare_named(self, candidates: list[Registration]) -> list[Registration]:
        """Returns those that no intent names now."""
        await self._store.sync()
        named: set[int] = set()
        for epoch in await self._intents.epochs():
            intent = await self._intents.read(epoch)
            named.update(() if intent is None else intent.ledgers)
        return [each for each in candidates if each.ledger_id not in named]

    async def _doom(self, found: VersionedRecord, candidates: list[Registration], noted: list[int]) -> bool:
        """Returns False if another client was faster, and everything has to be looked at again."""
        before = [each for each in found.record.doomed if each in frozenset(noted)]  # Another sweeper may delete them.
        doomed = sorted({*before, *(each.ledger_id for each in candidates)})
        record = replace(found.record, sweeps=found.record.sweeps + 1, doomed=tuple(doomed))
        try:
            await self._node.put(record, found.version)
        except (BadVersionError, NoNodeError, OutcomeUnknownError):
            return False
        return True

    async def _delete_one(self, noted: Registration) -> None:
        ledger_id = noted.ledger_id
        try:
            try:
                with contextlib.suppress(MagnetarError):  # A late writer fails at its close, at the latest.
                    await self._ledgers.recover(ledger_id)
                await self._ledgers.delete(ledger_id)
            except NoSuchLedgerError:
                if not self._is_old(noted):  # Its task may be about to create it.
                    return
            await self._register.forget(ledger_id)
            self._report.deleted.append(ledger_id)
        except MagnetarError as error:
            self._report.failures.append(f"{self._owner}, ledger {ledger_id}: {error}")

    async def _forget(self, found: VersionedRecord) -> None:
        """Forgets an owner without decisions, or a passing one. Others are remembered: no epoch may be repeated."""
        record = found.record
        is_over = record.decided < 0 or (record.is_passing and record.decided <= record.last_done)
        if not is_over or self._now_ms - found.created_ms < self._ttl_ms:
            return
        with contextlib.suppress(MetadataError):  # Not empty, or deleted, or the owner is in use again.
            with contextlib.suppress(NoNodeError):
                await self._store.delete(register_path(self._owner))
            await self._store.delete(self._node.path, found.version)
            self._report.forgotten.append(self._owner)
