"""Explicit LAC: an idle writer tells the bookies how far its ledger is acknowledged.

Why:       an entry carries the LAC known when it was sent, so the last entry's own acknowledgement reaches readers only
           with the next entry. If none comes, this says it.
How:       a v3 request to every bookie of the ensemble, after `explicit_lac_interval_ms` without anything in flight. It
           is a hint: who does not answer is not replaced, and if fewer than Qa have it, it is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from magnetar.errors import MagnetarError
from magnetar.ledger.channel import Channel
from magnetar.ledger.write_engine import WriteEngine
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import WriteLac

log = logging.getLogger(__name__)


class ExplicitLac:
    def __init__(self, engine: WriteEngine[Any], interval_s: float) -> None:
        """An interval of 0 means never."""
        self._engine = engine
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._told = -1
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def on_confirmed(self) -> None:
        """The LAC has moved."""
        if self._interval_s and self._timer is None and self._task is None:
            self._timer = self._loop.call_later(self._interval_s, self._look)

    @property
    def _is_needed(self) -> bool:
        return self._engine.error is None and self._engine.lac > max(self._engine.carried_lac, self._told)

    def _look(self) -> None:
        self._timer = None
        if not self._is_needed:
            return
        if len(self._engine.pending):  # The next entries carry it, or it is looked at again.
            self.on_confirmed()
            return
        self._task = self._loop.create_task(self._tell(), name=f"explicit-lac-{self._engine.ledger_id}")

    async def _tell(self) -> None:
        engine = self._engine
        lac, keys = engine.lac, engine.keys
        body = keys.digest.seal_lac(engine.ledger_id, lac)
        request = WriteLac(engine.ledger_id, lac, keys.master_key, body)
        channels = [seat.channel for seat in engine.seats if seat.channel is not None]
        heard = await asyncio.gather(*[self._tell_one(channel, request) for channel in channels])
        if sum(heard) >= engine.sizes.ack:
            self._told = lac
        self._task = None
        if self._is_needed:
            self.on_confirmed()

    async def _tell_one(self, channel: Channel, request: WriteLac) -> bool:
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
