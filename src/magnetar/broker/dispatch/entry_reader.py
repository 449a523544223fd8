"""Reading for one subscription: at once from the tail cache, otherwise one read at a time in the background.

A dispatcher that needs entries calls `get(first)`. It either has them at once, or is called back when asking again may
help. A result for another place than the one that is asked for is dropped, so a seek or a rewind needs no care here.

Invariant: what is kept for the next `get` is a run of the log without gaps, so an answer has every entry between its
           first and its last. A dispatcher that wants only some of them chooses after `get`, never before `give_back`.
Failure:   a read that failed is repeated, after a pause that grows, and one entry at a time until reading works again,
           so that the entry that cannot be read is found. `trouble` describes it for people; `lost` is an entry that is
           certainly lost.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.broker.dispatch.context import EntrySource
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import MagnetarError, RequestTimeoutError
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S: Final = 0.1  # After a read that brought nothing.
_LOOK_CLOSER_MS: Final = 100  # Before the entries of a run that failed are read one by one.


@dataclass(frozen=True, slots=True)
class ReadTrouble:
    """A read that failed and will be tried again at `retry_at` of the loop's clock."""

    position: Position
    error: MagnetarError
    attempts: int
    retry_at: float


class EntryReader:
    """At most one read is in progress, and one result waits."""

    def __init__(self, source: EntrySource, config: DispatchConfig, on_ready: Callable[[], None]) -> None:
        self._source = source
        self._config = config
        self._on_ready = on_ready
        self._task: asyncio.Task[None] | None = None
        self._asked: Position | None = None
        self._fetched: list[LogEntry] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._careful = 0  # This many entries are read one by one, after a longer read failed.
        self.trouble: ReadTrouble | None = None
        self.lost: tuple[Position, MagnetarError] | None = None
        """An entry that no read will ever return. The dispatcher skips it and calls `forget_lost`."""

    @property
    def reads_at(self) -> Position | None:
        """Where the read in progress begins."""
        return self._asked if self._task is not None else None

    def get(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        """Returns at least one entry, from the first one at or after `first` on. None: not now, `on_ready` follows; or
        no such entry exists yet."""
        if self._fetched is not None:
            entries = self._take_fetched(first, entries_max)
            if entries:
                return entries
        if self._task is not None or self._timer is not None or self._is_closed:
            return None
        found = self._source.read_nowait(first, entries_max, bytes_max)
        if found is not None:
            return found or None
        if self._careful:
            entries_max = 1
        self._asked = first
        self._task = asyncio.get_running_loop().create_task(self._read(first, entries_max, bytes_max))
        return None

    def _take_fetched(self, first: Position, entries_max: int) -> list[LogEntry] | None:
        fetched, self._fetched = self._fetched, None
        assert fetched is not None
        start = 0 if first == self._asked else bisect_left(fetched, first, key=_position)
        if start >= len(fetched) or (first != self._asked and fetched[start].position != first):
            return None  # The result lies after it, or before: to hand it out would skip entries.
        if len(fetched) - start > entries_max:
            self._fetched = fetched[start + entries_max :]
            self._asked = self._fetched[0].position
        return fetched[start : start + entries_max]

    def give_back(self, entries: list[LogEntry], first: Position) -> None:
        """`entries` are those of the last `get`, all of them; from `first` on they could not be handed out. The next
        `get` has these without reading, if it asks for one of them. They are cut here, so that no caller can leave a
        gap: an entry that was not wanted now may be wanted then."""
        kept = entries[bisect_left(entries, first, key=_position) :]
        if kept and self._fetched is None and self._task is None:
            self._fetched = kept
            self._asked = kept[0].position

    def forget_lost(self) -> None:
        self.lost = None
        self._stop_waiting()
        self.trouble = None

    def retry_now(self) -> None:
        """Ends a pause: reading may work again, or another place is asked for."""
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _read(self, first: Position, entries_max: int, bytes_max: int) -> None:
        try:
            async with asyncio.timeout(self._config.read_timeout_ms / 1_000):
                self._fetched = await self._source.read(first, entries_max, bytes_max)
        except TimeoutError:
            self._failed(first, RequestTimeoutError(f"no answer within {self._config.read_timeout_ms} ms"), entries_max)
        except MagnetarError as error:
            self._failed(first, error, entries_max)
        else:
            self.trouble = None
            self._careful = max(0, self._careful - 1)
            if not self._fetched and not self._is_closed:  # Nothing to read yet; entries may have come meanwhile.
                self._timer = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._on_timer)
        finally:
            self._task = None
        if not self._is_closed and self._timer is None and (self._fetched or self.lost):
            self._on_ready()

    def _failed(self, first: Position, error: MagnetarError, entries_max: int) -> None:
        before = self.trouble
        attempts = before.attempts + 1 if before is not None and before.position == first else 1
        if entries_max == 1 and not error.retryable and self._config.skip_unreadable:
            self.lost = (first, error)
            return
        if entries_max == 1:
            self._careful = max(1, self._careful)
        config = self._config
        wait_ms = min(config.read_retry_initial_ms * 2 ** min(attempts - 1, 20), config.read_retry_max_ms)
        if entries_max > 1:
            self._careful = entries_max
            wait_ms = min(wait_ms, _LOOK_CLOSER_MS)
        loop = asyncio.get_running_loop()
        self.trouble = ReadTrouble(first, error, attempts, loop.time() + wait_ms / 1_000)
        if attempts in (1, 2) or attempts % 10 == 0:
            _log.warning("reading at %s failed (attempt %d), trying again: %s", first, attempts, error)
        if not self._is_closed:
            self._timer = loop.call_later(wait_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._on_ready()

    async def aclose(self) -> None:
        self._is_closed = True
        self._fetched = None
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _position(entry: LogEntry) -> Position:
    return entry.position
