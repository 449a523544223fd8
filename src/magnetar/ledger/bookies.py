"""The bookies of a cluster, as one client knows them: who is there, and the channels to them.

Channels:  one per bookie, shared by everybody in the process; a second one only for a second writer of a ledger. They
           are made when somebody needs them, and closed when nobody has for `ledger.channel_idle_ms`.
Attempts:  whoever wants a channel while one is being made waits for that one. After a failure nobody tries again
           before a growing delay is over, except when the bookie registers anew: that it is back is news.
Standing:  a bookie that fails too often is set aside for new ensembles (`quorum/quarantine.py`).
Free disk: asked of all writable bookies now and then, if placement goes by it.
Read next: registrations.py, bookie_way.py, bookie_channel.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Self

from magnetar.config.ledger import NEVER
from magnetar.config.root import Config
from magnetar.errors import BookieUnavailableError, LedgerError
from magnetar.ids import BookieId
from magnetar.ledger.bookie_way import BookieWay
from magnetar.ledger.channel import Channel
from magnetar.ledger.connection import Connection
from magnetar.ledger.local_transport import Accept, connect_local
from magnetar.ledger.registrations import Registrations
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.quarantine import Quarantine
from magnetar.runtime.entropy import Entropy
from magnetar.wire.bookkeeper.messages import GetBookieInfo, GetBookieInfoResponse

log = logging.getLogger(__name__)

CHANNELS_PER_BOOKIE_MAX: Final = 16  # Writers of one ledger in one process: the open one, its recovery, a few retries.
_POLLED_AT_ONCE: Final = 16


class Bookies:
    """`async with Bookies(...)`, or `start` and `aclose`. Does not own the store."""

    def __init__(
        self,
        store: MetadataStore,
        config: Config,
        entropy: Entropy,
        *,
        local: Mapping[BookieId, Accept] | None = None,
    ) -> None:
        """`local`: bookies of this process, reached without a socket; may change later."""
        self._config = config.ledger
        self._placement = config.placement
        self._entropy = entropy
        self._local = {} if local is None else local
        self._loop = asyncio.get_running_loop()
        self._registrations = Registrations(store, config)
        self._registrations.on_arrival = self._on_arrival
        self._quarantine = Quarantine(
            errors=config.placement.quarantine_errors,
            interval_s=config.placement.quarantine_interval_s,
            quarantine_s=config.placement.quarantine_s,
        )
        self._ways: dict[BookieId, BookieWay] = {}
        self._free_bytes: dict[BookieId, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    async def start(self) -> None:
        """Returns when the registered bookies are known. MetadataUnavailableError if they cannot be read."""
        await self._registrations.start()
        if self._config.channel_idle_ms != NEVER:
            self._spawn(self._close_idle_for_ever(), "bookies-idle")
        if self._placement.disk_weight_enabled:
            self._spawn(self._poll_for_ever(), "bookies-free-disk")

    async def aclose(self) -> None:
        """Everybody who still uses a channel is told that it is lost."""
        self._is_closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._registrations.aclose()
        ways, self._ways = self._ways, {}
        for way in ways.values():
            await way.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    # --- channels -----------------------------------------------------------------------------------------------------

    async def channel(self, bookie_id: BookieId, *, ledger_id: int | None = None) -> Channel:
        """A connected one; BookieUnavailableError if there is none within `ledger.connect_timeout_ms`.

        With a ledger's id, one that a writer of the ledger can attach to, if it does so before it awaits anything.
        """
        while (channel := self.channel_nowait(bookie_id, ledger_id=ledger_id)) is None:
            if self._is_closed:
                raise BookieUnavailableError(f"no connection to bookie {bookie_id}: this client was closed")
            way = self._way_to(bookie_id)
            if len(way.channels) >= CHANNELS_PER_BOOKIE_MAX:  # So this is no endless loop either.
                raise BookieUnavailableError(
                    f"ledger {ledger_id} is written by too many at once through bookie {bookie_id}"
                )
            await way.connect()
        return channel

    def channel_nowait(self, bookie_id: BookieId, *, ledger_id: int | None = None) -> Channel | None:
        """One that is connected already, or None."""
        way = self._ways.get(bookie_id)
        if way is None:
            return None
        for channel in way.channels:
            if not channel.is_lost and (ledger_id is None or channel.can_attach(ledger_id)):
                channel.used_at = self._loop.time()
                return channel
        return None

    def _way_to(self, bookie_id: BookieId) -> BookieWay:
        way = self._ways.get(bookie_id)
        if way is None:
            way = self._ways[bookie_id] = BookieWay(
                bookie_id, self._config, lambda make: self._dial(bookie_id, make), self._entropy.random
            )
        return way

    # --- standing -----------------------------------------------------------------------------------------------------

    def candidates(self) -> Candidates:
        """For a placement, as of now."""
        registrations = self._registrations
        return Candidates.of(
            registrations.writable,
            read_only=registrations.read_only,
            quarantined=self._quarantine.quarantined(self._loop.time()),
            free_bytes=self._free_bytes,
            topology=registrations.topology,
        )

    def report_failure(self, bookie_id: BookieId) -> None:
        """A request to it failed in a way that speaks against the bookie."""
        if self._quarantine.on_error(bookie_id, self._loop.time()):
            log.warning("bookie %s failed too often: no new ledgers for a while", bookie_id)

    def report_success(self, bookie_id: BookieId) -> None:
        """It is known to be well again: nothing speaks against it any more."""
        self._quarantine.release(bookie_id)

    def _on_arrival(self, bookie_id: BookieId) -> None:
        way = self._ways.get(bookie_id)
        if way is not None:
            way.forget_failures()

    # --- in the background --------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self._loop.create_task(work, name=name))

    async def _close_idle_for_ever(self) -> None:
        idle_s = self._config.channel_idle_ms / 1000
        while True:
            await asyncio.sleep(idle_s / 2)
            unused_since = self._loop.time() - idle_s
            for bookie_id, way in list(self._ways.items()):
                await way.close_idle(unused_since)
                if way.is_forgettable:
                    self._ways.pop(bookie_id, None)

    async def _poll_for_ever(self) -> None:
        while True:
            writable = list(self._registrations.writable)
            self._free_bytes = {bookie: free for bookie, free in self._free_bytes.items() if bookie in writable}
            for at in range(0, len(writable), _POLLED_AT_ONCE):
                await asyncio.gather(*map(self._poll, writable[at : at + _POLLED_AT_ONCE]))
            await asyncio.sleep(self._config.bookie_info_interval_ms / 1000)

    async def _poll(self, bookie_id: BookieId) -> None:
        try:
            channel = await self.channel(bookie_id)
            answer = await channel.request(GetBookieInfo(), timeout_s=self._config.read_timeout_ms / 1000)
        except LedgerError as error:
            log.info("the free disk of bookie %s is not known anew: %s", bookie_id, error)
            return
        if isinstance(answer, GetBookieInfoResponse) and answer.free_disk_bytes is not None:
            self._free_bytes[bookie_id] = answer.free_disk_bytes

    async def _dial(self, bookie_id: BookieId, make: Callable[[], Connection]) -> None:
        accept = self._local.get(bookie_id)
        if accept is not None:
            connect_local(accept, make)
            return
        endpoint = await self._registrations.endpoint_of(bookie_id)
        await self._loop.create_connection(make, endpoint.host, endpoint.port)
