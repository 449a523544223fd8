"""Deadlines of the requests of one channel: one timer for all of them, none per request.

Wheel:     time is cut into slots; what is due within one slot expires together, a little late and never early. A slot
           is a dict, so that what was answered leaves it at once: memory holds what is under way and nothing else.
Order:     within a slot, that of `add`.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final, Protocol

SLOT_S: Final = 0.02  # Far below any time-out that makes sense over a network; far above the cost of a timer.
_NOWHERE: Final = -1


class Expiring(Protocol):
    slot: int
    """For `Deadlines` only; begins as `NO_SLOT`."""

    def on_expired(self) -> None: ...


NO_SLOT: Final = _NOWHERE


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, dict[Expiring, None]] = {}
        self._order: list[int] = []  # Heap of the numbers of slots.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = _NOWHERE

    def add(self, item: Expiring, timeout_s: float) -> None:
        slot = int((self._loop.time() + timeout_s) / SLOT_S) + 1
        found = self._slots.get(slot)
        if found is None:
            found = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
            if self._timer is None or slot < self._timer_slot:
                self._set_timer(slot)
        found[item] = None
        item.slot = slot

    def discard(self, item: Expiring) -> None:
        """It was answered, or nobody waits for it any more."""
        slot = self._slots.get(item.slot)
        if slot is not None:
            slot.pop(item, None)
        item.slot = NO_SLOT

    def _set_timer(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot * SLOT_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._order and (self._order[0] * SLOT_S <= now or not self._slots[self._order[0]]):
            for item in self._slots.pop(heapq.heappop(self._order)):
                item.slot = NO_SLOT
                item.on_expired()
        if self._order and self._timer is None:
            self._set_timer(self._order[0])

    def clear(self) -> None:
        """Nothing expires any more."""
        self._slots.clear()
        self._order.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
