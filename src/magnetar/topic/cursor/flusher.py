"""CursorFlusher: stores a cursor's state on request, one write at a time.

Order:     Callers that come during a write share the next one, which has the state as it is when it begins. No timer is
           involved, and a caller waits for two writes at most. `flush_soon` makes a request some time later, once for
           all that happens until then.
Failure:   Waiting callers get the error; the state is stored with the next flush, which comes by itself. That includes
           a state that cannot be encoded. After a fence nothing is stored any more, and `on_fenced` is called, once. At
           the end all waiting callers are answered.
Read next: cursors.py, ledger_storage.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from magnetar.config.topic import CursorConfig
from magnetar.errors import CursorClosedError, CursorError, CursorFencedError, CursorNotStoredError, MagnetarError
from magnetar.runtime.uncancelled import ignore_outcome
from magnetar.topic.cursor.codec import Snapshot
from magnetar.topic.cursor.ledger_storage import LedgerCursorStorage
from magnetar.topic.position import Position

log = logging.getLogger(__name__)


class CursorFlusher:
    """Serves one durable cursor, from its opening to its end."""

    def __init__(
        self,
        name: str,
        storage: LedgerCursorStorage,
        config: CursorConfig,
        take_snapshot: Callable[[], Snapshot],
        version: Callable[[], int],
        on_fenced: Callable[[MagnetarError], None],
    ) -> None:
        """`take_snapshot` returns the state as it is, and `version` that state's version, which is stored already."""
        self._name = name
        self._storage = storage
        self._take_snapshot = take_snapshot
        self._version = version
        self._on_fenced = on_fenced
        self._interval_s = config.mark_delete_interval_ms / 1000
        self._timeout_s = config.store_timeout_ms / 1000
        self.stores = 0
        self.failures = 0
        stored = take_snapshot()
        self.stored_version = stored.version
        self.stored_mark_delete: Position = stored.mark_delete
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        """Is held by the user of the storage."""
        self._limit: asyncio.Timeout | None = None
        """Bounds the time of what is done with the turn."""
        self._is_given_up = False
        self._next: asyncio.Future[None] | None = None
        """The future of the write that has not begun."""
        self._writing: tuple[int, asyncio.Future[None]] | None = None
        """The version that is being stored, and the future of that write."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._end: CursorError | None = None

    # --- asking for it ------------------------------------------------------------------------------------------------

    @property
    def is_stored(self) -> bool:
        return self.stored_version == self._version()

    def flush_nowait(self) -> asyncio.Future[None] | None:
        """Returns None if all is stored, otherwise a future shared by all callers of one write."""
        self.check_open()
        version = self._version()
        if self.stored_version == version:
            return None
        if self._writing is not None and self._writing[0] == version:
            return self._writing[1]
        if self._next is None:
            self._next = self._loop.create_future()
            self._next.add_done_callback(ignore_outcome)  # After `flush_soon` no caller waits; the error was logged.
        if self._task is None:
            self._task = self._loop.create_task(self._store_all(), name=f"cursor-store-{self._name}")
        return self._next

    def flush_soon(self) -> None:
        if self._timer is None and self._end is None and not self.is_stored:
            self._timer = self._loop.call_later(self._interval_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._end is None:
            self.flush_nowait()

    def check_open(self) -> None:
        if self._end is not None:
            raise self._end

    # --- doing it -----------------------------------------------------------------------------------------------------

    async def _store_all(self) -> None:
        """Writes again and again, as long as a caller waits."""
        try:
            while self._next is not None:
                await self._store_next()
                if self._storage.needs_cleanup and self._end is None:
                    await self._clean_up()
        finally:
            self._task = None

    async def _store_next(self) -> None:
        error: MagnetarError | None = CursorClosedError(f"the cursor {self._name} was closed while it was stored")
        async with self._turn:
            waiting, self._next = self._next, None
            assert waiting is not None
            try:
                snapshot = self._checked_snapshot()
                self._writing = (snapshot.version, waiting)
                if snapshot.version != self.stored_version:
                    self.check_open()
                    await self._store(snapshot)
                error = None
            except MagnetarError as failure:
                error = failure
            finally:
                self._writing = None
                _settle(waiting, error)
        if error is not None:
            self.flush_soon()

    def _checked_snapshot(self) -> Snapshot:
        """Returns the state as it is. Any failure becomes a CursorError, so that the callers of this write get it.

        One bad value must not end later writes.
        """
        try:
            return self._take_snapshot()
        except Exception as error:
            raise self._failed(f"its state cannot be encoded: {error!r}") from error

    async def _clean_up(self) -> None:
        async with self._turn:
            if self._end is not None:  # It ended meanwhile.
                return
            try:
                await self._in_time(self._storage.clean_up())
            except CursorError as error:
                log.warning("old ledgers of a cursor were not deleted", extra={"cursor": self._name, "why": str(error)})

    async def _store(self, snapshot: Snapshot) -> None:
        """Is called with the turn."""
        await self._in_time(self._storage.store(snapshot))
        self._on_stored(snapshot)

    def _on_stored(self, snapshot: Snapshot) -> None:
        self.stores += 1
        self.stored_version = snapshot.version
        self.stored_mark_delete = snapshot.mark_delete

    async def _in_time(self, doing: Awaitable[None]) -> None:
        """Bounds the time; any failure becomes a CursorError."""
        try:
            async with asyncio.timeout(self._timeout_s) as self._limit:
                await doing
        except TimeoutError:
            raise self._given_up() if self._is_given_up else self._failed("it took too long") from None
        except CursorFencedError as error:
            self._fence(error)
            raise
        except CursorError:
            self.failures += 1
            raise
        except MagnetarError as error:
            raise self._failed(str(error)) from error
        finally:
            self._limit = None

    def _failed(self, why: str) -> CursorNotStoredError:
        self.failures += 1
        log.warning("a cursor was not stored", extra={"cursor": self._name, "why": why})
        return CursorNotStoredError(
            f"the cursor {self._name} was not stored: {why}; it will be tried again: check that enough bookies and "
            "the metadata store can be reached"
        )

    def _fence(self, error: CursorFencedError) -> None:
        self.failures += 1
        if self._end is None:
            log.warning("a cursor was taken over", extra={"cursor": self._name, "why": str(error)})
            self._finish(error)
            self._on_fenced(error)

    # --- what needs the turn ------------------------------------------------------------------------------------------

    async def replace(self, make: Callable[[], Snapshot], adopt: Callable[[], None]) -> None:
        """Stores a state that does not follow from the present one.

        `adopt` is called when it is durable, before anything else is stored.
        """
        async with self._turn:
            self.check_open()
            await self._store(make())
            adopt()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        async with self._turn:
            self.check_open()
            await self._in_time(self._storage.set_properties(properties))

    async def set_last_active(self, last_active_ms: int) -> None:
        async with self._turn:
            self.check_open()
            await self._in_time(self._storage.set_last_active(last_active_ms))

    @property
    def storage(self) -> LedgerCursorStorage:
        return self._storage

    # --- ending -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stores what is not stored yet, and closes, even if storing raises.

        If it is cancelled, no write is begun any more, and `abandon` ends the one in progress.
        """
        closed = CursorClosedError(f"the cursor {self._name} is closed: open the topic again")
        try:
            async with self._turn:
                await self._close(closed)
            await self._wait_quiet()
        finally:
            self._finish(closed)

    async def _close(self, closed: CursorClosedError) -> None:
        """Is called with the turn."""
        try:
            if self._end is None:
                self._finish(closed)
                snapshot = self._checked_snapshot()
                is_stored = snapshot.version == self.stored_version
                await self._in_time(self._storage.close(snapshot, is_stored=is_stored))
                self._on_stored(snapshot)
        finally:
            await self._storage.abandon()

    async def delete(self) -> None:
        async with self._turn:
            self.check_open()
            await self._in_time(self._storage.delete())
            self._finish(CursorClosedError(f"the subscription {self._name} is deleted"))
            with contextlib.suppress(CursorError):  # It was logged, and the cursor is deleted anyway.
                await self._in_time(self._storage.delete_data())
        await self._wait_quiet()

    async def abandon(self) -> None:
        """Stores nothing, and cancels what is in progress: another broker has the topic, or closing took too long.

        Waiting callers get an error. A second call does nothing.
        """
        self._is_given_up = True
        self._finish(self._given_up())
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._loop.time())  # Cancels the holder of the turn, a write or a reset.
        async with self._turn:
            await self._storage.abandon()
        await self._wait_quiet()

    def _given_up(self) -> CursorClosedError:
        return CursorClosedError(f"the cursor {self._name} was given up")

    def _finish(self, end: CursorError) -> None:
        self._end = self._end or end
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait_quiet(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])


def _settle(waiting: asyncio.Future[None], error: MagnetarError | None) -> None:
    if not waiting.done():
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
