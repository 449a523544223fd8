"""AutoRecovery: the election with the auditor, and the replication worker, as one part of a process.

    recovery = AutoRecovery(store, config, runtime, metrics, name="bookie-1", local={bookie_id: bookie.accept})
    recovery.start()
    ...
    await recovery.aclose()

Failure:   a part that ends is noticed, and everything begins again after a pause: nothing is in memory that is not in
           the metadata. If parts end again and again, the service ends (`wait_failed`): a bookie continues without it,
           and a process that does nothing else ends.
Read next: election.py, auditor.py, worker.py; docs/autorecovery.md
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from magnetar.autorecovery.auditor import Auditor
from magnetar.autorecovery.election import Election
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair import RepairTools
from magnetar.autorecovery.roster import Roster
from magnetar.autorecovery.worker import ReplicationWorker, WorkerCounters
from magnetar.config.root import Config
from magnetar.errors import MagnetarError, StoreClosedError
from magnetar.ids import BookieId
from magnetar.ledger.channels.local_transport import Accept
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import RecoveryPaths
from magnetar.metadata.store import MetadataStore, SessionState
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import run_together
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.uncancelled import end_task

log = logging.getLogger(__name__)

_RESTARTS_MAX: Final = 10
_RESTARTS_PERIOD_S: Final = 600.0
_PAUSE_FIRST_S: Final = 0.5
_PAUSE_LONGEST_S: Final = 30.0


class AutoRecovery:
    """Begun by `start`, ended by `aclose`. Does not own the store."""

    def __init__(
        self,
        store: MetadataStore,
        config: Config,
        runtime: Runtime,
        *,
        name: str,
        metrics: Metrics | None = None,
        local: Mapping[BookieId, Accept] | None = None,
        on_roster: Callable[[Roster], None] = lambda _: None,
    ) -> None:
        """`name`: what operators see as the auditor or as a ledger's worker. `local`: bookies of this process.
        `on_roster`: called at each change of the bookies, with the roster."""
        self._store = store
        self._config = config
        self._runtime = runtime
        self._name = name
        self._local = local
        self._on_roster = on_roster
        self._paths = BookKeeperPaths(config.metadata.ledgers_root)
        self._task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[MagnetarError] = asyncio.get_running_loop().create_future()
        self._election: Election | None = None
        self._auditor: Auditor | None = None
        self._worker: ReplicationWorker | None = None
        self._earlier = WorkerCounters()
        self.restarts = 0
        if metrics is not None:
            self._observe(metrics)

    @property
    def is_auditor(self) -> bool:
        return self._election is not None and self._election.is_elected

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def auditor(self) -> Auditor | None:
        """The auditor of this process, while it is elected."""
        return self._auditor if self.is_auditor else None

    @property
    def counters(self) -> WorkerCounters:
        """The work of this process since it was started."""
        if self._worker is None:
            return self._earlier
        names = WorkerCounters.__slots__
        return WorkerCounters(*(getattr(self._earlier, n) + getattr(self._worker.counters, n) for n in names))

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="auto-recovery")

    async def wait_failed(self) -> MagnetarError:
        """Returns when the service has ended by itself, with the reason."""
        return await asyncio.shield(self._failed)

    async def aclose(self) -> None:
        await end_task(self._task)

    async def _run(self) -> None:
        """The death watcher: begins again when a part has ended."""
        loop = asyncio.get_running_loop()
        deaths: deque[float] = deque(maxlen=_RESTARTS_MAX)
        backoff = Backoff(self._runtime.entropy.random, _PAUSE_FIRST_S, _PAUSE_LONGEST_S)
        while await self._store.session.wait_usable_or_closed() is not SessionState.CLOSED:
            try:
                await self._run_parts()
                error: Exception = MagnetarError("a part of auto-recovery has ended")
            except StoreClosedError as closed:
                self._fail(closed)
                return
            except Exception as raised:
                error = raised
            finally:
                self._take_counters()
            deaths.append(loop.time())
            if len(deaths) == _RESTARTS_MAX and deaths[-1] - deaths[0] < _RESTARTS_PERIOD_S:
                self._fail(MagnetarError(f"auto-recovery failed {_RESTARTS_MAX} times, and ends: {error}"))
                return
            log.error("auto-recovery begins again, because a part of it failed", exc_info=error)
            self.restarts += 1
            await asyncio.sleep(backoff.next_s())
        self._fail(StoreClosedError("the metadata store was closed"))

    def _fail(self, error: MagnetarError) -> None:
        if not isinstance(error, StoreClosedError):
            log.error("auto-recovery has ended: %s", error)
        if not self._failed.done():
            self._failed.set_result(error)

    async def _run_parts(self) -> None:
        config = self._config.recovery
        timeout_s = self._config.metadata.operation_timeout_ms / 1000
        roster = Roster(self._store, self._paths, timeout_s=timeout_s)
        roster.listen(lambda: self._on_roster(roster))
        async with LedgerClient(self._store, self._config, self._runtime, local=self._local) as client:
            try:
                await roster.start()
                rate = ByteRate(config.copy_bytes_per_s)
                tools = RepairTools(client.context, config, roster, rate, ByteRate(config.copy_bytes_per_s))
                worker = self._worker = ReplicationWorker(self._store, self._paths, tools, self._name)
                nodes = RecoveryPaths(self._paths)

                async def audit() -> None:
                    self._auditor = Auditor(self._store, self._paths, tools, self._name)
                    await self._auditor.run()

                random = self._runtime.entropy.random
                election = self._election = Election(self._store, nodes, self._name, random, audit)

                async def fail_with_roster() -> None:
                    raise await roster.wait_failed()

                await run_together(
                    [
                        ("replication-worker", worker.run),
                        ("auditor-election", election.run),
                        ("recovery-roster", fail_with_roster),
                    ]
                )
            finally:
                await roster.aclose()

    def _count(self, name: str) -> float:
        return float(getattr(self.counters, name))

    def _take_counters(self) -> None:
        self._earlier = self.counters
        self._worker = self._election = self._auditor = None

    def _observe(self, metrics: Metrics) -> None:
        for name, doc in (
            ("ledgers_repaired", "Ledgers whose replicas were restored, and whose marks were cleared."),
            ("ledgers_closed", "Open ledgers that were closed because a bookie of their end was lost."),
            ("repairs_postponed", "Repairs that could not be finished and are tried again."),
            ("unrepairable", "Ledgers found to have entries that no bookie has."),
            ("entries_copied", "Entries copied to another bookie."),
            ("bytes_copied", "Bytes of entries copied to another bookie."),
        ):
            metrics.counter_callback(f"magnetar_recovery_{name}_total", doc, partial(self._count, name))
        metrics.counter_callback(
            "magnetar_recovery_marked_ledgers_total",
            "Ledgers that this process marked as the auditor.",
            lambda: float(0 if self._auditor is None else self._auditor.marker.marked),
        )
        metrics.gauge_callback(
            "magnetar_recovery_auditor", "1 in the process that is the auditor.", lambda: float(self.is_auditor)
        )
        metrics.gauge_callback(
            "magnetar_recovery_running", "1 while auto-recovery runs in this process.", lambda: float(self.is_running)
        )
        metrics.gauge_callback(
            "magnetar_recovery_holding",
            "1 while the auditor marks nothing because too many bookies are away at once.",
            lambda: float(self.auditor is not None and bool(self.auditor.holding)),
        )
