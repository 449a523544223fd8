"""The bookies of a cluster as one client knows them, and the channels to them.

There is one channel per bookie, shared by the whole process; a second one is made only for a second writer of a ledger.
A channel is made when it is needed, and closed when it was unused for `ledger.channel_idle_ms`. Callers that need a
channel while one is being made wait for the same attempt; a caller that leaves does not end it for the others.

A bookie that fails too often is set aside for new ensembles (quorum/candidates.py). If placement considers free disk
space, all writable bookies are asked for it at an interval.

Failure:   An attempt fails without a connection, and also if the bookie breaks it before it sent anything: some proxies
           accept connections for a bookie that does not run. A delay follows, which doubles with every failure in a row
           up to a limit; a random part is taken off, so that the clients of a bookie that comes back do not all come at
           once. During the delay `connect` fails at once with the last error. A bookie that registers again ends the
           delay.
Read next: registrations.py, channel.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final, Self

from magnetar.config.ledger import NEVER, LedgerConfig
from magnetar.config.root import Config
from magnetar.errors import BookieUnavailableError, LedgerError, MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel, Dial
from magnetar.ledger.channels.connection import Connection
from magnetar.ledger.channels.local_transport import Accept, connect_local
from magnetar.ledger.channels.registrations import Registrations
from magnetar.metadata.store import MetadataStore
from magnetar.quorum.candidates import Candidates, Quarantine
from magnetar.runtime.framed_connection import dial
from magnetar.runtime.runtime import Entropy
from magnetar.wire.bookkeeper.messages import GetBookieInfo, GetBookieInfoResponse

log = logging.getLogger(__name__)

_DOUBLINGS_MAX = 20


class BookieDialer:
    def __init__(self, bookie_id: BookieId, config: LedgerConfig, dial: Dial, random: Random) -> None:
        self.channels: list[Channel] = []
        self._bookie_id = bookie_id
        self._config = config
        self._dial = dial
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._attempt: asyncio.Task[Channel | None] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last_error = ""

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost if this object were dropped."""
        return not self.channels and self._attempt is None and self._loop.time() >= self._not_before

    async def connect(self) -> None:
        """Makes one more channel, or raises BookieUnavailableError.

        Any other error of an attempt is raised as it is to all callers that wait: it is not the bookie's fault. The
        delay before the next attempt applies anyway.
        """
        if self._attempt is None:
            wait_s = self._not_before - self._loop.time()
            if wait_s > 0:
                raise BookieUnavailableError(f"{self._last_error} (tried again in {round(wait_s * 1000)} ms)")
            self._attempt = self._loop.create_task(self._connect(), name=f"bookie-connect {self._bookie_id}")
        attempt = self._attempt
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise BookieUnavailableError(f"no connection to bookie {self._bookie_id}: this client was closed")
        made = attempt.result()
        if made is None or made.is_lost:
            raise BookieUnavailableError(self._last_error if made is None else str(made.error))

    async def _connect(self) -> Channel | None:
        """Makes one attempt; an error is kept for the callers that wait."""
        try:
            channel = await Channel.connect(self._bookie_id, self._config, self._dial)
        except MagnetarError as error:
            self._fail(error)
            return None
        except Exception as error:
            self._fail(BookieUnavailableError(f"no connection to bookie {self._bookie_id}: {error!r}"))
            raise
        finally:
            self._attempt = None
        if channel.error is not None:  # Lost in the same turn of the loop.
            self._fail(channel.error)
            return None
        channel.on_lost = self._on_lost
        self.channels.append(channel)
        return channel

    def _fail(self, error: MagnetarError) -> None:
        self._last_error = str(error)
        delay_ms = min(self._config.reconnect_backoff_ms << self._failures, self._config.reconnect_backoff_max_ms)
        self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
        self._not_before = self._loop.time() + delay_ms / 1000 * (1 - self._random.random() / 2)

    def forget_failures(self) -> None:
        self._failures = 0
        self._not_before = 0.0

    def _on_lost(self, channel: Channel, error: MagnetarError) -> None:
        self._last_error = str(error)
        self.channels.remove(channel)
        if channel.was_turned_away:
            self._fail(error)
        else:
            self._failures = 0  # The bookie did answer, so the next failure is the first in a row.
        log.info("a channel is lost: %s", error)

    async def close_idle(self, unused_since: float) -> None:
        for channel in list(self.channels):
            if channel.is_idle and channel.used_at <= unused_since:
                await channel.aclose()

    async def aclose(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
        for channel in list(self.channels):
            await channel.aclose()


CHANNELS_PER_BOOKIE_MAX: Final = 16  # Writers of one ledger in one process: the open one, its recovery, a few retries.
_POLLED_AT_ONCE: Final = 16


class Bookies:
    """Is used as `async with Bookies(...)`, or with `start` and `aclose`. Does not own the store."""

    def __init__(
        self, store: MetadataStore, config: Config, entropy: Entropy, *, local: Mapping[BookieId, Accept] | None = None
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
        self._dialers: dict[BookieId, BookieDialer] = {}
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
        """Closes all channels; their users get an error."""
        self._is_closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._registrations.aclose()
        ways, self._dialers = self._dialers, {}
        for dialer in ways.values():
            await dialer.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def channel(self, bookie_id: BookieId, *, ledger_id: int | None = None) -> Channel:
        """Returns a connected channel, or raises BookieUnavailableError within `ledger.connect_timeout_ms`.

        With a ledger's id, a writer of that ledger can attach to the channel, if it does so before it awaits anything.
        """
        while (channel := self.channel_nowait(bookie_id, ledger_id=ledger_id)) is None:
            if self._is_closed:
                raise BookieUnavailableError(f"no connection to bookie {bookie_id}: this client was closed")
            dialer = self._dialer_of(bookie_id)
            if len(dialer.channels) >= CHANNELS_PER_BOOKIE_MAX:  # The bound also ends this loop.
                raise BookieUnavailableError(
                    f"ledger {ledger_id} has too many writers in this process at bookie {bookie_id}"
                )
            await dialer.connect()
        return channel

    def channel_nowait(self, bookie_id: BookieId, *, ledger_id: int | None = None) -> Channel | None:
        """Returns a channel that is connected already, or None."""
        dialer = self._dialers.get(bookie_id)
        if dialer is None:
            return None
        for channel in dialer.channels:
            if not channel.is_lost and (ledger_id is None or channel.can_attach(ledger_id)):
                channel.used_at = self._loop.time()
                return channel
        return None

    def _dialer_of(self, bookie_id: BookieId) -> BookieDialer:
        dialer = self._dialers.get(bookie_id)
        if dialer is None:
            dialer = self._dialers[bookie_id] = BookieDialer(
                bookie_id, self._config, lambda make: self._dial(bookie_id, make), self._entropy.random
            )
        return dialer

    def candidates(self) -> Candidates:
        """Returns the candidates for a placement, as of now."""
        registrations = self._registrations
        return Candidates.of(
            registrations.writable,
            read_only=registrations.read_only,
            quarantined=self._quarantine.quarantined(self._loop.time()),
            free_bytes=self._free_bytes,
            topology=registrations.topology,
        )

    def report_failure(self, bookie_id: BookieId) -> None:
        """Records that a request to the bookie failed for a reason that counts against the bookie."""
        if self._quarantine.on_error(bookie_id, self._loop.time()):
            log.warning("bookie %s failed too often: no new ledgers for a while", bookie_id)

    def _on_arrival(self, bookie_id: BookieId) -> None:
        dialer = self._dialers.get(bookie_id)
        if dialer is not None:
            dialer.forget_failures()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self._loop.create_task(work, name=name))

    async def _close_idle_for_ever(self) -> None:
        idle_s = self._config.channel_idle_ms / 1000
        while True:
            await asyncio.sleep(idle_s / 2)
            unused_since = self._loop.time() - idle_s
            for bookie_id, dialer in list(self._dialers.items()):
                await dialer.close_idle(unused_since)
                if dialer.is_forgettable:
                    self._dialers.pop(bookie_id, None)

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
            log.info("the free disk space of bookie %s could not be read: %s", bookie_id, error)
            return
        if isinstance(answer, GetBookieInfoResponse) and answer.free_disk_bytes is not None:
            self._free_bytes[bookie_id] = answer.free_disk_bytes

    async def _dial(self, bookie_id: BookieId, make: Callable[[], Connection]) -> None:
        accept = self._local.get(bookie_id)
        if accept is not None:
            connect_local(accept, make)
            return
        endpoint = await self._registrations.endpoint_of(bookie_id)
        await dial(make, endpoint.host, endpoint.port)
