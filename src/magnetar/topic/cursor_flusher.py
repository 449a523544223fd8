"""CursorFlusher: stores a cursor's state when somebody asks for it, one write at a time.

Group:     whoever asks while a write is under way shares the next one, which has the state as it is when it begins.
           Nobody waits for a timer, and a crowd waits for two writes at most.
Lazy:      `flush_soon` asks some time later, once for all that happens until then.
Failure:   those who wait are told; the state is stored with the next flush, which comes by itself. So it is when the
           state cannot even be written down.
Fenced:    nothing is stored any more, and `on_fenced` is called, once.
End:       however it ends, everybody who waits is answered.
Read next: cursor.py, cursor_home.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from magnetar.config.cursor import CursorConfig
from magnetar.errors import CursorClosedError, CursorError, CursorFencedError, CursorNotStoredError, MagnetarError
from magnetar.topic.cursor_home import CursorHome
from magnetar.topic.cursor_info import Snapshot
from magnetar.topic.position import Position

log = logging.getLogger(__name__)


class CursorFlusher:
    """Of one durable cursor, from its opening to its end."""

    def __init__(
        self,
        name: str,
        home: CursorHome,
        config: CursorConfig,
        take_snapshot: Callable[[], Snapshot],
        version: Callable[[], int],
        on_fenced: Callable[[MagnetarError], None],
    ) -> None:
        """`take_snapshot` gives the state as it is, and `version` that state's version; now it is what is stored."""
        self._name = name
        self._home = home
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
        """Whoever uses the home holds it."""
        self._limit: asyncio.Timeout | None = None
        """Of what is done with the turn."""
        self._is_given_up = False
        self._next: asyncio.Future[None] | None = None
        """Of those who wait for the write that has not begun."""
        self._writing: tuple[int, asyncio.Future[None]] | None = None
        """The version that is being stored, and those who wait for it."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._end: CursorError | None = None

    # --- asking for it ------------------------------------------------------------------------------------------------

    @property
    def is_stored(self) -> bool:
        return self.stored_version == self._version()

    def flush_nowait(self) -> asyncio.Future[None] | None:
        """None if all is stored. The future is shared by all who share the write."""
        self.check_open()
        version = self._version()
        if self.stored_version == version:
            return None
        if self._writing is not None and self._writing[0] == version:
            return self._writing[1]
        if self._next is None:
            self._next = self._loop.create_future()
            self._next.add_done_callback(_look_at)
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
        """Write after write, as long as somebody waits."""
        try:
            while self._next is not None:
                await self._store_next()
                if self._home.has_unused_ledgers and self._end is None:
                    await self._delete_unused_ledgers()
        finally:
            self._task = None

    async def _store_next(self) -> None:
        error: MagnetarError | None = CursorClosedError(f"the cursor {self._name} was closed while it was stored")
        async with self._turn:
            waiting, self._next = self._next, None
            assert waiting is not None
            try:
                snapshot = self._written_down()
                self._writing = (snapshot.version, waiting)
                if snapshot.version != self.stored_version:
                    self.check_open()
                    await self._store(snapshot)
                error = None
            except MagnetarError as failure:
                error = failure
            finally:
                self._writing = None
                _tell(waiting, error)
        if error is not None:
            self.flush_soon()

    def _written_down(self) -> Snapshot:
        """The state as it is. Whatever is wrong with it is a CursorError: whoever waits for the write must hear of it,
        and one bad value must not end the writing of all that comes after it."""
        try:
            return self._take_snapshot()
        except Exception as error:
            raise self._failed(f"its state cannot be written down: {error!r}") from error

    async def _delete_unused_ledgers(self) -> None:
        async with self._turn:
            if self._end is not None:  # Meanwhile.
                return
            try:
                await self._in_time(self._home.delete_unused_ledgers())
            except CursorError as error:
                log.warning("old ledgers of a cursor are left", extra={"cursor": self._name, "why": str(error)})

    async def _store(self, snapshot: Snapshot) -> None:
        """With the turn."""
        await self._in_time(self._home.store(snapshot))
        self._on_stored(snapshot)

    def _on_stored(self, snapshot: Snapshot) -> None:
        self.stores += 1
        self.stored_version = snapshot.version
        self.stored_mark_delete = snapshot.mark_delete

    async def _in_time(self, doing: Awaitable[None]) -> None:
        """Whatever goes wrong is a CursorError then."""
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
            f"the cursor {self._name} was not stored: {why}; it will be tried again: look whether enough bookies and "
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
        """Stores a state that does not follow from the present one; `adopt` is called when it is durable, before
        anything else is stored."""
        async with self._turn:
            self.check_open()
            await self._store(make())
            adopt()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        async with self._turn:
            self.check_open()
            await self._in_time(self._home.set_properties(properties))

    @property
    def home(self) -> CursorHome:
        return self._home

    # --- ending -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stores what is not stored yet. If that fails it raises, and is closed all the same. If it is cancelled,
        no write is begun any more, and `abandon` ends the one that is under way."""
        closed = CursorClosedError(f"the cursor {self._name} is closed: open the topic again")
        try:
            async with self._turn:
                await self._close(closed)
            await self._wait_quiet()
        finally:
            self._finish(closed)

    async def _close(self, closed: CursorClosedError) -> None:
        """With the turn."""
        try:
            if self._end is None:
                self._finish(closed)
                snapshot = self._written_down()
                is_stored = snapshot.version == self.stored_version
                await self._in_time(self._home.close(snapshot, is_stored=is_stored))
                self._on_stored(snapshot)
        finally:
            await self._home.abandon()

    async def delete(self) -> None:
        async with self._turn:
            self.check_open()
            await self._in_time(self._home.delete())
            self._finish(CursorClosedError(f"the subscription {self._name} is deleted"))
            with contextlib.suppress(CursorError):  # Said in the log. The cursor is gone all the same.
                await self._in_time(self._home.delete_ledgers())
        await self._wait_quiet()

    async def abandon(self) -> None:
        """Stores nothing, and cuts off what is under way: another broker has the topic, or closing took too long.
        Whoever waits is told. Again is harmless."""
        self._is_given_up = True
        self._finish(self._given_up())
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._loop.time())  # Whoever has the turn, be it the writer or a reset.
        async with self._turn:
            await self._home.abandon()
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


def _tell(waiting: asyncio.Future[None], error: MagnetarError | None) -> None:
    if not waiting.done():
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)


def _look_at(stored: asyncio.Future[None]) -> None:
    """Those who only said `flush_soon` do not look; it was logged."""
    if not stored.cancelled():
        stored.exception()
