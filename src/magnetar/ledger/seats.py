"""A seat: one position of the ensemble a writer sends to, whoever sits there, and how it is doing.

States:    seated (a channel), empty (the connection broke while nobody waited for it: tried again with the next add),
           failed (an error; another bookie has to take the seat).
Owed:      an empty seat keeps its share of what is sent meanwhile, also when others confirm it: the bookie is still one
           of the entry's write set, and gets it when it is there again. So does one whose bookie rests (overload.py).
Trial:     whoever sits down in place of a failed bookie, or although it failed, or refused, has to take an entry first.
Read next: write_engine.py
"""

from __future__ import annotations

import asyncio

from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channel import Channel
from magnetar.ledger.overdue import Overdue
from magnetar.runtime.backoff import Backoff
from magnetar.wire.bookkeeper.frames import Buffer


class Seat:
    __slots__ = (
        "answered",
        "bookie_id",
        "cannot_wait",
        "channel",
        "error",
        "is_on_trial",
        "overdue",
        "owed",
        "owed_bytes",
        "owed_entries",
        "position",
        "refusals",
        "refused_since",
        "rest",
        "sent",
        "slow_since",
    )

    def __init__(self, position: int, bookie_id: BookieId, patience_s: float) -> None:
        self.position = position
        self.bookie_id = bookie_id
        self.channel: Channel | None = None
        self.error: MagnetarError | None = None
        """Why it failed."""
        self.cannot_wait = False
        """It said itself that it takes no more entries, so there is no point in delaying its replacement."""
        self.is_on_trial = False
        """It came, or may go on, because of a failure or a refusal: nobody knows yet whether it takes entries."""
        self.refusals: Backoff | None = None
        """Its bookie has too many requests: the pauses until it takes entries again."""
        self.refused_since: float | None = None
        """When it first had, and took nothing since."""
        self.rest: asyncio.TimerHandle | None = None
        """Such a pause: it is sent nothing."""
        self.sent = 0
        self.answered = 0
        """Both count adds since it sat down."""
        self.slow_since: float | None = None
        """It does not read, or is too far behind: the writer waits for it."""
        self.overdue = Overdue(patience_s)
        self.owed: list[Buffer] = []
        """Frames that were sent to the others while it was empty."""
        self.owed_entries = self.owed_bytes = 0

    @property
    def unanswered(self) -> int:
        return max(0, self.sent - self.answered)

    @property
    def is_refusing(self) -> bool:
        """It rests, or has not answered yet whether it takes what it had refused."""
        return self.rest is not None or (self.refusals is not None and self.unanswered > 0)

    @property
    def is_empty(self) -> bool:
        return self.channel is None and self.error is None

    def sit_down(self, channel: Channel) -> None:
        self.bookie_id = channel.bookie_id
        self.channel = channel
        self.error = None
        self.cannot_wait = False
        self._begin_anew()

    def stand_up(self, error: MagnetarError | None) -> Channel | None:
        """Returns the channel that was in use. Without an error the seat is empty, else failed."""
        channel, self.channel = self.channel, None
        self._end_rest()
        self.error = self.error or error
        if self.error is not None:
            self.take_owed()  # Whoever replaces it gets what is not confirmed, and that alone.
        return channel

    def owe(self, frames: list[Buffer], entries: int) -> None:
        self.owed += frames
        self.owed_entries += entries
        self.owed_bytes += sum(map(len, frames))

    def take_owed(self) -> tuple[list[Buffer], int]:
        """The frames, and how many entries they are."""
        taken = self.owed, self.owed_entries
        self.owed, self.owed_entries, self.owed_bytes = [], 0, 0
        return taken

    def pass_trial(self) -> None:
        """It has taken entries."""
        self.is_on_trial = False
        self.refusals = self.refused_since = None

    def _end_rest(self) -> None:
        if self.rest is not None:
            self.rest.cancel()
            self.rest = None
        self.refusals = self.refused_since = None

    def _begin_anew(self) -> None:
        self.sent = self.answered = 0
        self.slow_since = None
        self.is_on_trial = False
        self.overdue.forget()
