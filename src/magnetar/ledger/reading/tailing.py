"""Following an open ledger: what one reader knows of it, and how it learns of the next entries and of the close.

Bookies report when the LAC moves. A long poll is a v3 read that a bookie answers when it knows of a LAC beyond ours.
E − Qa + 1 bookies are asked, because that number shares a member with every ack quorum: one of them learns of whatever
is committed. If one fails, another bookie is asked as well. With `ledger.tail_long_poll` off, the LAC is read by quorum
in v2 at an interval instead. The metadata is watched: another last ensemble is followed from then on, and a closed
ledger ends the tail.

Invariant: Neither metadata nor LAC go back: an older version and a smaller LAC are ignored. The LAC of a closed ledger
           is its last entry, and never moves.
Limits:    Each bookie has one request in progress, and every request ends by itself; pauses grow after failures. A late
           answer does no harm. There is one watch per reader, however many tails it has. A watch cannot be cancelled:
           it stays with the store until the metadata changes, which may take very long. It calls the tails that follow
           at that moment, and keeps no others alive.
Read next: reader.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Self

from magnetar.errors import LacUnknownError, MetadataError, NoSuchLedgerError, StoreClosedError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.channels.answers import Answer, Finding, exchange, interpret
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys
from magnetar.ledger.reading.lac import lac_floor, read_lac, sizes_of
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.metadata.store import Watcher, WatchEvent
from magnetar.quorum.coverage import Meaning
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import V3, ReadEntry, ReadResponse


class LedgerView:
    def __init__(self, stored: Versioned[LedgerMetadata]) -> None:
        self.metadata = stored.value
        self.version = stored.version
        self.lac = lac_floor(stored.value)
        self._failure: BaseException | None = None
        self._moved = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.metadata.is_closed

    def on_metadata(self, stored: Versioned[LedgerMetadata]) -> None:
        if stored.version <= self.version:
            return
        self.metadata, self.version = stored.value, stored.version
        if stored.value.is_closed:
            assert stored.value.last_entry_id >= self.lac, "a ledger was closed before an entry known to be committed"
            self.lac = stored.value.last_entry_id
            self._moved.set()
        else:
            self.on_lac(lac_floor(stored.value))

    def on_lac(self, lac: int) -> None:
        if lac > self.lac and not self.is_closed:
            self.lac = EntryId(lac)
            self._moved.set()

    def on_failure(self, error: BaseException) -> None:
        """Ends the view: every waiting caller gets the error."""
        self._failure = error
        self._moved.set()

    async def wait_beyond(self, entry_id: int) -> None:
        """Returns when the LAC is beyond this entry, or the ledger is closed and it never will be."""
        while self.lac <= entry_id and not self.is_closed:
            if self._failure is not None:
                raise self._failure
            self._moved.clear()
            await self._moved.wait()


class MetadataWatch:
    def __init__(self, read: Callable[[Watcher | None], Awaitable[None]]) -> None:
        """`read` reads the metadata, with a watch if one is given."""
        self._read = read
        self._reading = asyncio.Lock()  # Two reads at a time would set two watches.
        self._armed: _Arming | None = None
        self._followers: dict[Callable[[], object], None] = {}

    def follow(self, on_change: Callable[[], object]) -> None:
        """Calls `on_change` when the metadata may have changed since the last `refresh`, until `leave`."""
        self._followers[on_change] = None

    def leave(self, on_change: Callable[[], object]) -> None:
        self._followers.pop(on_change, None)

    async def refresh(self) -> None:
        """Reads the metadata; the next change after that is reported to the followers."""
        async with self._reading:
            if self._armed is not None:  # It was set before this read, so it reports every later change.
                await self._read(None)
                return
            arming = _Arming(self._on_over)
            await self._read(arming.on_event)
            if not arming.is_over:  # Otherwise the change was reported before this read returned.
                self._armed = arming

    def _on_over(self, arming: _Arming) -> None:
        if self._armed is arming:
            self._armed = None
        for tell in list(self._followers):
            tell()


class _Arming:
    """Is one watch, which fires once."""

    __slots__ = ("_on_over", "is_over")

    def __init__(self, on_over: Callable[[_Arming], None]) -> None:
        self._on_over = on_over
        self.is_over = False

    def on_event(self, _event: WatchEvent) -> None:
        self.is_over = True
        self._on_over(self)


log = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 5.0
_PAUSE_ABSENT_S: Final = 0.2  # A bookie without entries of the ledger cannot wait for more; the next entry may come.


class Tail:
    """Follows the ledger while it is open: `async with Tail(...)`."""

    def __init__(self, view: LedgerView, keys: LedgerKeys, context: LedgerContext, watch: MetadataWatch) -> None:
        """`watch` reads the metadata into the view."""
        self._view = view
        self._keys = keys
        self._context = context
        self._bookies = context.bookies
        self._config = context.config
        self._watch = watch
        self._followed: tuple[BookieId, ...] = ()
        self._spare: list[BookieId] = []
        self._main: asyncio.Task[None] | None = None
        self._followers: dict[asyncio.Task[None], None] = {}
        self._changed = asyncio.Event()
        self._piggybacked: Entry | None = None

    async def __aenter__(self) -> Self:
        self._watch.follow(self._changed.set)
        try:
            await self._watch.refresh()
        except BaseException:
            self._watch.leave(self._changed.set)
            raise
        if not self._view.is_closed:
            self._main = asyncio.get_running_loop().create_task(self._follow_metadata(), name="tail: metadata")
            self._main.add_done_callback(self._on_done)
            self._follow_ensemble()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._watch.leave(self._changed.set)
        tasks = [*self._followers, *([self._main] if self._main else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def take_piggybacked(self, entry_id: int) -> Entry | None:
        """Returns this entry, if it came along with a LAC."""
        entry, self._piggybacked = self._piggybacked, None
        return entry if entry is not None and entry.entry_id == entry_id else None

    async def _follow_metadata(self) -> None:
        pause_s = _PAUSE_FIRST_S
        while not self._view.is_closed:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._watch.refresh()
            except (NoSuchLedgerError, StoreClosedError) as error:
                self._view.on_failure(error)
                break
            except MetadataError as error:
                log.warning(
                    "a ledger's metadata cannot be read", extra={"ledger": self._keys.ledger_id, "why": str(error)}
                )
                await asyncio.sleep(pause_s)
                pause_s = min(_PAUSE_MAX_S, pause_s * 2)
                self._changed.set()
            else:
                pause_s = _PAUSE_FIRST_S
                self._follow_ensemble()
        self._stop_followers()

    def _follow_ensemble(self) -> None:
        ensemble = self._view.metadata.fragments[-1].ensemble
        if ensemble == self._followed or self._view.is_closed:
            return
        self._stop_followers()
        self._followed = ensemble
        if not self._config.tail_long_poll:
            self._start(self._poll(), "tail: polls")
            return
        enough = sizes_of(self._view.metadata).always_covering
        self._spare = list(reversed(ensemble[enough:]))
        for bookie in ensemble[:enough]:
            self._start(self._long_polls(bookie), f"tail: long polls at {bookie}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._followers[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Fails the view if a task ended by an error."""
        self._followers.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._view.on_failure(error)

    def _stop_followers(self) -> None:
        for task in self._followers:
            task.cancel()

    async def _long_polls(self, bookie: BookieId) -> None:
        pause_s = _PAUSE_FIRST_S
        while not self._view.is_closed:
            meaning = await self._long_poll(bookie)
            if meaning is Meaning.PRESENT:
                pause_s = _PAUSE_FIRST_S
            elif meaning is Meaning.ABSENT:
                await asyncio.sleep(_PAUSE_ABSENT_S)
            else:
                self._follow_another()
                await asyncio.sleep(pause_s)
                pause_s = min(_PAUSE_MAX_S, pause_s * 2)

    def _follow_another(self) -> None:
        if self._spare:
            bookie = self._spare.pop()
            self._start(self._long_polls(bookie), f"tail: long polls at {bookie}")

    async def _long_poll(self, bookie: BookieId) -> Meaning:
        """Returns PRESENT if the bookie waited and reported its LAC, ABSENT if it knows nothing of the ledger."""
        waits_ms = self._config.long_poll_ms
        previous = self._view.lac
        request = ReadEntry(
            self._keys.ledger_id, LAST_ENTRY, previous_lac=previous, timeout_ms=waits_ms, piggyback=True, version=V3
        )
        timeout_s = (waits_ms + self._config.read_timeout_ms) / 1000
        response = await exchange(self._bookies, bookie, request, timeout_s)
        if not isinstance(response, ReadResponse) or response.code is not Code.EOK:
            return interpret(self._keys, LAST_ENTRY, response).meaning
        if response.body:
            self._keep(interpret(self._keys, previous + 1, response))
        if response.max_lac is None:  # It does not know long polls, and answered at once.
            return Meaning.NOTHING
        self._view.on_lac(response.max_lac)
        return Meaning.PRESENT

    def _keep(self, answer: Answer) -> None:
        if answer.finding is Finding.PRESENT:
            self._piggybacked = answer.entries[0]

    async def _poll(self) -> None:
        while not self._view.is_closed:
            try:
                metadata = self._view.metadata
                self._view.on_lac(await read_lac(metadata, self._keys, self._context, explicit=False))
            except LacUnknownError as error:
                log.info("too few bookies for the LAC", extra={"ledger": self._keys.ledger_id, "why": str(error)})
            await asyncio.sleep(self._config.tail_poll_interval_ms / 1000)
