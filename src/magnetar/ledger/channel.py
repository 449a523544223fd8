"""A channel: one bookie, as the ledger protocol sees it.

Two ways:  adds and runs of reads, which are many, are told to listeners, a whole run in one call; everything else is
           a request that is awaited.
Loss:      a channel breaks as a whole and once. Every listener is told, every request fails, and the object stays
           dead: whatever was unanswered is undecided. Who wants to go on asks the pool for another channel.
Room:      a bookie that does not read what it is sent makes the channel unwritable. Who sends adds looks first, and
           goes on when `on_writable` is called; requests are refused.
Calls:     listeners are called on the event loop, never from inside a call of their own to the channel.
Read next: bookie_channel.py (the implementation), bookies.py (where channels come from)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from magnetar.errors import MagnetarError
from magnetar.ids import BookieId
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.messages import AnyRequest, AnyResponse


class AddListener(Protocol):
    """Whoever writes a ledger through channels."""

    def on_add_answers(self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int]) -> None:
        """The answers to adds of this ledger that came in one read: numbers of `Code`, 0 being EOK. All are known ones.

        They come in the bookie's order, which need not be that of the entries.
        """

    def on_channel_lost(self, channel: Channel, error: MagnetarError) -> None:
        """Whatever was unanswered there is undecided. The channel is dead, and this listener detached from it."""

    def on_writable(self, channel: Channel) -> None:
        """There is room again."""


class ReadListener(Protocol):
    """Whoever reads many entries at once."""

    def on_read_answers(
        self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        """Of one `send_reads`, as many as came in one read. A body is empty where the code is not 0; it may be kept."""

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:
        """Those of one `send_reads` that have no answer: not in time, or the channel is lost."""


class Channel(ABC):
    """Connected when it is made. Shared by everybody in this process who speaks to the bookie."""

    bookie_id: BookieId

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """For good."""

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """False: more than `ledger.channel_unsent_bytes_max` wait for a bookie that does not read."""

    @property
    @abstractmethod
    def is_full_writable(self) -> bool:
        """The same of what travels in v3: it has a connection of its own."""

    # --- adds ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def can_attach(self, ledger_id: int) -> bool:
        """Nobody writes this ledger through this channel, and no answer to somebody who did is still to come."""

    @abstractmethod
    def attach(self, ledger_id: int, listener: AddListener) -> None:
        """Answers to adds of this ledger go to the listener from now on. BookieUnavailableError if the channel is lost.

        LookupError if `can_attach` is false: a second writer of a ledger, such as the recovery of one that is still
        open here, needs answers of its own. `Bookies.channel` with the ledger's id gives a channel that has room.
        """

    @abstractmethod
    def detach(self, ledger_id: int, listener: AddListener, *, unanswered: int = 0) -> None:
        """The listener hears no more. Nothing happens if it is not attached, or the channel is lost.

        `unanswered`: how many adds it has sent here that were not answered. Their answers say nothing to whoever
        writes the ledger next, so nobody can attach to it here before they came.
        """

    @abstractmethod
    def send_adds(self, frames: Sequence[Buffer]) -> None:
        """Whole v2 add frames in any number of buffers (header, payload, header, payload …), which do not change any
        more. Sent in order, in this turn of the loop. Nothing happens on a lost channel: its listeners were told."""

    # --- everything else ----------------------------------------------------------------------------------------------

    @abstractmethod
    def send_reads(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        listener: ReadListener,
        *,
        timeout_s: float,
        fence_with: bytes | None = None,
    ) -> ReadTicket:
        """Reads of entries by their ids, all different, in v2. Each is answered or fails within the time, once.

        With the ledger's master key in `fence_with` each of them fences the ledger first, and `LAST_ENTRY` may be among
        them. Only such an answer is a promise to be fenced, and v2 links an answer to its request by ledger and entry
        alone: so a read that fences travels in v2 only while nothing else is under way there for that entry, and as
        long as it is, others go to v3. It also goes to v3 when the connection for v2 is unwritable.

        Refused like `request`, before anything was sent.
        """

    @abstractmethod
    async def request(self, request: AnyRequest, *, timeout_s: float) -> AnyResponse:
        """The answer, in whichever version the request says; its `txn_id` is chosen here. Not for v2 adds.

        A read that fences travels in v3, whatever it says: see `send_reads`.

        RequestTimeoutError when the time is over, BookieUnavailableError when the channel is lost, owes too many
        answers, or is unwritable in that version. A code other than EOK is an answer, not an error.

        Adds in v3 are not refused for want of room: like those in v2 they are bounded by what their writers have in
        flight, and a writer looks at `is_full_writable`.
        """

    @abstractmethod
    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection: for whoever finds out that the bookie behind it is silent."""


class ReadTicket(Protocol):
    """What `send_reads` returns."""

    @property
    def is_settled(self) -> bool:
        """The listener was told about all of these reads."""

    def cancel(self) -> None:
        """The listener hears no more of these reads."""
