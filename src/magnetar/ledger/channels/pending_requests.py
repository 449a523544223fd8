"""What is in progress on a channel: its requests, the listeners of their answers, and their deadlines.

Invariant: A request ends once: with all of its answers, with an error, or because its caller gave it up, which is not
           reported.
Limits:    One timer serves all deadlines of a channel. Time is cut into slots; what is due within one slot expires
           together, a little late and never early, in the order of `add`. A slot is a dict, so an answered request
           leaves it at once, and memory holds only what is in progress.
Threads:   Listeners are called on the event loop, never from inside their own call to the channel.
Read next: channel.py
"""

from __future__ import annotations

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.errors import BookieUnavailableError, MagnetarError
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.messages import AddEntry, AnyRequest, AnyResponse

if TYPE_CHECKING:
    from magnetar.ledger.channels.channel import Channel
    from magnetar.ledger.channels.requests import ChannelRequests

SLOT_S: Final = 0.02  # Far below any sensible time-out over a network, and far above the cost of a timer.
NO_SLOT: Final = -1


class Expiring(Protocol):
    slot: int
    """Belongs to `Deadlines`; begins as `NO_SLOT`."""

    def on_expired(self) -> None: ...


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, dict[Expiring, None]] = {}
        self._order: list[int] = []  # Heap of the numbers of slots.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = NO_SLOT

    def add(self, item: Expiring, timeout_s: float) -> None:
        slot = int((self._loop.time() + timeout_s) / SLOT_S) + 1
        found = self._slots.get(slot)
        if found is None:
            found = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
            if self._timer is None or slot < self._timer_slot:
                self._set_timer(slot)
        found[item] = None
        item.slot = slot

    def discard(self, item: Expiring) -> None:
        """Forgets an item that was answered or given up."""
        slot = self._slots.get(item.slot)
        if slot is not None:
            slot.pop(item, None)
        item.slot = NO_SLOT

    def _set_timer(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot * SLOT_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._order and (self._order[0] * SLOT_S <= now or not self._slots[self._order[0]]):
            for item in self._slots.pop(heapq.heappop(self._order)):
                item.slot = NO_SLOT
                item.on_expired()
        if self._order and self._timer is None:
            self._set_timer(self._order[0])

    def clear(self) -> None:
        """Forgets all items."""
        self._slots.clear()
        self._order.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class AddListener(Protocol):
    """Writes a ledger through channels."""

    def on_add_answers(self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int]) -> None:
        """Receives the answers to adds of this ledger that came in one read: numbers of `Code`, 0 being EOK, all of
        them known.

        They come in the bookie's order, which may differ from that of the entries.
        """

    def on_channel_lost(self, channel: Channel, error: MagnetarError) -> None:
        """Reports the loss: unanswered adds are undecided, the channel is dead, and this listener is detached from
        it."""

    def on_writable(self, channel: Channel) -> None:
        """Reports that there is room again."""


class ReadListener(Protocol):
    """Reads many entries at once."""

    def on_read_answers(
        self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        """Receives the answers to one `send_reads` that came in one read. A body is empty where the code is not 0; it
        may be kept."""

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:
        """Reports the entries of one `send_reads` without an answer: the time is over, or the channel is lost."""


class Pending(ABC):
    __slots__ = ("is_over", "keeper", "slot", "timeout_s")

    def __init__(self, keeper: ChannelRequests, timeout_s: float) -> None:
        self.keeper = keeper
        self.timeout_s = timeout_s
        self.slot = NO_SLOT
        self.is_over = False
        """Whether it was answered in full, failed or given up."""

    @property
    @abstractmethod
    def owed(self) -> int:
        """Returns the number of answers that are still to come."""

    @property
    def is_add(self) -> bool:
        """Returns True for an add in v3, which its writer bounds."""
        return False

    @abstractmethod
    def fail(self, error: MagnetarError) -> None:
        """Ends the request: no further answer will come."""

    def on_expired(self) -> None:
        self.keeper.on_expired(self)


class PendingRequest(Pending):
    """Is one request that a caller awaits."""

    __slots__ = ("future", "is_v3", "number", "request")

    def __init__(
        self, keeper: ChannelRequests, timeout_s: float, request: AnyRequest, number: int, *, is_v3: bool = False
    ) -> None:
        super().__init__(keeper, timeout_s)
        self.request = request
        self.number = number
        """The request's number on the connection that it travels on."""
        self.is_v3 = is_v3
        """Whether that is the v3 connection."""
        self.future: asyncio.Future[AnyResponse] = asyncio.get_running_loop().create_future()

    @property
    def owed(self) -> int:
        return 0 if self.is_over else 1

    @property
    def is_add(self) -> bool:
        return isinstance(self.request, AddEntry)

    def complete(self, response: AnyResponse) -> None:
        self.is_over = True
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: MagnetarError) -> None:
        self.is_over = True
        if not self.future.done():
            self.future.set_exception(own_copy(error))


class PendingReads(Pending):
    """Holds reads of several entries of one ledger, in v2. `Channel.send_reads` returns it as its ticket."""

    __slots__ = ("apart", "channel", "fence_with", "ledger_id", "listener", "unanswered")

    def __init__(
        self,
        keeper: ChannelRequests,
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
        """The master key, if these reads fence."""
        self.apart: list[PendingRequest] = []
        """Reads of the same call that travel in v3."""

    @property
    def owed(self) -> int:
        return 0 if self.is_over else len(self.unanswered)

    @property
    def is_settled(self) -> bool:
        """Whether the listener was called for all of these reads."""
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
        """Ends the calls to the listener for these reads."""
        self.keeper.give_up(self)
        for request in self.apart:
            self.keeper.give_up(request)


def own_copy(error: MagnetarError) -> MagnetarError:
    """Copies an error that several callers get: an exception that is raised collects the places it comes through."""
    if type(error) is BookieUnavailableError:
        copy = BookieUnavailableError(*error.args)
        copy.__cause__ = error.__cause__
        return copy
    return error
