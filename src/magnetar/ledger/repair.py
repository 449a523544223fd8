"""Repair: one task at a time that fills a write engine's seats again.

Order:     empty seats are connected again → replacements for failed ones are chosen → connected → the window is held →
           the change is written → the new bookies sit down and get their share → the window is released. A bookie
           that fails before the write begins is part of the same change, so many failures at once are one change.
Storm:     a newcomer that fails before it has taken an entry is replaced after a pause, and every further one after a
           longer one: what ails it may ail all of them. Who failed lately is chosen only if there is nobody else.
Limit:     so many changes in so long, then the writer fails: a writer that chases dead bookies hurts everybody.
Delay:     if set, a failed bookie is only remembered while every write set reaches its ack quorum without it.
Nobody:    without a replacement the failed ones themselves are tried again, with longer and longer pauses. If the ack
           quorum cannot be reached without them, that ends after `replacement_wait_ms`. A bookie that can be
           reached may refuse again: the pauses go on growing until one has taken an entry, and few of them are logged.
Read next: write_engine.py, ensemble_change.py
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from magnetar.errors import (
    BookieUnavailableError,
    EnsembleChangesExceededError,
    LedgerError,
    MagnetarError,
    NotEnoughBookiesError,
    WriterFailedError,
)
from magnetar.ids import BookieId
from magnetar.ledger.channel import Channel
from magnetar.ledger.seats import Seat
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.entropy import Entropy

if TYPE_CHECKING:
    from magnetar.ledger.write_engine import WriteEngine

log = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 0.05
_RETRY_LONGEST_S: Final = 2.0
_RETRIES_FORGOTTEN_S: Final = 10.0  # A shortage after so long without a try is another one.
_FAILURE_REMEMBERED_S: Final = 10.0  # Long beside a restart; who is set aside for longer, the placement knows.
_WARNING_INTERVAL_S: Final = 10.0  # Of one writer: thousands may be short of bookies at once, for hours.


class Repair:
    def __init__(self, engine: WriteEngine[Any], entropy: Entropy) -> None:
        self._engine = engine
        self._random = entropy.random
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._cancelled: list[asyncio.Task[None]] = []
        self._change_times: deque[float] = deque()
        self._short_since: float | None = None  # Since when replacements are missing.
        self._retries: Backoff | None = None  # Made when it is first needed: few writers ever do.
        self._tried_at = self._warned_at = -math.inf
        self._failed_at: dict[BookieId, float] = {}  # Of bookies that have taken nothing since; no more than there are.
        self.changes = 0

    # --- when ---------------------------------------------------------------------------------------------------------

    def begin_if_needed(self) -> None:
        if self._task is None and self._engine.error is None and self._is_needed():
            self._task = self._loop.create_task(self._run(), name=f"ledger-repair-{self._engine.ledger_id}")
            self._task.add_done_callback(self._on_done)

    def _is_needed(self) -> bool:
        if not len(self._engine.pending):
            return any(seat.is_empty and seat.owed for seat in self._engine.seats)
        return any(seat.is_empty for seat in self._engine.seats) or self._must_replace()

    def _must_replace(self) -> bool:
        failed = self._failed()
        if not failed or not self._engine.config.delay_ensemble_change:
            return bool(failed)
        return any(seat.cannot_wait for seat in failed) or not self._engine.pending.can_go_on_without(
            [seat.position for seat in failed]
        )

    def _failed(self) -> list[Seat]:
        return [seat for seat in self._engine.seats if seat.error is not None]

    def on_failure(self, bookie_id: BookieId) -> None:
        self._failed_at[bookie_id] = self._loop.time()

    def has_failed_before(self, bookie_id: BookieId) -> bool:
        """Not long ago, and it has not taken an entry since."""
        return self._loop.time() - self._failed_at.get(bookie_id, -math.inf) < _FAILURE_REMEMBERED_S

    def revived(self, bookie_id: BookieId) -> None:
        """One that was on trial has taken an entry."""
        self._failed_at.pop(bookie_id, None)
        self._nobody_is_missing()

    def _nobody_is_missing(self) -> None:
        self._short_since = None
        self._retries = None

    # --- the task -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._is_needed():
                await self.connect([seat for seat in self._engine.seats if seat.is_empty])
                if self._must_replace():
                    await self._replace()
        except (LedgerError, NotEnoughBookiesError) as error:
            self._end_with(error)
        except MagnetarError as error:  # Of the metadata store.
            failure = WriterFailedError(
                f"ledger {self._engine.ledger_id}: failed bookies could not be replaced: {error}; close the ledger and "
                "write to another"
            )
            failure.__cause__ = error
            self._end_with(failure)
        else:
            self._short_since = None
            if not any(seat.error is not None or seat.is_on_trial for seat in self._engine.seats):
                self._nobody_is_missing()
            self._task = None

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A bug must not leave a writer waiting: it fails, and the loop's handler is told."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._end_with(WriterFailedError(f"ledger {self._engine.ledger_id}: replacing bookies failed: {bug!r}"))
            raise bug

    def _end_with(self, error: MagnetarError) -> None:
        self._task = None  # So that failing does not cancel the task that says so.
        self._engine.fail(error)

    async def connect(self, seats: Sequence[Seat]) -> None:
        """Empty seats get their channel, or fail."""
        found = await self._channels([seat.bookie_id for seat in seats])
        for seat, channel in zip(seats, found, strict=True):
            if isinstance(channel, MagnetarError):
                self._engine.fail_seat(seat, channel)
            elif self._engine.error is not None:  # It ended meanwhile, perhaps with one that failed just before.
                channel.detach(self._engine.ledger_id, self._engine)
            else:
                self._engine.seat(seat, channel)

    async def _replace(self) -> None:
        """One change for all that failed up to the moment it is written, as far as there is somebody for them."""
        chosen: dict[int, Channel] = {}
        in_vain = any(seat.is_on_trial for seat in self._failed())  # Whoever sat down there last took nothing.
        if in_vain:
            await self._pause()
        try:
            shortage = await self._find_replacements(chosen)
            if chosen:
                await self._write(chosen)
            elif shortage is not None:
                await self._wait_for_somebody(shortage, has_paused=in_vain)
        finally:
            for channel in chosen.values():
                channel.detach(self._engine.ledger_id, self._engine)

    async def _write(self, chosen: dict[int, Channel]) -> None:
        """Makes the change true, and seats the chosen ones. Takes those that it seats out of `chosen`."""
        engine = self._engine
        self._count_change()
        engine.pending.hold()
        await engine.change.write(
            engine.pending.first_entry_id, {position: channel.bookie_id for position, channel in chosen.items()}
        )
        engine.pending.release(list(chosen))
        self._short_since = None
        log.info("bookies replaced", extra={"ledger_id": engine.ledger_id, "ensemble": list(engine.change.ensemble)})
        for position in list(chosen):
            self._try(engine.seats[position], chosen.pop(position))
        engine.confirm()  # Entries that do not need the new bookies may have become complete while they were held.

    def _try(self, seat: Seat, channel: Channel) -> None:
        self._engine.seat(seat, channel)
        seat.is_on_trial = True

    def _count_change(self) -> None:
        config = self._engine.config
        now, times = self._loop.time(), self._change_times
        while times and now - times[0] >= config.ensemble_changes_window_ms / 1000:
            times.popleft()
        if len(times) >= config.ensemble_changes_max:
            raise EnsembleChangesExceededError(
                f"ledger {self._engine.ledger_id}: bookies were replaced {len(times)} times within "
                f"{config.ensemble_changes_window_ms / 1000:g} s (ledger.ensemble_changes_max): too many bookies are "
                "failing; close the ledger, and write to another when they are well"
            )
        times.append(now)
        self.changes += 1

    # --- finding somebody ---------------------------------------------------------------------------------------------

    async def _find_replacements(self, chosen: dict[int, Channel]) -> NotEnoughBookiesError | None:
        """Puts connected bookies for failed seats into `chosen`; returns what is missing, if somebody is.

        Every round chooses somebody new or rules somebody out, so the rounds are no more than there are bookies.
        """
        engine = self._engine
        ruled_out: dict[BookieId, None] = {}
        while True:
            for position in [position for position, channel in chosen.items() if channel.is_lost]:
                ruled_out[chosen.pop(position).bookie_id] = None
            missing = [seat.position for seat in self._failed() if seat.position not in chosen]
            if not missing:
                return None
            try:
                picked = self._pick(missing, chosen, ruled_out)
            except NotEnoughBookiesError as error:
                return error
            found = await self._channels(list(picked.values()))
            for (position, bookie_id), channel in zip(picked.items(), found, strict=True):
                if isinstance(channel, MagnetarError):
                    engine.bookies.report_failure(bookie_id)
                    self.on_failure(bookie_id)
                    ruled_out[bookie_id] = None
                else:
                    chosen[position] = channel

    def _pick(
        self, missing: Sequence[int], chosen: Mapping[int, Channel], ruled_out: Mapping[BookieId, None]
    ) -> dict[int, BookieId]:
        """By the placement rules, for all of these seats, or else for one of them; of those who failed lately, nobody
        unless nobody else is there."""
        engine = self._engine
        ensemble = [
            chosen[position].bookie_id if position in chosen else bookie
            for position, bookie in enumerate(engine.change.ensemble)
        ]
        # Also those whose own seat has a new bookie now: if that one is lost before the change, they still sit there.
        excluded = (*ruled_out, *engine.change.ensemble)
        lately = tuple(bookie_id for bookie_id in self._failed_at if self.has_failed_before(bookie_id))
        shortage: NotEnoughBookiesError | None = None
        choices = [missing, *([position] for position in missing)]
        for avoided, positions in itertools.product(dict.fromkeys((lately, ())), choices):
            try:
                new = engine.placement.replace_all(
                    positions, ensemble, engine.sizes, engine.bookies.candidates(), exclude=(*excluded, *avoided)
                )
            except NotEnoughBookiesError as error:
                shortage = error if positions is missing else shortage
            else:
                return {position: new.ensemble[position] for position in positions}
        assert shortage is not None
        raise shortage

    async def _wait_for_somebody(self, shortage: NotEnoughBookiesError, *, has_paused: bool) -> None:
        """Gives new bookies time to come, and then those that failed another chance."""
        engine = self._engine
        now = self._loop.time()
        if self._short_since is None:
            self._short_since = now
            self._warn_of(shortage, now)
        failed = self._failed()
        can_go_on = engine.pending.can_go_on_without([seat.position for seat in failed])
        if not can_go_on and now - self._short_since >= engine.config.replacement_wait_ms / 1000:
            raise shortage
        if not has_paused:
            await self._pause()
        found = await self._channels([seat.bookie_id for seat in failed])
        for seat, channel in zip(failed, found, strict=True):
            if not isinstance(channel, MagnetarError):
                engine.pending.forget([seat.position])  # It gets everything again; what it had may be lost with it.
                self._try(seat, channel)

    def _warn_of(self, shortage: NotEnoughBookiesError, now: float) -> None:
        if now - self._warned_at >= _WARNING_INTERVAL_S:
            self._warned_at = now
            log.warning(
                "failed bookies cannot be replaced yet",
                extra={"ledger_id": self._engine.ledger_id, "why": str(shortage)},
            )

    async def _pause(self) -> None:
        if self._retries is None or self._loop.time() - self._tried_at >= _RETRIES_FORGOTTEN_S:
            self._retries = Backoff(self._random, _RETRY_FIRST_S, _RETRY_LONGEST_S)
        await asyncio.sleep(self._retries.next_s())
        self._tried_at = self._loop.time()

    async def _channels(self, bookie_ids: Sequence[BookieId]) -> list[Channel | MagnetarError]:
        """A channel that hears for this ledger, or why there is none, for each. All are asked for at once."""
        ledger_id = self._engine.ledger_id
        ready: dict[BookieId, Channel | MagnetarError] = {}
        for bookie_id in bookie_ids:  # Nearly always all are connected: then there is no task, and nothing to wait for.
            channel = self._engine.bookies.channel_nowait(bookie_id, ledger_id=ledger_id)
            if channel is not None:
                channel.attach(ledger_id, self._engine)
                ready[bookie_id] = channel
        missing = [bookie_id for bookie_id in bookie_ids if bookie_id not in ready]
        if missing:
            try:
                await self._connect_to(missing, ready)
            except BaseException:
                for attached in ready.values():  # Nothing is left attached when this task is cancelled.
                    if isinstance(attached, Channel):
                        attached.detach(ledger_id, self._engine)
                raise
        return [ready[bookie_id] for bookie_id in bookie_ids]

    async def _connect_to(self, bookie_ids: Sequence[BookieId], ready: dict[BookieId, Channel | MagnetarError]) -> None:
        attempts = {bookie_id: asyncio.ensure_future(self._channel(bookie_id)) for bookie_id in bookie_ids}
        try:
            await asyncio.gather(*attempts.values())
        finally:
            for bookie_id, attempt in attempts.items():
                if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                    ready[bookie_id] = attempt.result()

    async def _channel(self, bookie_id: BookieId) -> Channel | MagnetarError:
        """Attached before anything else is awaited: until then, another writer of the ledger may get the same one."""
        try:
            channel = await self._engine.bookies.channel(bookie_id, ledger_id=self._engine.ledger_id)
            channel.attach(self._engine.ledger_id, self._engine)
        except MagnetarError as error:
            return error
        except LookupError:
            return BookieUnavailableError(f"somebody else in this process writes the ledger to {bookie_id}")
        return channel

    # --- the end ------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._cancelled.append(task)

    async def aclose(self) -> None:
        self.cancel()
        if self._cancelled:
            await asyncio.wait(self._cancelled)
            self._cancelled.clear()
