"""Auto-recovery in the simulated world: nodes that run the production service, and what it promises.

- healer: node healer-0 …: a process with an election, perhaps the auditor, and a worker. It is killed, paused, starved
  and cut off like any client.
- settled: in a healed world a client looks at every entry on every bookie and marks what is missing. From then on the
  marks must go to zero (V3), and every entry of a closed ledger is on its Qw bookies.
- promises: R1 to R4 and V3 of docs/simulation.md. A copy on a disk that lied or was emptied is not asked for.

Read next: autorecovery/service.py, watch.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.autorecovery.checks import LedgerChecks
from magnetar.autorecovery.fragments import bookies_with_entries
from magnetar.autorecovery.marking import Marker
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair import RepairTools
from magnetar.autorecovery.roster import Roster
from magnetar.autorecovery.service import AutoRecovery
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata
from magnetar.metadata.bookkeeper.recovery_nodes import RecoveryNotes, RecoveryPaths
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.sizes import is_held, write_set
from magnetar.sim.ledgers.cluster import SETTLE_LIMIT_S, Cluster, Node
from magnetar.sim.ledgers.options import is_healer
from magnetar.sim.ledgers.watch import BookieWatch, Invariant, LedgerChange, Watch
from magnetar.sim.machine import SimRuntime
from magnetar.sim.metadata import WatchedMetadata

_LOOK_S: Final = 0.05


@dataclass(slots=True, kw_only=True)
class HealerNode(Node):
    metadata: WatchedMetadata
    watch: Watch
    service: AutoRecovery | None = None

    @property
    def is_running(self) -> bool:
        return self.service is not None

    async def main(self, runtime: SimRuntime) -> None:
        store = self.metadata.connect()
        service = AutoRecovery(store, self.config, runtime, name=self.name)
        service.start()
        self.service = service
        failed = asyncio.ensure_future(service.wait_failed())
        stopped = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (failed, stopped):
                task.cancel()
            await asyncio.gather(failed, stopped, return_exceptions=True)
            self._count(service)
            self.service = None
            await service.aclose()
            await store.aclose()

    def on_gone(self) -> None:
        service, self.service = self.service, None
        if service is not None:
            self._count(service)

    def _count(self, service: AutoRecovery) -> None:
        counters = service.counters
        self.watch.counters["ledgers repaired"] += counters.ledgers_repaired
        self.watch.counters["copies made"] += counters.entries_copied
        self.watch.counters["ledgers found unrepairable"] += counters.unrepairable
        self.watch.counters["auto-recovery began again"] += service.restarts


def add_healers(cluster: Cluster) -> None:
    for number in range(cluster.options.healers):
        name = f"healer-{number}"
        config = cluster.options.healer_config()
        cluster.add_node(HealerNode(name, config, metadata=cluster.metadata, watch=cluster.watch))


# --- when everything is healed ----------------------------------------------------------------------------------------


async def wait_replicated(client: LedgerClient, cluster: Cluster, watch: Watch, store: MetadataStore) -> None:
    """Marks whatever lacks a copy, and waits until no mark is left."""
    paths, options = cluster.metadata.paths, cluster.options
    marks, notes = UnderreplicationMarks(store, paths), RecoveryNotes(store, RecoveryPaths(paths))
    config = options.healer_config().recovery
    roster = Roster(store, paths, timeout_s=options.auditor_config().metadata.operation_timeout_ms / 1000)
    try:
        await roster.start()
        await marks.prepare()
        rate = ByteRate(0)
        tools = RepairTools(client.context, config, roster, rate, rate)
        checks = LedgerChecks(tools, Marker(marks, notes, client.context.entropy.wall_ms))
        totals = await checks.check(client.list(), every_entry=True, rate=rate)
        watch.counters["ledgers marked by the last check"] += totals.marked
    finally:
        await roster.aclose()
    end = watch.now + SETTLE_LIMIT_S
    while left := [ledger_id async for ledger_id in marks.list()] or _named_away(cluster, watch):
        if watch.now >= end:
            said = [f"ledger {ledger_id}: {await notes.read(ledger_id)}" for ledger_id in left[:3]]
            watch.violated("V3", f"{len(left)} ledgers lack replicas in a healed world: {'; '.join(said)}")
            return
        await asyncio.sleep(_LOOK_S)
    watch.is_replicated = True


def _named_away(cluster: Cluster, watch: Watch) -> list[LedgerId]:
    """Returns the closed ledgers that name a bookie which stays away."""
    away = [watch.bookies[node.watch.bookie_id] for node in cluster.bookies.values() if node.bookie is None]
    names = [BookieId(bookie.bookie_id) for bookie in away]
    return [
        LedgerId(ledger_id)
        for ledger_id, known in watch.ledgers.items()
        if known.value.is_closed and not bookies_with_entries(known.value).isdisjoint(names)
    ]


# --- what it promises -------------------------------------------------------------------------------------------------


def swapped_fragments(change: LedgerChange) -> Iterator[tuple[Fragment, Fragment, int]]:
    """Yields the fragments in which a healer has replaced bookies: before, after, and the last entry."""
    if change.before is None or change.after is None or not is_healer(change.by):
        return
    before, after = change.before.value, change.after.value
    if before.state is not after.state or len(before.fragments) != len(after.fragments):
        return
    starts = [fragment.first_entry_id for fragment in after.fragments]
    ends = [start - 1 for start in starts[1:]] + [int(after.last_entry_id)]
    for old, new, end in zip(before.fragments, after.fragments, ends, strict=True):
        if old.ensemble != new.ensemble:
            yield old, new, end


def has(bookie: BookieWatch, ledger_id: int, entry_id: int) -> bool:
    return bookie.image.entry(ledger_id, entry_id) is not None or bookie.is_excused


class SwapIsBacked(Invariant):
    """R1: a fragment names a new bookie only when all entries of its position are durable there."""

    id = "R1"

    def on_ledger_change(self, change: LedgerChange) -> None:
        for old, new, end in swapped_fragments(change):
            self.watch.counters["fragments repaired"] += 1
            assert change.after is not None
            metadata = change.after.value
            for position, bookie in enumerate(new.ensemble):
                if bookie != old.ensemble[position]:
                    self._check(metadata, new, position, end)

    def _check(self, metadata: LedgerMetadata, fragment: Fragment, position: int, end: int) -> None:
        bookie = self.watch.bookies[fragment.ensemble[position]]
        for entry_id in range(fragment.first_entry_id, end + 1):
            held = is_held(metadata.ensemble_size, metadata.write_quorum, position, entry_id)
            if held and not has(bookie, metadata.ledger_id, entry_id):
                self.violated(f"ledger {metadata.ledger_id} names {bookie.name}, which lacks entry {entry_id}")
                return


class CopiesNeverDecrease(Invariant):
    """R2: after a swap, no entry has fewer durable copies on the bookies of its fragment than before."""

    id = "R2"

    def on_ledger_change(self, change: LedgerChange) -> None:
        for old, new, end in swapped_fragments(change):
            assert change.after is not None
            metadata = change.after.value
            if len(dict.fromkeys(new.ensemble)) != len(new.ensemble):
                self.violated(f"ledger {metadata.ledger_id}: {new.ensemble} has a bookie twice")
            for entry_id in range(new.first_entry_id, end + 1):
                was, now = (self._copies(metadata, entry_id, fragment) for fragment in (old, new))
                if now < was:
                    self.violated(f"entry {entry_id} of ledger {metadata.ledger_id} had {was} copies, and has {now}")
                    return

    def _copies(self, metadata: LedgerMetadata, entry_id: int, fragment: Fragment) -> int:
        positions = write_set(metadata.ensemble_size, metadata.write_quorum, entry_id)
        bookies = dict.fromkeys(fragment.ensemble[position] for position in positions)
        return sum(has(self.watch.bookies[bookie], metadata.ledger_id, entry_id) for bookie in bookies)


class OpenEndIsLeftAlone(Invariant):
    """R3: a healer changes the end of a ledger only by closing it, after a recovery has fenced it."""

    id = "R3"

    def on_ledger_change(self, change: LedgerChange) -> None:
        if change.before is None or change.after is None or not is_healer(change.by):
            return
        before, after = change.before.value, change.after.value
        if after.is_closed or before.is_closed:
            return
        if before.fragments[-1] != after.fragments[-1] or len(before.fragments) != len(after.fragments):
            self.violated(f"{change.by} changed the end of ledger {change.ledger_id}, which is {after.state.name}")


class ClearedIsReplicated(Invariant):
    """R4: a mark is cleared only when every copy of what may be repaired exists."""

    id = "R4"

    def on_mark_cleared(self, ledger_id: int, by: str) -> None:
        self.watch.counters["marks cleared"] += 1
        known = self.watch.ledgers.get(ledger_id)
        if known is None or not known.value.is_closed:
            return
        metadata = known.value
        for entry_id in range(metadata.last_entry_id + 1):
            for bookie in self.watch.write_set_of(metadata, entry_id):
                if not has(bookie, ledger_id, entry_id):
                    where = f"entry {entry_id} of ledger {ledger_id}"
                    self.violated(f"{by} cleared a mark, and {where} is not on {bookie.name}")
                    return


class ReplicationIsRestored(Invariant):
    """V3: once faults have stopped, no ledger stays marked, and every entry of a closed one is on its Qw bookies."""

    id = "V3"

    def at_end(self) -> None:
        if not self.watch.is_replicated:
            return
        for ledger_id, known in self.watch.ledgers.items():
            if known.value.is_closed:
                self._check(ledger_id, known.value)

    def _check(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
            for position in write_set(metadata.ensemble_size, metadata.write_quorum, entry_id):
                bookie = self.watch.bookies[ensemble[position]]
                if not has(bookie, ledger_id, entry_id):
                    self.violated(f"entry {entry_id} of ledger {ledger_id} is not on {bookie.name} in the end")
                    return


HEALING: Final[tuple[type[Invariant], ...]] = (
    SwapIsBacked,
    CopiesNeverDecrease,
    OpenEndIsLeftAlone,
    ClearedIsReplicated,
    ReplicationIsRestored,
)
