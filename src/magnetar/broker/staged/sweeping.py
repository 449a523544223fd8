"""The broker's share of staging's upkeep: a sweeper that runs at intervals, and publishes through any broker.

Read next: staging/sweeper.py, publishing.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from magnetar.broker.service import BrokerService
from magnetar.broker.staged.publishing import StagedPublishing
from magnetar.client.http.client import HttpClient
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.staging.publisher import HttpPublisher
from magnetar.staging.sink import Sink
from magnetar.staging.sweeper import SweepReport, sweep

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 30.0  # For one topic of one epoch: what cannot be published now is tried at the next sweep.
_MINUTE_MS: Final = 60_000


class BrokerPublisher:
    """Is a `Publisher` that serves this broker's own topics, and asks other brokers for theirs."""

    def __init__(self, service: BrokerService, staged: StagedPublishing) -> None:
        self._service = service
        self._staged = staged

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        name = TopicName.parse(topic)
        found = await self._service.look_up(name)
        if found.is_here:
            await self._staged.publish(name, owner, epoch)
        else:
            await self.publish_elsewhere(found.address.http_url, topic, owner, epoch)

    async def forget(self, topic: str, owner: str) -> None:
        name = TopicName.parse(topic)
        found = await self._service.look_up(name)
        if found.is_here:
            await self._staged.forget(name, owner)
        else:
            await self.forget_elsewhere(found.address.http_url, topic, owner)

    async def note_skip(self, owner: str, epoch: int) -> None:
        self._staged.note_skip(owner, epoch)

    async def publish_elsewhere(self, http_url: str, topic: str, owner: str, epoch: int) -> None:
        async with HttpClient(http_url, self._service.entropy.random) as http:
            await HttpPublisher(http, asked_max=1).publish(topic, owner, epoch)

    async def forget_elsewhere(self, http_url: str, topic: str, owner: str) -> None:
        async with HttpClient(http_url, self._service.entropy.random) as http:
            await HttpPublisher(http).forget(topic, owner)


class StagedSweeping:
    """Is begun by `start` and ended by `aclose`."""

    def __init__(
        self, service: BrokerService, store: MetadataStore, ledgers: LedgerClient, publisher: BrokerPublisher
    ) -> None:
        self._service = service
        self._store = store
        self._ledgers = ledgers
        self._sink = Sink(store, ledgers, publisher, patience_s=_PATIENCE_S)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="staged-sweeping")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        interval_s = self._service.config.upkeep.staging_sweep_s
        while True:
            # Brokers that started together do not sweep together.
            await asyncio.sleep(interval_s * (0.5 + self._service.entropy.random.random()))
            try:
                await self.sweep()
            except MagnetarError as error:
                log.warning("a sweep of staged data failed", extra={"why": str(error)})
            except Exception:  # Otherwise one bad node would end the sweeping for as long as the broker runs.
                log.exception("a sweep of staged data failed unexpectedly")

    async def sweep(self) -> SweepReport:
        """Sweeps now."""
        ttl_ms = self._service.config.upkeep.staging_ttl_minutes * _MINUTE_MS
        return await sweep(self._store, self._ledgers, self._service.entropy.wall_ms(), ttl_ms, sink=self._sink)
