"""EnsembleSlot: one position of the ensemble that a writer sends to, the bookie in it, and how that bookie is doing.

A slot is connected (it has a channel), empty (the connection broke while the writer waited for nothing: it is connected
again with the next add), or failed (it has an error: another bookie has to take the slot). A bookie that was connected
in place of a failed one, or although it failed or refused, is on probation: it has to take an entry before it counts as
well.

An empty slot keeps its share of what is sent meanwhile in its backlog, also when the other bookies confirm it: its
bookie is still in the entry's write set, and gets the entry when it is connected again.

Failure:   A bookie that answers "too many requests" is slow, not broken. What overloads one bookie (a burst, a long
           flush) usually overloads all of them and is over soon, so replacing it at once would send everything to
           another bookie that refuses too. What it refused joins the backlog, and so does what comes meanwhile; after a
           pause all of that is sent again, and the pauses grow until it takes entries (`AddBackoff`). Entries that the
           other bookies confirmed before it refused them cannot be sent again. A bookie that still refuses
           `slow_bookie_wait_ms` after its first refusal has failed (engine.py).
Limits:    `StallDetector` compares totals at intervals, since a time for every entry would cost more than the entry: if
           of the n adds begun by a certain moment fewer than n are done now, at least one of them is that old. A stall
           is reported up to one interval late and never early.
Read next: engine.py, repair.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.writing.pending_adds import PendingAdds
from magnetar.runtime.backoff import Backoff
from magnetar.wire.bookkeeper.frames import Buffer


class StallDetector:
    __slots__ = ("_marks", "_patience_s")

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._marks: list[tuple[float, int]] = []
        """Times, and the total begun by then; both rise. Only marks that are not reached yet are kept: at most one for
        each look within the patience."""

    def is_stalled(self, now: float, begun: int, done: int) -> bool:
        """Whether something that was begun `patience_s` ago or earlier is not done. Both totals only rise."""
        marks = self._marks
        while marks and marks[0][1] <= done:
            del marks[0]
        if begun > done and (not marks or marks[-1][1] < begun):
            marks.append((now, begun))
        return bool(marks) and now - marks[0][0] >= self._patience_s

    def reset(self) -> None:
        """The totals begin at 0 again."""
        self._marks.clear()


_PAUSE_FIRST_S: Final = 0.02
_PAUSE_LONGEST_S: Final = 0.5


class EnsembleSlot:
    __slots__ = (
        "answered",
        "backlog",
        "backlog_bytes",
        "backlog_entries",
        "backoff_timer",
        "bookie_id",
        "cannot_wait",
        "channel",
        "error",
        "is_on_probation",
        "pauses",
        "position",
        "refused_since",
        "sent",
        "slow_since",
        "stalls",
    )

    def __init__(self, position: int, bookie_id: BookieId, patience_s: float) -> None:
        self.position = position
        self.bookie_id = bookie_id
        self.channel: Channel | None = None
        self.error: MagnetarError | None = None
        """Why it failed."""
        self.cannot_wait = False
        """The bookie said that it takes no more entries, so delaying its replacement would gain nothing."""
        self.is_on_probation = False
        """Whether the bookie takes entries is not known yet: it was connected because of a failure or a refusal."""
        self.pauses: Backoff | None = None
        """How long to wait after each refusal. Set while the bookie has too many requests."""
        self.refused_since: float | None = None
        """When the bookie first refused, if it has taken nothing since."""
        self.backoff_timer: asyncio.TimerHandle | None = None
        """Set during such a pause: nothing is sent to the bookie."""
        self.sent = 0
        self.answered = 0
        """Both count adds since the bookie was connected."""
        self.slow_since: float | None = None
        """Since when the bookie does not read, or lags too far: the writer waits for it."""
        self.stalls = StallDetector(patience_s)
        self.backlog: list[Buffer] = []
        """Frames that are to be sent once the slot is connected, or once the pause is over."""
        self.backlog_entries = self.backlog_bytes = 0

    @property
    def unanswered(self) -> int:
        return max(0, self.sent - self.answered)

    @property
    def is_refusing(self) -> bool:
        """Whether the bookie is given a pause, or has not answered yet whether it takes what it refused."""
        return self.backoff_timer is not None or (self.pauses is not None and self.unanswered > 0)

    @property
    def is_empty(self) -> bool:
        return self.channel is None and self.error is None

    def connect(self, channel: Channel) -> None:
        self.bookie_id = channel.bookie_id
        self.channel = channel
        self.error = None
        self.cannot_wait = False
        self.sent = self.answered = 0
        self.slow_since = None
        self.is_on_probation = False
        self.stalls.reset()

    def disconnect(self, error: MagnetarError | None) -> Channel | None:
        """Returns the channel that was in use. Without an error the slot is empty afterwards, otherwise failed."""
        channel, self.channel = self.channel, None
        self._end_backoff()
        self.error = self.error or error
        if self.error is not None:
            self.take_backlog()  # The replacement gets what is not confirmed, and nothing else.
        return channel

    def add_to_backlog(self, frames: list[Buffer], entries: int) -> None:
        self.backlog += frames
        self.backlog_entries += entries
        self.backlog_bytes += sum(map(len, frames))

    def take_backlog(self) -> tuple[list[Buffer], int]:
        """Returns the frames and the number of their entries; the backlog is empty afterwards."""
        taken = self.backlog, self.backlog_entries
        self.backlog, self.backlog_entries, self.backlog_bytes = [], 0, 0
        return taken

    def end_probation(self) -> None:
        """The bookie has taken entries."""
        self.is_on_probation = False
        self.pauses = self.refused_since = None

    def _end_backoff(self) -> None:
        if self.backoff_timer is not None:
            self.backoff_timer.cancel()
            self.backoff_timer = None
        self.pauses = self.refused_since = None


class AddBackoff:
    """Sends adds again after a pause, for all slots of one write engine whose bookies have too many requests."""

    def __init__(
        self, pending: PendingAdds[Any], random: Random, on_pause_over: Callable[[EnsembleSlot], None]
    ) -> None:
        """`on_pause_over` sends the slot's backlog."""
        self._pending = pending
        self._random = random
        self._on_pause_over = on_pause_over
        self._loop = asyncio.get_running_loop()

    def on_refused(self, slot: EnsembleSlot, entry_ids: Sequence[int]) -> None:
        """The slot's bookie refused these entries for now."""
        pending = self._pending
        for entry_id in entry_ids:
            if pending.first_entry_id <= entry_id < pending.next_entry_id:  # Otherwise others confirmed it meanwhile.
                slot.add_to_backlog(pending.frames(slot.position, entry_id, entry_id + 1), 1)
        slot.is_on_probation = True
        if slot.pauses is None or slot.refused_since is None:
            slot.pauses = Backoff(self._random, _PAUSE_FIRST_S, _PAUSE_LONGEST_S)
            slot.refused_since = self._loop.time()
        # Not since it was last noticed: between two refusals the bookie may have nothing to do, and seem quick.
        slot.slow_since = min(slot.refused_since, slot.slow_since or slot.refused_since)
        if slot.backoff_timer is None:
            slot.backoff_timer = self._loop.call_later(slot.pauses.next_s(), self._end_pause, slot)

    def _end_pause(self, slot: EnsembleSlot) -> None:
        slot.backoff_timer = None
        self._on_pause_over(slot)
