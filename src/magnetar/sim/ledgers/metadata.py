"""The metadata of one world: the memory store with latency, faults, and somebody who sees every change of a ledger.

Seen:      in the engine, at the moment a change is made; its author hears of it later, or never.
Latency:   a request takes a moment to arrive, and its answer and the watches take one to come back. `slow_s` makes it
           long.
Faults:    each session's link loses requests or answers at `loss_rate`, and breaks with it; sessions are cut and
           expired by order (nemesis.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from magnetar.config.metadata import MetadataConfig
from magnetar.errors import MalformedMetadataError
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.metadata.local import Fate, Job, Link, Outcome
from magnetar.metadata.memory import MemoryEngine
from magnetar.metadata.requests import Request, Write
from magnetar.metadata.store import Create, Delete, Put
from magnetar.runtime.entropy import Entropy
from magnetar.sim.ledgers.watch import LedgerChange, Watch
from magnetar.sim.process import PROCESS
from magnetar.sim.process_store import ProcessStore, SimMetadata
from magnetar.sim.seeds import seeded


class FaultyLink(Link):
    def __init__(self, metadata: WatchedMetadata) -> None:
        self._metadata = metadata

    def fate(self, request: Request) -> Fate:
        metadata = self._metadata
        if not metadata.loss_rate or metadata.random.random() >= metadata.loss_rate:
            return Fate.DELIVERED
        metadata.watch.struck("metadata request or answer lost")
        is_write = isinstance(request, Write)
        return Fate.ANSWER_LOST if is_write and metadata.random.random() < 0.6 else Fate.REQUEST_LOST


class WatchedEngine(MemoryEngine):
    def __init__(self, entropy: Entropy, metadata: WatchedMetadata) -> None:
        super().__init__(entropy)
        self._metadata = metadata

    async def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        await asyncio.sleep(self._metadata.latency_s())
        outcomes = await super().run(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.error is None:
                self._metadata.on_done(job, outcome)
        await asyncio.sleep(self._metadata.latency_s())
        return outcomes


class WatchedStore(ProcessStore):
    """Notes when its owner changes a ledger, from asking until the answer."""

    def __init__(self, server: WatchedMetadata, config: MetadataConfig, link: Link | None = None) -> None:
        super().__init__(server, config, link)
        self._watched = server

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        future = super()._submit(request)
        self._watched.watch.counters["metadata requests"] += 1
        ledger_id = self._watched.ledger_of(request)
        if ledger_id is not None and isinstance(request, Put):
            watch, by = self._watched.watch, self._watched.author_of(self.session.id)
            wanted = decode(ledger_id, request.value, node_created_ms=0)
            watch.tell("on_change_asked", ledger_id, by, wanted)
            future.add_done_callback(lambda _: watch.tell("on_change_answered", ledger_id, by, wanted))
        return future


class WatchedMetadata(SimMetadata):
    def __init__(self, entropy: Entropy, config: MetadataConfig, watch: Watch) -> None:
        super().__init__(entropy, config)
        self.watch = watch
        self.random: Random = seeded(f"{watch.world.seed}/metadata")
        self.loss_rate = 0.0
        self.slow_s = 0.0
        self.paths = BookKeeperPaths(config.ledgers_root)
        self._authors: dict[int, str] = {}
        self._engine = WatchedEngine(entropy, self)

    def latency_s(self) -> float:
        return self.random.uniform(0.000_05, 0.000_5) + self.random.random() * self.slow_s

    # --- sessions -----------------------------------------------------------------------------------------------------

    def connect(self, config: MetadataConfig | None = None, link: Link | None = None) -> ProcessStore:
        store = WatchedStore(self, config or self.config, link or FaultyLink(self))
        self.adopt(store)
        self._authors[store.session.id] = self._current_name()
        return store

    def _renew(self, store: Any) -> None:
        name = self._authors.get(store.session.id, "")
        self.watch.counters["sessions expired"] += 1
        super()._renew(store)
        self._authors[store.session.id] = name

    def _end_lost(self, store: Any) -> None:
        self.watch.counters["sessions expired"] += 1
        super()._end_lost(store)

    def author_of(self, session_id: int) -> str:
        return self._authors.get(session_id, "")

    def stores_of(self, name: str) -> list[ProcessStore]:
        """Of the process that runs on this node now."""
        process = self.watch.world.process(name)
        return [
            store
            for store in self._stores.values()
            if isinstance(store, ProcessStore) and process is not None and store.process is process
        ]

    def _current_name(self) -> str:
        process = PROCESS.get(None)
        return process.name if process is not None else ""

    # --- changes ------------------------------------------------------------------------------------------------------

    def ledger_of(self, request: object) -> LedgerId | None:
        if not isinstance(request, Create | Put | Delete):
            return None
        try:
            return self.paths.ledger_id_of(request.path)
        except MalformedMetadataError:
            return None

    def on_done(self, job: Job, outcome: Outcome) -> None:
        work = job.work
        ledger_id = self.ledger_of(work)
        if ledger_id is None:
            return
        watch = self.watch
        before = watch.ledgers.get(ledger_id)
        after = None
        if isinstance(work, Create | Put):
            version = outcome.result if isinstance(work, Put) else 0
            after = Versioned(decode(ledger_id, work.value, node_created_ms=0), version)
            watch.ledgers[ledger_id] = after
        elif before is not None:
            watch.gone[ledger_id] = before.value
            del watch.ledgers[ledger_id]
        change = LedgerChange(ledger_id, before, after, self.author_of(job.session_id))
        watch.note(_described(change))
        if after is not None and after.value.is_closed and ledger_id in watch.written_back:
            watch.counters["recoveries that wrote back"] += 1
        watch.look_at_disks()
        watch.tell("on_ledger_change", change)


def _described(change: LedgerChange) -> str:
    if change.after is None:
        return f"ledger {change.ledger_id} deleted by {change.by}"
    value = change.after.value
    fragments = " ".join(f"{f.first_entry_id}:{','.join(f.ensemble)}" for f in value.fragments)
    end = f" at {value.last_entry_id}" if value.is_closed else ""
    return f"ledger {change.ledger_id} v{change.after.version} {value.state.name}{end} by {change.by}: {fragments}"
