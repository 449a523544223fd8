"""The way to one bookie: its channels, the attempt to make another, and the delay before the next attempt.

Shared:    who comes while an attempt is under way waits for it; who leaves does not end it for the others.
Failure:   no connection, or one that the bookie broke before it said anything: some proxies accept for a bookie that is
           not there.
Delay:     doubled with every failure in a row up to a limit, a random part of it taken off so that clients of a bookie
           that comes back do not come all at once. While it lasts, `connect` fails at once with what failed last.
Read next: bookies.py
"""

from __future__ import annotations

import asyncio
import logging
from random import Random

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import BookieUnavailableError, MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.bookie_channel import BookieChannel, Dial

log = logging.getLogger(__name__)

_DOUBLINGS_MAX = 20


class BookieWay:
    def __init__(self, bookie_id: BookieId, config: LedgerConfig, dial: Dial, random: Random) -> None:
        self.channels: list[BookieChannel] = []
        self._bookie_id = bookie_id
        self._config = config
        self._dial = dial
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._attempt: asyncio.Task[BookieChannel | None] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last_error = ""

    @property
    def is_forgettable(self) -> bool:
        """Nothing is known that would be lost."""
        return not self.channels and self._attempt is None and self._loop.time() >= self._not_before

    async def connect(self) -> None:
        """Returns when there is one channel more; BookieUnavailableError when there is not.

        Anything else that an attempt fails with is raised as it is, to everybody who waits for it: it is no bookie's
        fault. The delay before the next attempt holds all the same.
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

    async def _connect(self) -> BookieChannel | None:
        """What went wrong is kept for those who wait."""
        try:
            channel = await BookieChannel.connect(self._bookie_id, self._config, self._dial)
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

    def _on_lost(self, channel: BookieChannel, error: MagnetarError) -> None:
        self._last_error = str(error)
        self.channels.remove(channel)
        if channel.was_turned_away:
            self._fail(error)
        else:
            self._failures = 0  # It was there, so the next one to fail is the first.
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
