"""Sweeper: finishes what drivers left behind, and deletes staged ledgers that nobody will publish.

    report = await sweep(store, ledgers, now_ms, ttl_ms, sink=sink)

Finish:    an intent that is older than a while has no driver any more, most likely; publishing it is safe if it has.
Delete:    staged ledgers of epochs that are done, and those older than the TTL, which is longer than any task runs;
           never one that an intent names.
Order:     the candidates are written into the owner's record as doomed, by compare-and-set → the intents are read
           again, and what they name is spared → ledgers are fenced and deleted → their register nodes go. A driver that
           verified before that cannot create its intent, as the record has changed; one that comes later sees that its
           ledger is doomed.
Anybody:   any number of sweepers may work at a time; every broker runs one.
Read next: decide.py, docs/staging.md
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
from magnetar.staging.at_once import all_of
from magnetar.staging.commit import Sink
from magnetar.staging.intents import Intents
from magnetar.staging.owner_node import OwnerNode, VersionedRecord
from magnetar.staging.paths import SINKS, intent_path, owner_of, register_path
from magnetar.staging.records import OwnerRecord, Registration
from magnetar.staging.register import Register
from magnetar.staging.settings import StagingSettings

log = logging.getLogger(__name__)

DOOMED_MAX: Final = 2_000
"""Of one owner in one sweep: they are in its record, which has to stay small."""
_AT_ONCE: Final = 16


@dataclass(slots=True)
class SweepReport:
    owners: int = 0
    finished: list[tuple[str, int]] = field(default_factory=list)
    """Owner and epoch of intents that were left behind."""
    deleted: list[int] = field(default_factory=list)
    """Staged ledgers."""
    forgotten: list[str] = field(default_factory=list)
    """Owners of whom nothing is left."""
    failures: list[str] = field(default_factory=list)
    """What could not be done this time, in words."""


async def sweep(
    store: MetadataStore,
    ledgers: LedgerClient,
    now_ms: int,
    ttl_ms: int,
    *,
    sink: Sink | None = None,
    finish_after_ms: int = 60_000,
) -> SweepReport:
    """All owners, one after the other. Without a sink, intents that were left behind are left so."""
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
            log.info("an owner's sweep is left for the next time", extra={"owner": owner_of(name), "why": str(error)})
        report.owners += 1
    return report


class _OwnerSweep:
    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        owner: str,
        now_ms: int,
        ttl_ms: int,
        report: SweepReport,
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

    # --- what was decided ---------------------------------------------------------------------------------------------

    async def finish(self, sink: Sink, after_ms: int) -> None:
        """An error is noted, and what else there is to sweep is swept."""
        found = await self._node.find()
        if found is None or found.record.decided <= found.record.last_done:
            return
        epoch = found.record.decided
        node = await self._store.get(intent_path(self._owner, epoch))
        if node is None or self._now_ms - node.created_ms < after_ms:
            return
        log.info("an epoch that was left behind is published", extra={"owner": self._owner, "epoch": epoch})
        try:
            await sink.recover(self._owner)
        except MagnetarError as error:
            self._report.failures.append(f"{self._owner}, epoch {epoch}: {error}")
            log.warning(
                "an epoch that was decided cannot be published",
                extra={"owner": self._owner, "epoch": epoch, "why": str(error)},
            )
        else:
            self._report.finished.append((self._owner, epoch))

    # --- what nobody wants --------------------------------------------------------------------------------------------

    async def delete(self) -> None:
        found = await self._node.find()
        if found is None:
            return
        noted = await self._register.ledger_ids()
        candidates = await self._candidates(found.record, noted)
        if candidates and await self._doom(found, candidates, noted):
            victims = await self._spare_named(candidates)
            await all_of([partial(self._delete_one, each) for each in victims], _AT_ONCE)
        if not noted:
            await self._forget(found)

    async def _candidates(self, record: OwnerRecord, noted: list[int]) -> list[Registration]:
        read = await all_of([partial(self._register.read, ledger_id) for ledger_id in noted], _AT_ONCE)
        old = [each for each in read if each is not None and (each.epoch <= record.last_done or self._is_old(each))]
        return (await self._spare_named(old))[:DOOMED_MAX] if old else []

    def _is_old(self, noted: Registration) -> bool:
        return self._now_ms - noted.created_ms >= self._ttl_ms

    async def _spare_named(self, candidates: list[Registration]) -> list[Registration]:
        """Those that no intent names now."""
        await self._store.sync()
        named: set[int] = set()
        for epoch in await self._intents.epochs():
            intent = await self._intents.read(epoch)
            named.update(() if intent is None else intent.ledgers)
        return [each for each in candidates if each.ledger_id not in named]

    async def _doom(self, found: VersionedRecord, candidates: list[Registration], noted: list[int]) -> bool:
        """False: somebody else was faster, and all has to be looked at again."""
        before = [each for each in found.record.doomed if each in frozenset(noted)]  # Another sweeper may be at it.
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

    # --- owners -------------------------------------------------------------------------------------------------------

    async def _forget(self, found: VersionedRecord) -> None:
        """One of whom nothing was ever decided, or who is passing. Others are remembered: no epoch shall come twice."""
        record = found.record
        is_over = record.decided < 0 or (record.is_passing and record.decided <= record.last_done)
        if not is_over or self._now_ms - found.created_ms < self._ttl_ms:
            return
        with contextlib.suppress(MetadataError):  # Not empty, or gone, or somebody came back.
            with contextlib.suppress(NoNodeError):
                await self._store.delete(register_path(self._owner))
            await self._store.delete(self._node.path, found.version)
            self._report.forgotten.append(self._owner)
