"""The metadata of a simulated world: the memory store shared by processes, with latency, faults, and a watch.

- shared: the server is one object, and calls watchers and session listeners directly. Here each of them runs as its own
  process instead, and a dead process hears nothing.
- crash: the server sees the connection break; the session ends when its timeout is over, as ZooKeeper's does.
- watched: each change is reported in the engine, at the moment it is made; its author hears of it later, or never. What
  a process asks for is reported when it asks.
- latency: a request takes a moment to arrive, and its answer and the watches take one to come back. `slow_s` makes it
  long.
- faults: each session's link loses requests or answers at `loss_rate`, and breaks with it; sessions are cut and expired
  by order (sim/ledgers/nemesis.py).

Read next: magnetar/metadata/local.py, sim/ledgers/watch.py (`on_operation`)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import EndSession, Fate, Job, Link, LocalServer, LocalStore, Outcome
from magnetar.metadata.memory import MemoryEngine, MemoryServer
from magnetar.metadata.store import (
    Children,
    Create,
    Delete,
    Get,
    Put,
    Request,
    Session,
    SessionListener,
    Transact,
    Write,
)
from magnetar.runtime.runtime import Entropy
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.process import PROCESS, Process, bound
from magnetar.sim.seeds import seeded


class ProcessSession(Session):
    def listen(self, listener: SessionListener) -> Callable[[], None]:
        return super().listen(bound(listener))


class ProcessStore(LocalStore):
    def __init__(self, server: LocalServer, config: MetadataConfig, link: Link | None, watch: Watch | None) -> None:
        super().__init__(server, config, link)
        self.session = ProcessSession(self.session.id, config.session_timeout_ms)
        self.process = PROCESS.get(None)
        self._watch = watch

    @property
    def node(self) -> str:
        """The name of its owner's node."""
        return self.process.name if self.process is not None else ""

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        if isinstance(request, Get | Children) and request.watch is not None:
            request = dataclasses.replace(request, watch=bound(request.watch))
        future = super()._submit(request)
        if self._watch is not None:
            self._watch.on_metadata_asked(request, self.node, future)
        return future


class SimMetadata(MemoryServer):
    """`connect` is called by the process that uses the store, `on_crash` by the world."""

    watch: Watch | None = None

    def connect(self, config: MetadataConfig | None = None, link: Link | None = None) -> ProcessStore:
        store = ProcessStore(self, config or self.config, link, self.watch)
        self.adopt(store)
        return store

    def on_crash(self, process: Process) -> None:
        for store in self.stores_of(process):
            self.cut(store)

    def stores_of(self, process: Process | None) -> list[ProcessStore]:
        return [
            store
            for store in self._stores.values()
            if isinstance(store, ProcessStore) and process is not None and store.process is process
        ]


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


class WatchedMetadata(SimMetadata):
    watch: Watch

    def __init__(self, entropy: Entropy, config: MetadataConfig, watch: Watch) -> None:
        super().__init__(entropy, config)
        self.watch = watch
        self.random: Random = seeded(f"{watch.world.seed}/metadata")
        self.loss_rate = 0.0
        self.slow_s = 0.0
        self.paths = BookKeeperPaths(config.ledgers_root)
        self.writes: Counter[str] = Counter()
        """Node → how many changes it has made; it may not have heard of the last one."""
        self._authors: dict[int, str] = {}
        self._engine = WatchedEngine(entropy, self)

    def latency_s(self) -> float:
        return self.random.uniform(0.000_05, 0.000_5) + self.random.random() * self.slow_s

    def connect(self, config: MetadataConfig | None = None, link: Link | None = None) -> ProcessStore:
        store = super().connect(config, link or FaultyLink(self))
        self._authors[store.session.id] = store.node
        return store

    def _renew(self, store: Any) -> None:
        self.watch.counters["sessions expired"] += 1
        super()._renew(store)
        self._authors[store.session.id] = store.node

    def renew(self, store: ProcessStore) -> int:
        """The store gets a new session; the nodes of the old one, which is returned, stay until it is ended."""
        old = store.session.id
        store.fail_waiting()
        self._renew(store)
        return old

    def end_later(self, session_id: int) -> None:
        asyncio.get_running_loop().create_task(self._ended(session_id), name=f"end session {session_id}")

    async def _ended(self, session_id: int) -> None:
        await self._end(session_id)

    def _end_lost(self, store: Any) -> None:
        self.watch.counters["sessions expired"] += 1
        super()._end_lost(store)

    def on_done(self, job: Job, outcome: Outcome) -> None:
        work, by = job.work, self._authors.get(job.session_id, "")
        self.watch.author_session = job.session_id
        if isinstance(work, Create | Put | Delete):
            self.writes[by] += 1
            self.watch.on_operation(work, outcome.result, by)
        elif isinstance(work, Transact):
            for operation, result in zip(work.operations, outcome.result, strict=True):
                if isinstance(operation, Create | Put | Delete):
                    self.watch.on_operation(operation, result, by)
        elif isinstance(work, EndSession):
            self.watch.on_session_ended(job.session_id, by)
