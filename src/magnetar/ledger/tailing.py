"""Following the end of an open ledger: bookies say when the LAC moves, the metadata says when the ledger is closed.

Long poll: a v3 read that a bookie answers when it knows of a LAC beyond ours. E − Qa + 1 bookies are asked, because so
           many share a member with every ack quorum: whatever is committed, one of them hears of it. One that fails
           gets a bookie not asked yet at its side. Each has one request standing; a late answer does no harm.
Polling:   with `ledger.tail_long_poll` off, the LAC is read by quorum in v2 at an interval instead.
Metadata:  watched (metadata_watch.py). Another last ensemble is followed from then on; a closed ledger ends it.
Bound:     every request ends by itself; failures are followed by a growing pause.
Read next: view.py, reader.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Self

from magnetar.errors import LacUnknownError, MetadataError, NoSuchLedgerError, StoreClosedError
from magnetar.ids import BookieId
from magnetar.ledger.answers import Answer, Finding, exchange, interpret
from magnetar.ledger.keys import LedgerKeys
from magnetar.ledger.lac import read_lac, sizes_of
from magnetar.ledger.metadata_watch import MetadataWatch
from magnetar.ledger.parts import Parts
from magnetar.ledger.view import LedgerView
from magnetar.quorum.coverage import Meaning
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.messages import V3, ReadEntry, ReadResponse
from magnetar.wire.bookkeeper.packet import LAST_ENTRY

log = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 5.0
_PAUSE_ABSENT_S: Final = (
    0.2  # A bookie that has nothing of the ledger yet cannot wait for more; the next entry may come.
)


class Tail:
    """`async with Tail(...)`: while it is open, the view moves as the ledger does."""

    def __init__(
        self,
        view: LedgerView,
        keys: LedgerKeys,
        parts: Parts,
        watch: MetadataWatch,
    ) -> None:
        """`watch` reads the metadata into the view."""
        self._view = view
        self._keys = keys
        self._parts = parts
        self._bookies = parts.bookies
        self._config = parts.config
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
        """This entry, if it came along with a LAC."""
        entry, self._piggybacked = self._piggybacked, None
        return entry if entry is not None and entry.entry_id == entry_id else None

    # --- metadata -----------------------------------------------------------------------------------------------------

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
                log.warning("metadata cannot be read", extra={"ledger": self._keys.ledger_id, "why": str(error)})
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
        """Whatever ends a task that should have gone on is told to whoever waits for it."""
        self._followers.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._view.on_failure(error)

    def _stop_followers(self) -> None:
        for task in self._followers:
            task.cancel()

    # --- the LAC ------------------------------------------------------------------------------------------------------

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
        """PRESENT: the bookie waited for us, and said what it knows. ABSENT: it knows nothing of the ledger."""
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
                self._view.on_lac(await read_lac(metadata, self._keys, self._parts, explicit=False))
            except LacUnknownError as error:
                log.info("too few bookies for the LAC", extra={"ledger": self._keys.ledger_id, "why": str(error)})
            await asyncio.sleep(self._config.tail_poll_interval_ms / 1000)
