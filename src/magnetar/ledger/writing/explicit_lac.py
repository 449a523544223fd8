"""Explicit LAC: an idle writer informs the bookies how far its ledger is acknowledged.

An entry carries the LAC known when it was sent, so readers learn of the last entry's own acknowledgement only with the
next entry. If none comes, a v3 request carries it to every bookie of the ensemble, after `explicit_lac_interval_ms`
without anything in flight. It is a hint: a bookie that does not answer is not replaced, and if fewer than Qa bookies of
the ensemble have it, it is sent again. That count is no acknowledgement, so the rule of quorum/sizes.py does not apply.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from magnetar.errors import MagnetarError
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.writing.engine import WriteEngine
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import WriteLac

log = logging.getLogger(__name__)


class ExplicitLac:
    def __init__(self, engine: WriteEngine[Any], interval_s: float) -> None:
        """An interval of 0 switches it off."""
        self._engine = engine
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._sent_lac = -1
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def on_confirmed(self) -> None:
        """Schedules a request, as the LAC has moved."""
        if self._interval_s and self._timer is None and self._task is None:
            self._timer = self._loop.call_later(self._interval_s, self._send_if_idle)

    @property
    def _is_needed(self) -> bool:
        return self._engine.error is None and self._engine.lac > max(self._engine.carried_lac, self._sent_lac)

    def _send_if_idle(self) -> None:
        self._timer = None
        if not self._is_needed:
            return
        if len(self._engine.pending):  # The next entries carry it, or the timer looks again.
            self.on_confirmed()
            return
        self._task = self._loop.create_task(self._send(), name=f"explicit-lac-{self._engine.ledger_id}")

    async def _send(self) -> None:
        engine = self._engine
        lac, keys = engine.lac, engine.keys
        body = keys.digest.seal_lac(engine.ledger_id, lac)
        request = WriteLac(engine.ledger_id, lac, keys.master_key, body)
        channels = [slot.channel for slot in engine.slots if slot.channel is not None]
        stored = await asyncio.gather(*[self._send_to(channel, request) for channel in channels])
        if sum(stored) >= engine.sizes.ack:
            self._sent_lac = lac
        self._task = None
        if self._is_needed:
            self.on_confirmed()

    async def _send_to(self, channel: Channel, request: WriteLac) -> bool:
        try:
            response = await channel.request(request, timeout_s=self._engine.config.add_timeout_ms / 1000)
        except MagnetarError as error:
            log.debug("an explicit LAC did not arrive", extra={"bookie_id": channel.bookie_id, "why": str(error)})
            return False
        return response.code is Code.EOK

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
