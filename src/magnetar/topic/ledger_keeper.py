"""LedgerKeeper: sees to it that a topic has a ledger to write to, until it ends.

Rolled:    a ledger that is full and not too young, or old, is followed by another; while no other can be made, by
           itself. A topic that nobody writes to is rolled when its owner asks (`roll_if_due`).
Failed:    a ledger that failed is replaced, and what it did not acknowledge is written again, in order. A few in a row
           that store nothing, or none to be had for `ledger_wait_ms`, and the log is over.
Over:      also when another owner is met, at a ledger or at the node. Everything that was not acknowledged fails then,
           and its outcome is unknown: the new owner may have found it.
Read next: switching.py, appender.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, Protocol

from magnetar.config.topic import TopicConfig
from magnetar.errors import LedgerFencedError, MagnetarError, TopicFencedError, TopicTerminatedError
from magnetar.ledger.writer import LedgerWriter
from magnetar.runtime.backoff import Backoff
from magnetar.topic.appender import Appender
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.log_parts import LogParts
from magnetar.topic.node import TopicNode, taken_over
from magnetar.topic.position import Position
from magnetar.topic.switching import LedgerSwitch, delete_ledgers, split_empty

log = logging.getLogger(__name__)

_CLOSE_WAIT_S: Final = 10.0  # For a switch of ledgers, or another change, that is under way when the log is closed.
_FAILED_LEDGERS_MAX: Final = 8  # In a row, none of which has stored anything.
_FAILED_PAUSE_S: Final = 0.1  # After the second in a row; doubled with every further one.


class KeeperEvents(Protocol):
    """The log around it."""

    def on_run(self, ledger: LedgerWriter, first_entry_id: int, entries: Sequence[LogEntry]) -> None: ...

    def on_room(self) -> None: ...

    def on_lost(self, entries: Sequence[LogEntry], error: MagnetarError) -> None:
        """These were not acknowledged and will not be."""

    def on_over(self, error: MagnetarError) -> None:
        """The last that is heard."""


class LedgerKeeper:
    def __init__(
        self, node: TopicNode, parts: LogParts, config: TopicConfig, next_index: int, events: KeeperEvents
    ) -> None:
        self.appender = Appender(config, parts.entropy, next_index, self)
        self.error: MagnetarError | None = None
        """Why the log is over."""
        self._node = node
        self._parts = parts
        self._config = config
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._switch = LedgerSwitch(node, self.appender, parts, config)
        self._working: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._failed_in_row = 0
        self._roll_not_before_s = 0.0
        self._is_closed = False

    async def begin(self) -> None:
        """The first ledger; none for a topic that is terminated."""
        if self._node.terminated is None:
            await self._switch.begin()
        else:
            self.appender.refuse(self._terminated())

    # --- what the appender says ---------------------------------------------------------------------------------------

    def on_run(self, ledger: LedgerWriter, first_entry_id: int, entries: Sequence[LogEntry]) -> None:
        self._failed_in_row = 0
        self._events.on_run(ledger, first_entry_id, entries)
        if self._is_due(ledger):
            self._begin_work(self._roll_full(ledger))

    def on_room(self) -> None:
        if self.error is None:
            self._events.on_room()

    def on_ledger_failed(self, ledger: LedgerWriter, error: MagnetarError) -> None:
        if isinstance(error, LedgerFencedError):
            self.fail(error)
        else:
            self._begin_work(self._replace(ledger, error))

    # --- rolling ------------------------------------------------------------------------------------------------------

    def _is_due(self, ledger: LedgerWriter) -> bool:
        config = self._config
        now = self._loop.time()
        is_full = ledger.last_confirmed + 1 >= config.ledger_entries_max or ledger.length >= config.ledger_bytes_max
        minutes = config.ledger_minutes_min if is_full else config.ledger_minutes_max
        is_old = now - self._switch.begun_s >= minutes * 60
        return is_old and now >= self._roll_not_before_s and ledger is self._switch.ledger

    async def roll(self) -> None:
        """Unless the ledger that is written has no entries yet."""
        self.check_open()
        ledger = self._switch.ledger
        if ledger is None or ledger.last_confirmed < 0:
            return
        await self._go_on_from(ledger)

    async def roll_if_due(self) -> bool:
        ledger = self._switch.ledger
        if self.error is not None or ledger is None or ledger.last_confirmed < 0 or not self._is_due(ledger):
            return False
        await self.roll()
        return True

    async def _go_on_from(self, ledger: LedgerWriter) -> None:
        """To another one. If it raises, the appender still writes this one, or the log is over."""
        await self._node.change(self._switch_from(ledger))

    async def _switch_from(self, ledger: LedgerWriter) -> None:
        with self._over_without_ledger():
            await self._switch.switch(ledger)

    @contextlib.contextmanager
    def _over_without_ledger(self) -> Iterator[None]:
        """Whatever leaves the topic without one, and a change that is given up is among it: nobody else would notice,
        and appends would wait for ever."""
        try:
            yield
        except BaseException as error:
            if not self.appender.is_writing:
                self.fail(error if isinstance(error, MagnetarError) else self._cannot_go_on(error))
            raise

    async def _roll_full(self, ledger: LedgerWriter) -> None:
        try:
            await self._go_on_from(ledger)
        except MagnetarError as error:
            if not self.appender.is_writing:
                return
            log.warning("a topic goes on with its old ledger", extra={"topic": self._node.name, "why": str(error)})
            self._roll_not_before_s = self._loop.time() + self._config.ledger_retry_ms / 1000

    async def _replace(self, ledger: LedgerWriter, why: MagnetarError) -> None:
        log.warning("a topic's ledger failed", extra={"topic": self._node.name, "why": str(why)})
        self._failed_in_row += 1
        if self._failed_in_row > 1:
            pause_s = _FAILED_PAUSE_S * 2 ** (self._failed_in_row - 2)
            await asyncio.sleep(Backoff(self._parts.entropy.random, first_s=pause_s).next_s())
        try:
            if self._failed_in_row > _FAILED_LEDGERS_MAX:
                raise why
            await self._go_on_from(ledger)
        except MagnetarError as error:
            self.fail(error)

    def _begin_work(self, work: Coroutine[Any, Any, None]) -> None:
        """One at a time: when the first is done, it is seen whether there is more to do."""
        if self._working is not None or self.error is not None or self._is_closed:
            work.close()
            return
        self._working = self._loop.create_task(work, name=f"topic-ledger {self._node.name}")
        self._working.add_done_callback(self._on_work_done)

    def _on_work_done(self, task: asyncio.Task[None]) -> None:
        self._working = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a topic's log met an unexpected error", extra={"topic": self._node.name}, exc_info=error)
            self.fail(self._cannot_go_on(error))
        ledger = self._switch.ledger
        if ledger is not None and ledger.failure is not None:
            self.on_ledger_failed(ledger, ledger.failure)

    # --- ending -------------------------------------------------------------------------------------------------------

    async def terminate(self) -> Position:
        """No more ledgers, for ever; returns the last entry."""
        self.check_open()
        return await self._node.change(self._terminate())

    async def _terminate(self) -> Position:
        if self._node.terminated is not None:
            return self._node.terminated
        self.appender.refuse(self._terminated())
        chain = self._node.chain
        with self._over_without_ledger():
            await self._switch.close_ledger()
            kept, empty = split_empty(chain.spans)
            if not kept:
                kept, empty = empty, []
            end = chain.last_confirmed
            await self._node.write(kept, terminated=end)
        chain.drop([span.ledger_id for span in empty])
        self._tell_lost(self._terminated())
        await delete_ledgers(self._parts.client, empty)
        return end

    def fail(self, error: MagnetarError) -> None:
        """The log is over."""
        if self.error is not None or self._is_closed:
            return
        self.error = taken_over(self._node.name) if isinstance(error, LedgerFencedError) else error
        self._switch.end()
        self.appender.refuse(self._not_served())
        self._ending = self._loop.create_task(self._end(self.error), name=f"topic-log-end {self._node.name}")

    async def _end(self, error: MagnetarError) -> None:
        await self._release()
        error.outcome_unknown = True
        self._tell_lost(error)
        self._events.on_over(error)

    async def aclose(self) -> None:
        """What is in flight is still acknowledged; what waits for a ledger fails; the ledger is closed.

        If it is cancelled, it ends at once, as `release` does with what is under way given up.
        """
        self.appender.refuse(self._not_served())
        try:
            await self._close_ledger()
        except asyncio.CancelledError:
            await self.release(wait_s=0.0)
            raise
        await self.release()

    async def _close_ledger(self) -> None:
        await self._wait_working(_CLOSE_WAIT_S)
        self._is_closed = True
        self._switch.end()
        ledger = self._switch.ledger
        if ledger is not None and self.error is None:
            self.appender.detach()
            try:
                await ledger.close()
            except MagnetarError as error:  # Whoever opens the topic next recovers it.
                log.warning("a topic's ledger was not closed", extra={"topic": self._node.name, "why": str(error)})

    async def release(self, wait_s: float = _CLOSE_WAIT_S) -> None:
        """Ends without closing anything. What is under way may take so long."""
        self._is_closed = True
        self._switch.end()
        self.appender.refuse(self._not_served())
        await self._wait_working(wait_s)
        if self._ending is not None:
            await asyncio.wait([self._ending])
        await self._release()
        error = self._not_served()
        error.outcome_unknown = True  # Of what was in flight, if the ledger could not be closed.
        self._tell_lost(error)

    async def _release(self) -> None:
        if self._switch.ledger is not None:
            await self._switch.ledger.release()

    async def _wait_working(self, wait_s: float) -> None:
        """For what is under way: work of ours, and changes that somebody else has asked for."""
        if self._working is not None:
            _, running = await asyncio.wait([self._working], timeout=wait_s)
            for task in running:
                task.cancel()
                await asyncio.wait([task])
        await self._node.settle(wait_s)

    def _tell_lost(self, error: MagnetarError) -> None:
        waiting = self.appender.take_waiting()
        if waiting:
            self._events.on_lost(waiting, error)

    def check_open(self) -> None:
        if self.error is not None or self._is_closed:
            raise self._not_served()

    def _not_served(self) -> TopicFencedError:
        why = f": {self.error}" if self.error is not None else ""
        return TopicFencedError(f"topic {self._node.name} is not served here any more{why}; look it up again")

    def _cannot_go_on(self, error: BaseException) -> TopicFencedError:
        return TopicFencedError(f"topic {self._node.name} cannot go on: {error!r}")

    def _terminated(self) -> TopicTerminatedError:
        return TopicTerminatedError(f"topic {self._node.name} is terminated: it takes no more messages")
