"""LedgerRoller: sees to it that a topic has an open ledger, until its log ends.

Purpose:   A ledger that is full and not too young, or old, is followed by another; while none can be made, it stays
           open. A topic that receives no messages is rolled when its owner asks (`roll_if_due`).
Order:     Make the new ledger while the old one still takes entries; let entries wait; close the old one after its
           last confirmed entry; write the topic's node; attach the new one, to which the waiting entries go first.
Invariant: No entry goes to a ledger before the node names it. So the next owner of the topic finds every ledger that
           has entries, and a broker that lost the topic fails at the node and never confirms an entry again.
Failure:   A ledger that failed is replaced, and what it did not confirm is written again, in order. While the old
           ledger is good, a new one that cannot be made is tried again later; when the old one has failed, for
           `ledger_wait_ms`. After that, or after a few ledgers in a row that stored nothing, the log is over. It also
           is when another owner is met, at a ledger or at the node. Everything that was not confirmed fails then, and
           its outcome is unknown: the new owner may have found it.
Limits:    A ledger without entries is left out of the node, and deleted.
Read next: log_writer.py, managed_ledger.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final

from magnetar.config.topic import TopicConfig
from magnetar.errors import LedgerFencedError, MagnetarError, NoSuchLedgerError, TopicFencedError, TopicTerminatedError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.runtime.backoff import Backoff
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log.log_writer import LogListener, LogWriter
from magnetar.topic.log.managed_ledger import LogContext, OwnedNode, taken_over
from magnetar.topic.position import Position

log = logging.getLogger(__name__)

_CLOSE_WAIT_S: Final = 10.0  # For the change of the node that is in progress when the log is closed.
_FAILED_LEDGERS_MAX: Final = 8  # In a row, none of which has stored anything.
_FAILED_PAUSE_S: Final = 0.1  # After the second in a row; doubled with every further one.


class LedgerRoller:
    def __init__(
        self, node: OwnedNode, writer: LogWriter, listener: LogListener, context: LogContext, config: TopicConfig
    ) -> None:
        self.error: MagnetarError | None = None
        """Why the log is over."""
        self.ledger: LedgerWriter | None = None
        """The open ledger; None before the first, and once the topic is terminated."""
        self.begun_s = 0.0
        """When it was attached, in the loop's time."""
        self._node = node
        self._writer = writer
        self._listener = listener
        self._context = context
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._working: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._failed_in_row = 0
        self._roll_not_before_s = 0.0
        self._is_over = False
        """No new ledger is attached any more, also if one is being made."""
        self._is_closed = False
        writer.on_stored = self._on_stored
        writer.on_ledger_failed = self._on_ledger_failed

    async def begin(self) -> None:
        """Makes an owner's first ledger; none for a topic that is terminated."""
        if self._node.terminated is None:
            await self._continue_with(await self._make())
        else:
            self._writer.refuse(self._terminated())

    # --- called by the log's writer -----------------------------------------------------------------------------------

    def _on_stored(self, ledger: LedgerWriter) -> None:
        self._failed_in_row = 0
        if self._is_due(ledger):
            self._begin_work(self._roll_full(ledger))

    def _on_ledger_failed(self, ledger: LedgerWriter, error: MagnetarError) -> None:
        if isinstance(error, LedgerFencedError):
            self.fail(error)
        else:
            self._begin_work(self._replace(ledger, error))

    def _is_due(self, ledger: LedgerWriter) -> bool:
        config = self._config
        now = self._loop.time()
        is_full = ledger.last_confirmed + 1 >= config.ledger_entries_max or ledger.length >= config.ledger_bytes_max
        minutes = config.ledger_minutes_min if is_full else config.ledger_minutes_max
        is_old = now - self.begun_s >= minutes * 60
        return is_old and now >= self._roll_not_before_s and ledger is self.ledger

    async def roll(self) -> None:
        """Begins a new ledger, unless the open one has no entries yet."""
        self.check_open()
        ledger = self.ledger
        if ledger is None or ledger.last_confirmed < 0:
            return
        await self._follow(ledger)

    async def roll_if_due(self) -> bool:
        """Rolls a topic without messages: its owner calls this at intervals."""
        ledger = self.ledger
        if self.error is not None or ledger is None or ledger.last_confirmed < 0 or not self._is_due(ledger):
            return False
        await self.roll()
        return True

    async def _follow(self, ledger: LedgerWriter) -> None:
        """Puts a new ledger in this one's place. If it raises, this one is still written, or the log is over."""
        await self._node.change(self._follow_within_change(ledger))

    async def _follow_within_change(self, ledger: LedgerWriter) -> None:
        with self._over_without_ledger():
            if self.ledger is not ledger or self._is_over:  # Another change was faster, or it is too late.
                return
            new = await self._make_patiently()
            try:
                await self._close_open()
            except BaseException:
                await self._discard(new)
                raise
            await self._continue_with(new)

    @contextlib.contextmanager
    def _over_without_ledger(self) -> Iterator[None]:
        """Ends the log if this leaves it without a ledger, also by being cancelled: nothing else would notice, and
        appends would wait forever."""
        try:
            yield
        except BaseException as error:
            if not self._writer.is_writing:
                self.fail(error if isinstance(error, MagnetarError) else self._cannot_continue(error))
            raise

    async def _roll_full(self, ledger: LedgerWriter) -> None:
        try:
            await self._follow(ledger)
        except MagnetarError as error:
            if not self._writer.is_writing:
                return
            log.warning("a topic continues with its old ledger", extra={"topic": self._node.name, "why": str(error)})
            self._roll_not_before_s = self._loop.time() + self._config.ledger_retry_ms / 1000

    async def _replace(self, ledger: LedgerWriter, why: MagnetarError) -> None:
        log.warning("a topic's ledger failed", extra={"topic": self._node.name, "why": str(why)})
        self._failed_in_row += 1
        if self._failed_in_row > 1:
            pause_s = _FAILED_PAUSE_S * 2 ** (self._failed_in_row - 2)
            await asyncio.sleep(Backoff(self._context.entropy.random, first_s=pause_s).next_s())
        try:
            if self._failed_in_row > _FAILED_LEDGERS_MAX:
                raise why
            await self._follow(ledger)
        except MagnetarError as error:
            self.fail(error)

    def _begin_work(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins this in the background, unless something is in progress: what is left to do is seen at its end."""
        if self._working is not None or self.error is not None or self._is_closed:
            work.close()
            return
        self._working = self._loop.create_task(work, name=f"topic-ledger {self._node.name}")
        self._working.add_done_callback(self._on_work_done)

    def _on_work_done(self, task: asyncio.Task[None]) -> None:
        self._working = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a topic's log met an unexpected error", extra={"topic": self._node.name}, exc_info=error)
            self.fail(self._cannot_continue(error))
        ledger = self.ledger
        if ledger is not None and ledger.failure is not None:
            self._on_ledger_failed(ledger, ledger.failure)

    async def _close_open(self) -> None:
        """Entries wait from now on; the chain ends where the ledger does."""
        ledger = self.ledger
        if ledger is None:
            return
        self._writer.detach()
        await ledger.close()
        self._node.chain.grow(ledger.last_confirmed + 1, ledger.length)
        self._node.chain.close_last(self._context.entropy.wall_ms())
        self.ledger = None

    async def _continue_with(self, ledger: LedgerWriter) -> None:
        """The node names this ledger after those that exist; from then on it is written."""
        chain = self._node.chain
        kept, empty = split_empty(chain.spans)
        try:
            await self._node.write([*kept, LedgerSpan(ledger.ledger_id)])
        except TopicFencedError:
            await self._discard(ledger)
            raise
        except BaseException:  # The node may name it: its next owner will find it empty.
            await ledger.release()
            raise
        if self._is_over:  # The next owner will find it empty.
            await ledger.release()
            return
        chain.begin(ledger.ledger_id)
        chain.drop(span.ledger_id for span in empty)
        self.ledger = ledger
        self.begun_s = self._loop.time()
        self._writer.attach(ledger)
        await delete_ledgers(self._context.client, empty)

    async def _make_patiently(self) -> LedgerWriter:
        """Makes a ledger. While the open one has failed, it is tried as often as time allows."""
        backoff = Backoff(self._context.entropy.random)
        deadline = self._loop.time() + self._config.ledger_wait_ms / 1000
        while True:
            try:
                return await self._make()
            except MagnetarError as error:
                is_good = self.ledger is not None and self.ledger.failure is None
                if is_good or not error.retryable or self._loop.time() >= deadline:
                    raise
                log.warning("a topic has no ledger to write to", extra={"topic": self._node.name, "why": str(error)})
            await asyncio.sleep(backoff.next_s())

    async def _make(self) -> LedgerWriter:
        config = self._config
        return await self._context.client.create(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            custom_metadata=ledger_description(self._node.name),
            listener=self._writer,
        )

    async def _discard(self, ledger: LedgerWriter) -> None:
        """Deletes a ledger that the node does not name: no later owner would."""
        await ledger.release()
        if not await self._node.may_name(ledger.ledger_id):
            await delete_ledgers(self._context.client, [LedgerSpan(ledger.ledger_id)])

    async def terminate(self) -> Position:
        """Ends the log for writing, forever; returns its last entry. Appends that wait for a ledger fail."""
        self.check_open()
        return await self._node.change(self._terminate())

    async def _terminate(self) -> Position:
        if self._node.terminated is not None:
            return self._node.terminated
        self._writer.refuse(self._terminated())
        chain = self._node.chain
        with self._over_without_ledger():
            await self._close_open()
            kept, empty = split_empty(chain.spans)
            if not kept:
                kept, empty = empty, []
            end = chain.last_confirmed
            await self._node.write(kept, terminated=end)
        chain.drop([span.ledger_id for span in empty])
        self._writer.fail_waiting(self._terminated())
        await delete_ledgers(self._context.client, empty)
        return end

    def fail(self, error: MagnetarError) -> None:
        """Ends the log with this error."""
        if self.error is not None or self._is_closed:
            return
        self.error = taken_over(self._node.name) if isinstance(error, LedgerFencedError) else error
        self._is_over = True
        self._writer.end(self._not_served())
        self._ending = self._loop.create_task(self._end(self.error), name=f"topic-log-end {self._node.name}")

    async def _end(self, error: MagnetarError) -> None:
        await self._release_ledger()
        error.outcome_unknown = True
        self._writer.fail_waiting(error)
        self._listener.on_fenced(error)

    async def aclose(self) -> None:
        """Ends the log: what is in flight is still confirmed, what waits for a ledger fails, and the ledger is closed.

        If it is cancelled, it ends at once, as `release` does when it cancels what is in progress.
        """
        self._writer.refuse(self._not_served())
        try:
            await self._close_ledger()
        except asyncio.CancelledError:
            await self.release(wait_s=0.0)
            raise
        await self.release()

    async def _close_ledger(self) -> None:
        await self._wait_working(_CLOSE_WAIT_S)
        self._is_closed = self._is_over = True
        ledger = self.ledger
        if ledger is not None and self.error is None:
            self._writer.detach()
            try:
                await ledger.close()
            except MagnetarError as error:  # The topic's next owner recovers it.
                log.warning("a topic's ledger was not closed", extra={"topic": self._node.name, "why": str(error)})

    async def release(self, wait_s: float = _CLOSE_WAIT_S) -> None:
        """Ends without closing the ledger. What is in progress may take this long, and is then cancelled."""
        self._is_closed = self._is_over = True
        self._writer.refuse(self._not_served())
        await self._wait_working(wait_s)
        if self._ending is not None:
            await asyncio.wait([self._ending])
        await self._release_ledger()
        error = self._not_served()
        error.outcome_unknown = True  # The entries in flight, if the ledger could not be closed.
        self._writer.fail_waiting(error)

    async def _release_ledger(self) -> None:
        if self.ledger is not None:
            await self.ledger.release()

    async def _wait_working(self, wait_s: float) -> None:
        """Waits for work in progress, and for changes that other callers have asked for."""
        if self._working is not None:
            _, running = await asyncio.wait([self._working], timeout=wait_s)
            for task in running:
                task.cancel()
                await asyncio.wait([task])
        await self._node.settle(wait_s)

    def check_open(self) -> None:
        if self.error is not None or self._is_closed:
            raise self._not_served()

    def _not_served(self) -> TopicFencedError:
        why = f": {self.error}" if self.error is not None else ""
        return TopicFencedError(f"topic {self._node.name} is not served here any more{why}; look it up again")

    def _cannot_continue(self, error: BaseException) -> TopicFencedError:
        return TopicFencedError(f"topic {self._node.name} cannot go on: {error!r}")

    def _terminated(self) -> TopicTerminatedError:
        return TopicTerminatedError(f"topic {self._node.name} is terminated: it takes no more messages")


def ledger_description(topic: str) -> dict[str, bytes]:
    """Returns what Pulsar writes into the metadata of a topic's ledgers."""
    return {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": topic.encode()}


def split_empty(spans: Iterable[LedgerSpan]) -> tuple[list[LedgerSpan], list[LedgerSpan]]:
    """Divides closed ledgers into those with entries and those without."""
    kept: list[LedgerSpan] = []
    empty: list[LedgerSpan] = []
    for span in spans:
        (kept if span.entries else empty).append(span)
    return kept, empty


async def delete_ledgers(client: LedgerClient, spans: Iterable[LedgerSpan]) -> None:
    """Deletes ledgers that no node names any more. What cannot be deleted now is logged and left."""
    for span in spans:
        try:
            await client.delete(span.ledger_id)
        except NoSuchLedgerError:
            continue
        except MagnetarError as error:
            log.warning("a ledger was not deleted", extra={"ledger_id": span.ledger_id, "why": str(error)})
