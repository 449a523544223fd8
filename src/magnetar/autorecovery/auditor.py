"""The auditor: one process of the cluster, which marks the ledgers that need repair.

Order:     it watches bookies come and go, and marks the ledgers of those that are lost (losses.py decides which) and of
           those that are being decommissioned. A new auditor begins with an audit of all ledgers, so a change of the
           auditor loses nothing; what was audited is remembered in the metadata (`lost/ID`). Beside this it checks all
           ledgers, their placement, and every entry (scrub), each at its own interval, whose last end is stored.
Failure:   while the metadata store cannot be reached, everything waits. Any other error ends the auditor, and its
           process begins again (service.py).
Limits:    an audit keeps in memory the ids of the ledgers of bookies that are away.
Read next: losses.py, marking.py, checks.py
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Final

from magnetar.autorecovery.checks import LedgerChecks
from magnetar.autorecovery.losses import LossWatch
from magnetar.autorecovery.marking import Marker, ledgers_by_bookie
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair import RepairTools
from magnetar.autorecovery.worker import PASSING
from magnetar.config.recovery import NEVER_CHECK, UNLIMITED_RATE
from magnetar.errors import BadVersionError, MalformedMetadataError, NodeExistsError, NoNodeError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import (
    BookieSet,
    PeriodicCheck,
    RecoveryNotes,
    RecoveryPaths,
    bookies_in,
    decode_delay,
    encode_delay,
)
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks, list_tree
from magnetar.metadata.follow import follow_value
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import run_together

log = logging.getLogger(__name__)

_CHECK_RETRY_S: Final = 60.0  # After a check that the metadata store interrupted.
_SCRUB_PAUSE_S: Final = 60.0  # Between two rounds of the scrub: a cluster without ledgers must not make it spin.


class Auditor:
    """`run` is what the elected process does."""

    def __init__(self, store: MetadataStore, paths: BookKeeperPaths, tools: RepairTools, name: str) -> None:
        self._store = store
        self._paths = paths
        self._nodes = RecoveryPaths(paths)
        self._tools = tools
        self._config = tools.config
        self._roster = tools.roster
        self._name = name
        self._ledgers = tools.context.ledgers
        self._random = tools.context.entropy.random
        self._wall_ms = tools.context.entropy.wall_ms
        self._marks = UnderreplicationMarks(store, paths)
        self._notes = RecoveryNotes(store, self._nodes)
        self._lost = BookieSet(store, self._nodes.lost)
        self.marker = Marker(self._marks, self._notes, self._wall_ms)
        self._checks = LedgerChecks(tools, self.marker)
        self._watch = LossWatch(max_percent=self._config.lost_bookies_max_percent)
        self._known: dict[BookieId, None] = {}
        self._seen: dict[BookieId, None] = {}
        """Bookies that were registered at some time since the last look began."""
        self._leftovers: dict[BookieId, None] = {}
        """Bookies of which only their cookies were left at the last audit: they have nothing to lose."""
        self._drained: dict[BookieId, None] = {}
        """Bookies that are being decommissioned, whose ledgers were marked."""
        self._delay_s = self._config.lost_bookie_delay_s
        self._wake = asyncio.Event()
        self._wants_audit = True
        self._is_forced = False
        self._status = b""
        self.audits = 0
        self.holding = ""
        """Why nothing is marked although bookies are away."""
        self.misplaced = 0
        """Ledgers whose bookies break the rules of placement, when that was checked last."""

    async def run(self) -> None:
        unlisten = self._roster.listen(self._on_roster)
        works: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("auditor-losses", self._watch_losses),
            ("auditor-delay", self._follow_delay),
            ("auditor-audits", self._audit_forever),
            ("auditor-ledgers", self._check_forever),
            ("auditor-placement", self._check_placement_forever),
            ("auditor-scrub", self._scrub_forever),
        ]
        try:
            await run_together(works)
        finally:
            unlisten()

    def _on_roster(self) -> None:
        self._seen.update(dict.fromkeys(self._roster.registered))
        self._wake.set()

    def request_audit(self, *, force: bool = False) -> None:
        self._wants_audit = True
        self._is_forced = self._is_forced or force
        self._wake.set()

    # --- bookies come and go ------------------------------------------------------------------------------------------

    async def _watch_losses(self) -> None:
        backoff = Backoff(self._random)
        while True:
            self._wake.clear()
            try:
                look_again_at = await self._look()
            except (*PASSING, BadVersionError, NoNodeError) as error:
                log.info("the auditor waits for the metadata store", extra={"why": str(error)})
                await asyncio.sleep(backoff.next_s())
                await self._store.session.wait_usable_or_closed()
                continue
            backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(look_again_at):
                    await self._wake.wait()

    async def _look(self) -> float | None:
        """Marks what has to be marked now. Returns when to look again, if nothing happens."""
        if self._roster.is_disabled:
            await self._tell("disabled", "auto-recovery is disabled for the whole cluster")
            return None
        await self._marks.prepare()
        wants_audit, self._wants_audit = self._wants_audit, False
        is_forced, self._is_forced = self._is_forced, False
        seen, self._seen = self._seen | dict.fromkeys(sorted(self._roster.registered)), {}
        try:
            return await self._look_at(seen, wants_audit=wants_audit, is_forced=is_forced)
        except BaseException:  # What was asked for meanwhile is kept, too.
            self._wants_audit = self._wants_audit or wants_audit
            self._is_forced = self._is_forced or is_forced
            self._seen = seen | self._seen
            raise

    async def _look_at(self, seen: dict[BookieId, None], *, wants_audit: bool, is_forced: bool) -> float | None:
        """Everything is decided for the bookies as they are now: what comes and goes meanwhile, the next look decides,
        since of such a bookie only some of the ledgers would be found."""
        registered, draining_now = self._roster.registered, self._roster.draining
        settled = await self._settled(seen)
        index = await self._index(registered, draining_now) if wants_audit else None
        await self._learn_bookies(seen, index)
        verdict = self._watch.look(
            asyncio.get_running_loop().time(),
            known=list(self._known),
            registered=registered,
            settled=settled,
            delay_s=self._delay_s,
            force=is_forced,
        )
        if verdict.holding and verdict.holding != self.holding:
            log.warning("the auditor waits: %s", verdict.holding)
        self.holding = verdict.holding
        again = settled if wants_audit else []
        draining = [bookie for bookie in sorted(draining_now) if wants_audit or bookie not in self._drained]
        if verdict.lost or draining or (again and index):
            if index is None:
                await self._tell("watching", "")  # Who is away: the search may take long.
                index = await self._index(registered, draining_now)
            await self._mark(index, verdict.lost, [*verdict.lost, *again], draining)
        if wants_audit:
            self.audits += 1
            await self._tidy_notes()
        self._drained = {bookie: None for bookie in self._drained if bookie in self._roster.draining}
        await self._tell("holding" if self.holding else "watching", self.holding)
        return verdict.look_again_at

    async def _settled(self, seen: Collection[BookieId]) -> list[BookieId]:
        """Returns the bookies whose loss was audited, without those that came back."""
        settled = await self._lost.read()
        for bookie in settled:
            if bookie in seen:
                await self._lost.discard(bookie)
                log.info("a lost bookie is back", extra={"bookie": bookie})
        return [bookie for bookie in settled if bookie not in seen]

    async def _learn_bookies(self, seen: dict[BookieId, None], index: Mapping[BookieId, list[LedgerId]] | None) -> None:
        """A bookie is known by its registration, because a ledger names it, or by a cookie that is new."""
        try:
            cookies = bookies_in(await self._store.children(self._paths.cookies))
        except NoNodeError:
            cookies = []
        self._known.update(seen)
        if index is not None:
            self._known.update(dict.fromkeys(index))
            self._leftovers = {bookie: None for bookie in cookies if bookie not in self._known}
        self._known.update({bookie: None for bookie in cookies if bookie not in self._leftovers})

    async def _index(
        self, registered: Collection[BookieId], draining: Collection[BookieId]
    ) -> dict[BookieId, list[LedgerId]]:
        return await ledgers_by_bookie(self._ledgers, lambda bookie: bookie not in registered or bookie in draining)

    async def _mark(
        self,
        index: Mapping[BookieId, list[LedgerId]],
        lost: tuple[BookieId, ...],
        all_lost: list[BookieId],
        draining: list[BookieId],
    ) -> None:
        reasons = dict.fromkeys(all_lost, "the bookie is lost")
        reasons |= dict.fromkeys(draining, "the bookie is being decommissioned")
        marked = await self.marker.mark_ledgers_of(index, reasons)
        if lost or draining or marked:
            log.warning(
                "ledgers are marked for repair",
                extra={"lost": list(lost), "draining": draining, "marked": marked},
            )
        for bookie in lost:
            await self._lost.add(bookie, self._wall_ms(), ledgers=len(index.get(bookie, [])))
            self._watch.forget(bookie)
            if not index.get(bookie):  # It has nothing that could be lost: only its cookie is left.
                self._known.pop(bookie, None)
        self._drained.update(dict.fromkeys(draining))

    async def _tidy_notes(self) -> None:
        """Deletes notes without a mark: of marks that were cleared by Apache's workers, or before their note came."""
        async for ledger_id in list_tree(self._store, self._nodes.notes):
            with contextlib.suppress(MalformedMetadataError):  # Then a mark exists.
                if await self._marks.read_versioned(ledger_id) is None:
                    await self._notes.delete(ledger_id)

    async def _tell(self, state: str, why: str) -> None:
        away = sorted(self._watch.away)
        document = {"auditor": self._name, "state": state, "why": why, "away": away, "misplaced": self.misplaced}
        value = json.dumps(document, separators=(",", ":")).encode()
        if value == self._status:
            return
        try:
            await self._store.create(self._nodes.auditor, value, make_parents=True)
        except NodeExistsError:
            await self._store.put(self._nodes.auditor, value)
        self._status = value

    # --- the delay, which operators change while the cluster runs -----------------------------------------------------

    async def _follow_delay(self) -> None:
        is_first = True
        async with aclosing(follow_value(self._store, self._nodes.delay)) as states:
            async for node in states:
                if node is None:
                    with contextlib.suppress(NodeExistsError, *PASSING):
                        value = encode_delay(self._config.lost_bookie_delay_s)
                        await self._store.create(self._nodes.delay, value, make_parents=True)
                    continue
                try:
                    delay_s = decode_delay(node.value)
                except MalformedMetadataError as error:
                    log.error("the delay stays as it was: %s", error)
                    continue
                is_request = not is_first and (delay_s == 0 or delay_s == self._delay_s)
                self._delay_s, is_first = delay_s, False
                if is_request:  # The same value was written again: an operator asks for an audit.
                    self.request_audit(force=True)
                self._wake.set()

    # --- what is repeated ---------------------------------------------------------------------------------------------

    async def _audit_forever(self) -> None:
        interval_s = self._config.bookie_check_interval_s
        while True:
            await asyncio.sleep(interval_s) if interval_s != NEVER_CHECK else await _forever()
            self.request_audit()

    async def _check_forever(self) -> None:
        await self._repeat(PeriodicCheck.ALL_LEDGERS, self._config.ledger_check_interval_s, self._check_all)

    async def _check_placement_forever(self) -> None:
        await self._repeat(PeriodicCheck.PLACEMENT, self._config.placement_check_interval_s, self._check_placement)

    async def _scrub_forever(self) -> None:
        if self._config.scrub_bytes_per_s == UNLIMITED_RATE:
            await _forever()
        await self._repeat(PeriodicCheck.REPLICAS, _SCRUB_PAUSE_S, self._scrub)

    async def _repeat(self, check: PeriodicCheck, interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
        if interval_s == NEVER_CHECK:
            await _forever()
        path = check.path(self._nodes)
        while True:
            try:
                node = await self._store.get(path)
                ended_ms = None if node is None else check.decode(node.value)
                if ended_ms is None:  # A new cluster has nothing to check: its first check comes after one interval.
                    await self._store_time(path, check)
                    await asyncio.sleep(interval_s)
                else:
                    await asyncio.sleep(max(0.0, interval_s - (self._wall_ms() - ended_ms) / 1000))
                if not self._roster.is_disabled:
                    await work()
                await self._store_time(path, check)
            except (*PASSING, NoNodeError) as error:
                log.info("a check was interrupted", extra={"check": check.name, "why": str(error)})
                await asyncio.sleep(_CHECK_RETRY_S)

    async def _store_time(self, path: str, check: PeriodicCheck) -> None:
        value = check.encode(self._wall_ms())
        try:
            await self._store.create(path, value, make_parents=True)
        except NodeExistsError:
            await self._store.put(path, value)

    async def _check_all(self) -> None:
        await self._check(every_entry=False, rate=self._tools.read_rate)

    async def _scrub(self) -> None:
        await self._check(every_entry=True, rate=ByteRate(self._config.scrub_bytes_per_s))

    async def _check(self, *, every_entry: bool, rate: ByteRate) -> None:
        totals = await self._checks.check(self._ledgers.list(), every_entry=every_entry, rate=rate)
        log.info(
            "all ledgers were checked",
            extra={"ledgers": totals.ledgers, "entries": totals.entries, "faulty": totals.faulty},
        )

    async def _check_placement(self) -> None:
        misplaced = await self._checks.misplaced(self._ledgers.list())
        self.misplaced = len(misplaced)
        if misplaced:
            log.warning(
                "the bookies of closed ledgers break the rules of placement",
                extra={"ledgers": self.misplaced, "first": misplaced[:10]},
            )


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()
