"""Delayed delivery of one subscription: the index, its timer, and the scan that finds again what the index had to drop.

An entry is due when its time has come, or one tick earlier unless times are strict, as in Pulsar.

Order:     when the index has room again, a scan reads the topic from the first dropped entry to the place where reading
           was when the scan began. Entries at or after the horizon go to a second index, which then becomes a part of
           the first. An entry that is read for the first time meanwhile goes to the one of the two that it belongs to.
Invariant: no entry has two places. An entry after the horizon that was due when it was read was delivered and never
           added, but the scan meets it: for each run the dispatcher is asked which of its entries have another place.
Limits:    when very many entries in a row had rising times, no later entry can be due earlier: reading stops until the
           first one is due. This is Pulsar's detection of fixed delays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.broker.dispatch.blockers import Blocker, BlockerKind
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.delayed_index import DelayedIndex, Triple
from magnetar.errors import MagnetarError
from magnetar.topic.entry_format.traits import traits_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.words import counted

_log = logging.getLogger(__name__)
_FIRES_PER_TICK: Final = 20  # At most: entries that are due one after another are delivered in groups.
_TIMER_S_MAX: Final = 600.0  # The wall clock may be set: look again from time to time.


class DelayedDelivery:
    def __init__(
        self,
        context: DispatchContext,
        on_due: Callable[[], None],
        placed: Callable[[set[Position]], set[Position]],
    ) -> None:
        """`placed` returns which of some positions are with a consumer or wait to be delivered again."""
        self._context = context
        self._config = context.config
        self._on_due = on_due
        self._placed = placed
        self._index = DelayedIndex(context.config.delayed_index_entries_max)
        self._found: DelayedIndex | None = None  # By the scan in progress.
        self._scan: asyncio.Task[None] | None = None
        self._scan_retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms: int | None = None
        self._highest_due_ms = 0
        self._is_rising = True

    # --- what is known ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Returns how many are in memory; `has_more` reports whether the topic has others."""
        return len(self._index) + (len(self._found) if self._found is not None else 0)

    @property
    def has_more(self) -> bool:
        return self._index.horizon is not None

    @property
    def is_scanning(self) -> bool:
        return self._scan is not None

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes + (self._found.memory_bytes if self._found is not None else 0)

    @property
    def next_due_ms(self) -> int | None:
        return self._index.next_due_ms

    @property
    def pauses_reading(self) -> bool:
        lookahead = self._config.delayed_lookahead_entries
        return 0 < lookahead <= len(self._index) and self._is_rising and not self.has_more and not self._is_any_due()

    def contains(self, position: Position) -> bool:
        return self._index.contains(position) or (self._found is not None and self._found.contains(position))

    def _cutoff_ms(self) -> int:
        now = self._context.entropy.wall_ms()
        return now if self._config.delayed_strict else now + self._context.limits.delayed_tick_ms

    def _is_any_due(self) -> bool:
        due_ms = self._index.next_due_ms
        return due_ms is not None and due_ms <= self._cutoff_ms()

    def blockers(self, next_read: Position) -> list[Blocker]:
        if not (len(self) or self.has_more):
            return []
        due_ms = self.next_due_ms
        more = ", and more that memory has no room for" if self.has_more else ""
        waiting = counted(len(self), "message")  # Clients send a message with a delivery time outside of batches.
        found = [
            Blocker(
                kind=BlockerKind.DELAYED,
                text=f"waiting for a delivery time: {waiting}{more}",
                entries=len(self),
                messages=len(self),
                until_ms=due_ms,
            )
        ]
        if self.is_scanning:
            text = "delayed messages that did not fit into memory are being found again"
            found.append(Blocker(kind=BlockerKind.DELAY_SCAN, text=text))
        if self.pauses_reading:
            lookahead = self._config.delayed_lookahead_entries
            found.append(
                Blocker(
                    kind=BlockerKind.DELAY_PAUSED,
                    text=f"{waiting} in a row with rising delivery times: reading waits for the first",
                    position=next_read,
                    until_ms=due_ms,
                    advice=f"raise dispatch.delayed_lookahead_entries ({lookahead}), or set it to 0, to read on",
                )
            )
        return found

    # --- entries come and go ------------------------------------------------------------------------------------------

    def delay(self, position: Position, deliver_at_ms: int) -> bool:
        """Returns whether the entry must wait; it is remembered then."""
        if not self._context.limits.delayed_delivery:
            return False
        if deliver_at_ms <= self._cutoff_ms():
            self._is_rising = False
            return False
        if deliver_at_ms < self._highest_due_ms - self._context.limits.delayed_tick_ms:
            self._is_rising = False
        self._highest_due_ms = max(self._highest_due_ms, deliver_at_ms)
        index = self._index
        if self._found is not None and index.horizon is not None and (deliver_at_ms, *position) >= index.horizon:
            self._found.add(deliver_at_ms, position)
        else:
            index.add(deliver_at_ms, position)
        self._set_timer()
        return True

    def saw_undelayed(self) -> None:
        """An entry without a delivery time was read: the ones after it must not wait for a delayed one."""
        self._is_rising = False

    def pop_due(self, entries_max: int) -> list[Position]:
        if not self._context.limits.delayed_delivery:  # Switched off meanwhile: no entry waits any longer.
            due = self._index.pop_due(2**63, entries_max)
        else:
            due = self._index.pop_due(self._cutoff_ms(), entries_max)
        if not len(self._index):
            self._highest_due_ms = 0
            self._is_rising = True
        self._set_timer()
        return due

    def clear(self) -> None:
        self._stop_scan()
        self._index.clear()
        self._highest_due_ms = 0
        self._is_rising = True
        self._set_timer()

    # --- timer --------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        due_ms = self._index.next_due_ms
        if due_ms == self._timer_due_ms and (self._timer is not None or due_ms is None):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due_ms = due_ms
        if due_ms is None:
            return
        wait_ms = due_ms - self._cutoff_ms()
        if wait_ms <= 0:  # Due already: the next turn takes it.
            return
        wait_s = min(max(wait_ms, self._context.limits.delayed_tick_ms // _FIRES_PER_TICK, 1) / 1_000, _TIMER_S_MAX)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._timer_due_ms = None
        self._on_due()
        self._set_timer()

    # --- finding again ------------------------------------------------------------------------------------------------

    def refill_if_low(self, up_to: Position) -> None:
        """Begins a scan when little is left in memory and more is known to be in the topic, before `up_to`."""
        is_low = len(self._index) <= self._config.delayed_index_entries_max // 4
        if self.has_more and is_low and self._scan is None and self._scan_retry is None:
            self._found = DelayedIndex(self._config.delayed_index_entries_max // 2)
            self._scan = asyncio.get_running_loop().create_task(self._run_scan(up_to))

    async def _run_scan(self, up_to: Position) -> None:
        horizon = self._index.horizon
        try:
            await self._find_again(up_to)
        except (MagnetarError, TimeoutError) as error:
            _log.warning("looking for delayed entries of %s failed: %s", self._context.subscription, error)
            self._found = None
            wait_s = self._config.read_retry_initial_ms / 1_000
            self._scan_retry = asyncio.get_running_loop().call_later(wait_s, self._retry)
        else:
            assert self._found is not None
            if self._index.horizon == horizon:  # Otherwise it overflowed: what was found has no place.
                self._index.absorb(self._found)
            self._found = None
            self._set_timer()
            self._on_due()
        finally:
            if self._scan is asyncio.current_task():
                self._scan = None

    def _retry(self) -> None:
        self._scan_retry = None
        self._on_due()

    async def _find_again(self, up_to: Position) -> None:
        horizon, position, found = self._index.horizon, self._index.beyond_first, self._found
        assert horizon is not None
        assert position is not None
        assert found is not None
        source, cursor, config = self._context.source, self._context.cursor, self._config
        while True:
            position = cursor.next_unacknowledged(position)
            if position >= up_to or position > source.last_confirmed:
                return
            async with asyncio.timeout(config.read_timeout_ms / 1_000):
                entries = await source.read(position, config.read_entries_max, config.read_bytes_max)
            if not entries:
                return
            self._add_found(found, entries, horizon, up_to)
            position = entries[-1].position.next
            await asyncio.sleep(0)

    def _add_found(self, found: DelayedIndex, entries: list[LogEntry], horizon: Triple, up_to: Position) -> None:
        """Adds those entries of the run that the index had to drop. No turn of the loop may pass between asking and
        adding."""
        is_acknowledged = self._context.cursor.is_acknowledged
        dropped: dict[Position, int] = {}
        for entry in entries:
            position = entry.position
            traits = traits_of(entry) if position < up_to else None
            if traits is None or (traits.deliver_at_ms, *position) < horizon or is_acknowledged(position):
                continue
            dropped[position] = traits.deliver_at_ms
        for position in self._placed(set(dropped)):
            del dropped[position]
        for position, deliver_at_ms in dropped.items():
            found.add(deliver_at_ms, position)

    def _stop_scan(self) -> None:
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        if self._scan_retry is not None:
            self._scan_retry.cancel()
            self._scan_retry = None
        self._found = None

    async def aclose(self) -> None:
        scan = self._scan
        self._stop_scan()
        if scan is not None:
            await asyncio.wait([scan])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
