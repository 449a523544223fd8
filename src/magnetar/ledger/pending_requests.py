"""What is under way on a channel: whom to tell when an answer comes, when none comes in time, when none will come.

Each is told once about everything it asked for, and not at all after it was given up.
Read next: bookie_channel.py
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from magnetar.errors import BookieUnavailableError, MagnetarError
from magnetar.ledger.channel import Channel, ReadListener
from magnetar.ledger.deadlines import NO_SLOT
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.messages import AnyRequest, AnyResponse


class Keeper(Protocol):
    """The channel, as what is under way on it sees it."""

    def on_expired(self, pending: Pending) -> None: ...
    def give_up(self, pending: Pending) -> None:
        """Nothing happens if it is over."""


class Pending(ABC):
    __slots__ = ("is_over", "keeper", "slot", "timeout_s")

    def __init__(self, keeper: Keeper, timeout_s: float) -> None:
        self.keeper = keeper
        self.timeout_s = timeout_s
        self.slot = NO_SLOT
        self.is_over = False
        """Answered in full, failed or given up."""

    @property
    @abstractmethod
    def owed(self) -> int:
        """Answers that are still to come."""

    @abstractmethod
    def fail(self, error: MagnetarError) -> None:
        """None of them will come."""

    def on_expired(self) -> None:
        self.keeper.on_expired(self)


class PendingRequest(Pending):
    """One request that somebody awaits."""

    __slots__ = ("future", "is_full", "number", "request")

    def __init__(
        self, keeper: Keeper, timeout_s: float, request: AnyRequest, number: int, *, is_full: bool = False
    ) -> None:
        super().__init__(keeper, timeout_s)
        self.request = request
        self.number = number
        """Ours for it, on the connection that it travels on."""
        self.is_full = is_full
        """Whether that is the v3 connection."""
        self.future: asyncio.Future[AnyResponse] = asyncio.get_running_loop().create_future()

    @property
    def owed(self) -> int:
        return 0 if self.is_over else 1

    def complete(self, response: AnyResponse) -> None:
        self.is_over = True
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: MagnetarError) -> None:
        self.is_over = True
        if not self.future.done():
            self.future.set_exception(own_copy(error))


class PendingReads(Pending):
    """Reads of several entries of one ledger, in v2. Also what `Channel.send_reads` returns."""

    __slots__ = ("apart", "channel", "fence_with", "ledger_id", "listener", "unanswered")

    def __init__(
        self,
        keeper: Keeper,
        channel: Channel,
        timeout_s: float,
        ledger_id: int,
        ids: Iterable[int],
        to: ReadListener,
        fence_with: bytes | None = None,
    ) -> None:
        super().__init__(keeper, timeout_s)
        self.channel = channel
        self.ledger_id = ledger_id
        self.unanswered = dict.fromkeys(ids)
        self.listener = to
        self.fence_with = fence_with
        """The master key, if these fence."""
        self.apart: list[PendingRequest] = []
        """Reads that were asked for together with these, and travel in v3."""

    @property
    def owed(self) -> int:
        return 0 if self.is_over else len(self.unanswered)

    @property
    def is_settled(self) -> bool:
        return not self.owed and all(request.is_over for request in self.apart)

    def answer(self, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]) -> None:
        for entry_id in entry_ids:
            del self.unanswered[entry_id]
        self.is_over = not self.unanswered
        self.listener.on_read_answers(self.channel, entry_ids, codes, bodies)

    def fail(self, error: MagnetarError) -> None:
        self.is_over = True
        self.listener.on_reads_failed(self.channel, list(self.unanswered), error)

    def cancel(self) -> None:
        self.keeper.give_up(self)
        for request in self.apart:
            self.keeper.give_up(request)


def own_copy(error: MagnetarError) -> MagnetarError:
    """For everybody who is told of a loss: an exception that is raised collects the places it comes through."""
    if type(error) is BookieUnavailableError:
        copy = BookieUnavailableError(*error.args)
        copy.__cause__ = error.__cause__
        return copy
    return error
