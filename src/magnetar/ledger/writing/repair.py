"""Repair: one task at a time that fills a write engine's slots again.

Order:     Empty slots are connected again → replacements for failed ones are chosen → connected → the window is held →
           the change is written → the new bookies get their slots and shares → the window is released. A bookie that
           fails before the write begins is part of the same change, therefore failures at once are one change.
Failure:   A new bookie that fails before it has taken an entry is replaced after a pause, and every further one after a
           longer pause: the cause may affect all of them. A bookie that failed lately is chosen only if no other is
           left. Without a replacement the failed bookies themselves are tried again, with growing pauses. If the ack
           quorum cannot be reached without them, that ends after `replacement_wait_ms`. A bookie that can be reached
           may refuse again: the pauses grow until one has taken an entry, and few of the tries are logged. With a delay
           configured, a failed bookie is not replaced while every write set reaches its ack quorum without it.
Limits:    After `ledger.ensemble_changes_max` changes within `ledger.ensemble_changes_window_ms` the writer fails: a
           writer that keeps choosing dead bookies harms the cluster.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
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
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.writing.ensemble_slot import EnsembleSlot
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.runtime import Entropy

if TYPE_CHECKING:
    from magnetar.ledger.writing.engine import WriteEngine

log = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 0.05
_RETRY_LONGEST_S: Final = 2.0
_RETRIES_FORGOTTEN_S: Final = 10.0  # A shortage after this time without a try is another one.
_FAILURE_REMEMBERED_S: Final = (
    10.0  # Long compared with a restart; the placement knows which bookies are set aside for longer.
)
_WARNING_INTERVAL_S: Final = 10.0  # For each writer: thousands may be short of bookies at once, for hours.


class Repair:
    def __init__(self, engine: WriteEngine[Any], entropy: Entropy) -> None:
        self._engine = engine
        self._random = entropy.random
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._cancelled: list[asyncio.Task[None]] = []
        self._change_times: list[float] = []  # At most `ensemble_changes_max`.
        self._short_since: float | None = None  # Since when replacements are missing.
        self._retries: Backoff | None = None  # Made when it is first needed, which is rare.
        self._tried_at = self._warned_at = -math.inf
        self._failed_at: dict[BookieId, float] = {}  # Bookies that failed and have taken nothing since.
        self.changes = 0

    def begin_if_needed(self) -> None:
        if self._task is None and self._engine.error is None and self._is_needed():
            self._task = self._loop.create_task(self._run(), name=f"ledger-repair-{self._engine.ledger_id}")
            self._task.add_done_callback(self._on_done)

    def _is_needed(self) -> bool:
        if not len(self._engine.pending):
            return any(slot.is_empty and slot.backlog for slot in self._engine.slots)
        return any(slot.is_empty for slot in self._engine.slots) or self._must_replace()

    def _must_replace(self) -> bool:
        failed = self._failed()
        if not failed or not self._engine.config.delay_ensemble_change:
            return bool(failed)
        return any(slot.cannot_wait for slot in failed) or not self._engine.pending.can_continue_without(
            [slot.position for slot in failed]
        )

    def _failed(self) -> list[EnsembleSlot]:
        return [slot for slot in self._engine.slots if slot.error is not None]

    def on_failure(self, bookie_id: BookieId) -> None:
        self._failed_at[bookie_id] = self._loop.time()

    def has_failed_before(self, bookie_id: BookieId) -> bool:
        """Whether it failed lately, and has not taken an entry since."""
        return self._loop.time() - self._failed_at.get(bookie_id, -math.inf) < _FAILURE_REMEMBERED_S

    def revived(self, bookie_id: BookieId) -> None:
        """Records that a bookie on probation has taken an entry."""
        self._failed_at.pop(bookie_id, None)
        self._nobody_is_missing()

    def _nobody_is_missing(self) -> None:
        self._short_since = None
        self._retries = None

    async def _run(self) -> None:
        try:
            while self._is_needed():
                await self.connect([slot for slot in self._engine.slots if slot.is_empty])
                if self._must_replace():
                    await self._replace()
        except (LedgerError, NotEnoughBookiesError) as error:
            self._end_with(error)
        except MagnetarError as error:  # Raised by the metadata store.
            failure = WriterFailedError(
                f"ledger {self._engine.ledger_id}: failed bookies could not be replaced: {error}; close the ledger and "
                "write to another"
            )
            failure.__cause__ = error
            self._end_with(failure)
        else:
            self._short_since = None
            if not any(slot.error is not None or slot.is_on_probation for slot in self._engine.slots):
                self._nobody_is_missing()
            self._task = None

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Fails the writer after a bug, and reports it to the loop's handler, so that no writer is left waiting."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._end_with(WriterFailedError(f"ledger {self._engine.ledger_id}: replacing bookies failed: {bug!r}"))
            raise bug

    def _end_with(self, error: MagnetarError) -> None:
        self._task = None  # So that failing does not cancel the task that reports it.
        self._engine.fail(error)

    async def connect(self, slots: Sequence[EnsembleSlot]) -> None:
        """Connects empty slots, or fails them."""
        found = await self._channels([slot.bookie_id for slot in slots])
        for slot, channel in zip(slots, found, strict=True):
            if isinstance(channel, MagnetarError):
                self._engine.fail_slot(slot, channel)
            elif (
                self._engine.error is not None
            ):  # The engine ended meanwhile, perhaps because of a bookie that failed just before.
                channel.detach(self._engine.ledger_id, self._engine)
            else:
                self._engine.connect_slot(slot, channel)

    async def _replace(self) -> None:
        """Makes one change for all that failed until it is written, as far as there are replacements."""
        chosen: dict[int, Channel] = {}
        in_vain = any(slot.is_on_probation for slot in self._failed())  # The last bookie in the slot took nothing.
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
        """Commits the change, and moves the chosen bookies from `chosen` into their slots."""
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
            self._try(engine.slots[position], chosen.pop(position))
        engine.confirm()  # Entries that do not need the new bookies may have become complete while they were held.

    def _try(self, slot: EnsembleSlot, channel: Channel) -> None:
        self._engine.connect_slot(slot, channel)
        slot.is_on_probation = True

    def _count_change(self) -> None:
        config = self._engine.config
        now, times = self._loop.time(), self._change_times
        while times and now - times[0] >= config.ensemble_changes_window_ms / 1000:
            del times[0]
        if len(times) >= config.ensemble_changes_max:
            raise EnsembleChangesExceededError(
                f"ledger {self._engine.ledger_id}: bookies were replaced {len(times)} times within "
                f"{config.ensemble_changes_window_ms / 1000:g} s (ledger.ensemble_changes_max): too many bookies are "
                "failing; close the ledger, and write to another when the bookies work again"
            )
        times.append(now)
        self.changes += 1

    async def _find_replacements(self, chosen: dict[int, Channel]) -> NotEnoughBookiesError | None:
        """Puts connected bookies for failed slots into `chosen`; returns the shortage, if there is one.

        Every round chooses or rules out at least one bookie, so the rounds are no more than the bookies.
        """
        engine = self._engine
        ruled_out: dict[BookieId, None] = {}
        while True:
            for position in [position for position, channel in chosen.items() if channel.is_lost]:
                ruled_out[chosen.pop(position).bookie_id] = None
            missing = [slot.position for slot in self._failed() if slot.position not in chosen]
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
        """Picks by the placement rules, for all of these slots, or otherwise for one of them.

        A bookie that failed lately is picked only if no other is left.
        """
        engine = self._engine
        ensemble = [
            chosen[position].bookie_id if position in chosen else bookie
            for position, bookie in enumerate(engine.change.ensemble)
        ]
        # Also those whose own slot has a new bookie now: if that one is lost before the change, they are still in it.
        excluded = (*ruled_out, *engine.change.ensemble)
        lately = tuple(bookie_id for bookie_id in self._failed_at if self.has_failed_before(bookie_id))
        shortage: NotEnoughBookiesError | None = None
        choices = [missing, *([position] for position in missing)]
        for avoided, positions in itertools.product(dict.fromkeys((lately, ())), choices):
            try:
                new = engine.placement.replace(
                    positions, ensemble, engine.sizes, engine.bookies.candidates(), exclude=(*excluded, *avoided)
                )
            except NotEnoughBookiesError as error:
                shortage = error if positions is missing else shortage
            else:
                return {position: new.ensemble[position] for position in positions}
        assert shortage is not None
        raise shortage

    async def _wait_for_somebody(self, shortage: NotEnoughBookiesError, *, has_paused: bool) -> None:
        """Gives new bookies time to come, and then the failed ones another chance."""
        engine = self._engine
        now = self._loop.time()
        if self._short_since is None:
            self._short_since = now
            self._warn_of(shortage, now)
        failed = self._failed()
        can_go_on = engine.pending.can_continue_without([slot.position for slot in failed])
        if not can_go_on and now - self._short_since >= engine.config.replacement_wait_ms / 1000:
            raise shortage
        if not has_paused:
            await self._pause()
        found = await self._channels([slot.bookie_id for slot in failed])
        for slot, channel in zip(failed, found, strict=True):
            if not isinstance(channel, MagnetarError):
                engine.pending.forget([slot.position])  # It gets everything again; what it had may be lost with it.
                self._try(slot, channel)

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
        """Returns for each bookie an attached channel, or the reason why it has none. All are asked for at once."""
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
                for attached in ready.values():  # Nothing stays attached when this task is cancelled.
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
        """Attaches before it awaits anything else: until then, another writer of the ledger may get the same
        channel."""
        try:
            channel = await self._engine.bookies.channel(bookie_id, ledger_id=self._engine.ledger_id)
            channel.attach(self._engine.ledger_id, self._engine)
        except MagnetarError as error:
            return error
        except LookupError:
            return BookieUnavailableError(f"another writer in this process writes the ledger to {bookie_id}")
        return channel

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
