"""LedgerWriter: appends entries to a ledger.

    async with await client.create() as writer:
        entry_id = await writer.add(b"…")

Adds are awaited (`add`, `enqueue`), or submitted with a listener that is called once per run (`submit`), for callers
with many of them. `close` waits for what is in progress, then closes the ledger after the last acknowledged
entry. A writer that failed may be closed; one that was fenced may not: its ledger belongs to another client.

Invariant: An add that returned is on Qa bookies, durably, and so are all entries before it. Adds are answered in order.
Failure:   An add that raises with `outcome_unknown` may or may not be in the ledger: its recovery decides. Fenced means
           that another client took the ledger over.
Limits:    `adds_in_flight_max`, `add_bytes_in_flight_max`; beyond them, and while a bookie does not read, `add` waits
           in line. `submit` does not wait: ask `has_room` first.
Read next: engine.py, ledger/metadata.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from magnetar.errors import LedgerClosedError, LedgerError, LedgerFencedError, MagnetarError, WriterFailedError
from magnetar.ids import LedgerId
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import CommittedChange, LedgerKeys, close_ledger
from magnetar.ledger.writing.deferred import DeferredWriteEngine
from magnetar.ledger.writing.engine import EngineListener, EngineStatistics, WriteEngine
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.messages import WriteLac

log = logging.getLogger(__name__)


class ExplicitLac:
    """Informs the bookies how far the ledger of an idle writer is acknowledged.

    An entry carries the LAC known when it was sent, so readers learn of the last entry's own acknowledgement only with
    the next entry. If none comes, a v3 request carries it to every bookie of the ensemble, after
    `explicit_lac_interval_ms` without anything in flight. It is a hint: a bookie that does not answer is not replaced,
    and if fewer than Qa bookies of the ensemble have it, it is sent again. That count is no acknowledgement, so the
    rule of quorum/sizes.py does not apply.
    """

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


class WriterListener(EngineListener[Any], Protocol):
    """Listens to `submit`. It is called on the loop, and never from inside `submit`.

    A listener that raises ends its writer, and only that: the connections that call it belong to others, too.
    `on_failed` is not called when a writer is closed with nothing in flight.
    """


class LedgerWriter:
    """Is made by `open`; ended by `close`, or by `release` without closing the ledger."""

    def __init__(
        self,
        versioned: Versioned[LedgerMetadata],
        keys: LedgerKeys,
        context: LedgerContext,
        *,
        listener: WriterListener | None = None,
        deferred_sync: bool = False,
    ) -> None:
        """Is called by `open` only."""
        self.ledger_id: LedgerId = keys.ledger_id
        self._context = context
        self._change = CommittedChange(versioned, context.metadata)
        engine_class: type[WriteEngine[Any]] = DeferredWriteEngine if deferred_sync else WriteEngine
        self._engine = engine_class(
            keys, self._change, context.bookies, context.placement, context.config, context.entropy, self
        )
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[Buffer, asyncio.Future[int]]] | None = None
        """Callers of `add` that wait for room: each holds one payload, so the callers are the bound. None until one has
        to wait: an empty deque takes 700 bytes, and a broker has a writer for each topic."""
        self._explicit_lac = ExplicitLac(self._engine, context.config.explicit_lac_interval_ms / 1000)
        self.on_ended: Callable[[LedgerWriter], None] | None = None
        """Is set by the client that made it; called once."""
        self.on_failure: Callable[[LedgerError], None] | None = None
        """Is set by an owner with more to fail when this writer fails or ends; called once, with what further adds
        get."""
        self._is_ending = False
        self._quiet: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        versioned: Versioned[LedgerMetadata],
        keys: LedgerKeys,
        context: LedgerContext,
        *,
        listener: WriterListener | None = None,
        deferred_sync: bool = False,
    ) -> Self:
        """Opens a writer of a ledger that was just created. With a listener, adds are submitted; otherwise they are
        futures.

        Raises WriterFailedError with deferred sync, if a bookie cannot be reached.
        """
        writer = cls(versioned, keys, context, listener=listener, deferred_sync=deferred_sync)
        try:
            await writer._engine.open()
            writer.check_usable()  # Not every engine continues without a bookie that cannot be reached.
        except BaseException:
            await writer.release()
            raise
        return writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except MagnetarError as failure:
            if error is None:
                raise
            log.warning("a ledger was not closed", extra={"ledger_id": self.ledger_id, "why": str(failure)})

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last wrote or read it."""
        return self._change.metadata

    @property
    def last_confirmed(self) -> int:
        """The LAC; -1 before the first acknowledged entry."""
        return self._engine.lac

    @property
    def last_pushed(self) -> int:
        return self._engine.pending.next_entry_id - 1

    @property
    def length(self) -> int:
        """The bytes of the payloads of all entries up to the LAC."""
        return self._engine.length_at_lac

    @property
    def failure(self) -> MagnetarError | None:
        """The reason why this writer is finished, or None."""
        return self._engine.error

    def statistics(self) -> EngineStatistics:
        return self._engine.statistics()

    # --- adding -------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether `submit` may be called now, and no caller waits in line."""
        return not self._queue and self._engine.has_room

    def submit(self, payload: Buffer, token: Any) -> int:
        """Appends an entry and returns its id; the listener gets its outcome with this token. Only with `has_room`.

        The payload must not change any more.
        """
        assert self._listener is not None, "submit is for writers with a listener; use add"
        if self._is_ending or self._engine.error is not None:
            raise self._refusal()
        return self._engine.submit(payload, token)

    async def add(self, payload: Buffer) -> int:
        """Appends an entry; returns its id when it is acknowledged. The payload must not change until then."""
        return await self.enqueue(payload)

    def enqueue(self, payload: Buffer) -> asyncio.Future[int]:
        """Works like `add`: the entry is sent when its turn comes. The call returns at once, so the caller sets the
        bound."""
        assert self._listener is None, "add is for writers without a listener; use submit"
        engine = self._engine
        if self._is_ending or engine.error is not None:
            raise self._refusal()
        future: asyncio.Future[int] = self._loop.create_future()
        if self._queue or not engine.has_room:
            engine.check_size(payload)  # Now: when its turn comes, later entries rely on their places.
            if self._queue is None:
                self._queue = deque()
            self._queue.append((payload, future))
        else:
            engine.submit(payload, future)
        return future

    def _pump(self) -> None:
        """Sends the entries that wait in line, as far as there is room."""
        queue, engine = self._queue, self._engine
        while queue and engine.error is None and engine.has_room:
            payload, future = queue.popleft()
            if future.done():  # Its caller has stopped waiting, and nothing was sent.
                continue
            engine.submit(payload, future)

    def check_size(self, payload: Buffer) -> None:
        """Raises EntryTooLargeError, as an add would."""
        self._engine.check_size(payload)

    def check_usable(self) -> None:
        """Raises the error that an add would raise, if this writer takes no more."""
        if self._is_ending or self._engine.error is not None:
            raise self._refusal()

    def _refusal(self) -> LedgerError:
        """Returns the error of an add that was not sent, so its outcome is known."""
        error = self._engine.error
        if isinstance(error, LedgerFencedError):
            return LedgerFencedError(str(error))
        if error is None or isinstance(error, LedgerClosedError):
            return LedgerClosedError(f"ledger {self.ledger_id} is closed for this writer: write to another ledger")
        failure = WriterFailedError(f"the writer of ledger {self.ledger_id} has failed: {error}")
        failure.__cause__ = error
        return failure

    # --- what the engine says -----------------------------------------------------------------------------------------

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[Any]) -> None:
        if self._listener is not None:
            try:
                self._listener.on_confirmed(first_entry_id, tokens)
            except Exception as bug:
                self._fail_by_listener(bug)
        else:
            for entry_id, future in enumerate(tokens, first_entry_id):
                if not future.done():
                    future.set_result(entry_id)
            if self._queue:
                self._pump()
        self._explicit_lac.on_confirmed()
        self._wake_close()

    def on_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        ended_in_order = isinstance(error, LedgerClosedError)
        if not ended_in_order:
            log.warning("a writer failed", extra={"ledger_id": self.ledger_id, "why": str(error)})
        if self._listener is not None:
            if tokens or not ended_in_order:
                try:
                    self._listener.on_failed(tokens, error)
                except Exception:
                    log.exception("a listener failed to handle a failure", extra={"ledger_id": self.ledger_id})
        else:
            self._fail_futures(tokens, error)
            queue, self._queue = self._queue, None
            self._fail_futures([future for _, future in queue or ()], self._refusal())
        if self.on_failure is not None:
            self.on_failure(self._refusal())
        self._wake_close()

    def _fail_futures(self, futures: Sequence[asyncio.Future[int]], error: MagnetarError) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def on_room(self) -> None:
        if self._listener is not None:
            try:
                self._listener.on_room()
            except Exception as bug:
                self._fail_by_listener(bug)
        self._pump()
        self._wake_close()  # All that were in line may have left.

    def _fail_by_listener(self, bug: Exception) -> None:
        """Ends the writer: what the listener knows is true, and nothing may happen that it would not learn of."""
        log.error("a listener failed, and its writer with it", exc_info=bug, extra={"ledger_id": self.ledger_id})
        failure = WriterFailedError(f"the listener of the writer of ledger {self.ledger_id} failed: {bug!r}")
        failure.__cause__ = bug
        self._engine.fail(failure)

    # --- deferred sync ------------------------------------------------------------------------------------------------

    async def force(self) -> int:
        """Makes what was answered durable, and moves the LAC there. Without deferred sync, both are so already.

        Raises BookieUnavailableError if a bookie could not do it now: unless the writer has failed, it may be tried
        again.
        """
        self.check_usable()
        return await self._force()

    async def _force(self) -> int:
        if isinstance(self._engine, DeferredWriteEngine):
            lac = await self._engine.force()
            self._explicit_lac.on_confirmed()  # Its timer may have found nothing to send before.
            return lac
        return self._engine.lac

    # --- ending -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the ledger. If it raises, we did not close it; unless we are fenced, it may be tried again.

        Raises LedgerClosedError if the writer is released meanwhile.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"ledger-close-{self.ledger_id}")
        closing = self._closing
        try:
            await asyncio.shield(closing)
        except MagnetarError:
            if self._closing is closing:
                self._closing = None
            raise
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if closing.cancelled() and caller is not None and not caller.cancelling():
                raise LedgerClosedError(
                    f"the writer of ledger {self.ledger_id} was released before the ledger was closed: recover it"
                ) from None
            raise

    async def _close(self) -> None:
        self._is_ending = True
        await self._wait_quiet()
        if self._engine.error is None:
            await self._force()
        await self._stop()
        error = self._engine.error
        if isinstance(error, LedgerFencedError):
            raise LedgerFencedError(str(error))
        self._change.versioned = await close_ledger(
            self._change.versioned, self._engine.lac, self._engine.length_at_lac, self._context.metadata
        )

    async def _wait_quiet(self) -> None:
        """Returns when nothing is in progress. The engine's own time-outs are the bound: it fails then."""
        while self._engine.error is None and (len(self._engine.pending) or self._queue):
            self._quiet = self._loop.create_future()
            await self._quiet

    def _wake_close(self) -> None:
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    async def release(self) -> None:
        """Ends this writer and leaves the ledger open, to be recovered. What is in flight fails."""
        self._is_ending = True
        closing, self._closing = self._closing, None
        if closing is not None and not closing.done():
            closing.cancel()
            await asyncio.wait([closing])
        await self._stop()

    async def _stop(self) -> None:
        await self._explicit_lac.aclose()
        await self._engine.aclose(
            LedgerClosedError(f"the writer of ledger {self.ledger_id} ended before this entry was acknowledged")
        )
        on_ended, self.on_ended = self.on_ended, None
        if on_ended is not None:
            on_ended(self)
