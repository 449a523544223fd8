"""A channel: one bookie, as the ledger protocol sees it.

Adds and runs of reads are many, so their answers go to listeners, a whole run in one call. Every other request is
awaited.

Failure:   A channel is lost as a whole and once. Every listener is called, every request fails, and the object stays
           dead: whatever was unanswered is undecided. To continue, a caller asks the pool for another channel.
Limits:    A bookie that does not read what it is sent makes the channel unwritable. A sender of adds checks this first,
           and continues when `on_writable` is called; requests are refused.
Threads:   Listeners are called on the event loop, never from inside their own call to the channel.
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


class Channel(ABC):
    """Is connected when it is made, and shared by all users of the bookie in this process."""

    bookie_id: BookieId

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the channel is lost, which is final."""

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """False while more than `ledger.channel_unsent_bytes_max` wait for a bookie that does not read."""

    @property
    @abstractmethod
    def is_v3_writable(self) -> bool:
        """Whether the v3 connection is writable; it is a separate connection."""

    # --- adds ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def can_attach(self, ledger_id: int) -> bool:
        """Whether this ledger has no writer on this channel, and no answer to an earlier writer is still to come."""

    @abstractmethod
    def attach(self, ledger_id: int, listener: AddListener) -> None:
        """Sends answers to adds of this ledger to the listener from now on. Raises BookieUnavailableError on a lost
        channel.

        Raises LookupError if `can_attach` is false: a second writer of a ledger, such as the recovery of a ledger that
        is still open in this process, needs a channel of its own. `Bookies.channel` with the ledger's id returns one.
        """

    @abstractmethod
    def detach(self, ledger_id: int, listener: AddListener, *, unanswered: int = 0) -> None:
        """Ends the calls to the listener. Does nothing if it is not attached, or if the channel is lost.

        `unanswered`: how many of its adds were not answered. Their answers mean nothing to the ledger's next writer, so
        no writer can attach for this ledger before they came.
        """

    @abstractmethod
    def send_adds(self, frames: Sequence[Buffer]) -> None:
        """Sends whole v2 add frames, in any number of buffers that do not change any more, in this turn of the loop.

        Does nothing on a lost channel: its listeners were called.
        """

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
        """Reads entries by their ids, all different, in v2. Each read is answered or fails within the time, once.

        With the ledger's master key in `fence_with` each read fences the ledger first, and `LAST_ENTRY` may be among
        the ids. Only such an answer is a promise to be fenced, and v2 links an answer to its request by ledger and
        entry alone. So a read that fences travels in v2 only if no other read of that entry is in progress there, and
        until it ends, other reads of the entry travel in v3. It also travels in v3 if the v2 connection is unwritable.

        Is refused like `request`, before anything was sent.
        """

    @abstractmethod
    async def request(self, request: AnyRequest, *, timeout_s: float) -> AnyResponse:
        """Returns the answer, in the version that the request names; its `txn_id` is chosen here. It is not for v2
        adds.

        A read that fences travels in v3 in any case: see `send_reads`.

        Raises RequestTimeoutError when the time is over, BookieUnavailableError when the channel is lost, owes too many
        answers, or is unwritable in that version. A code other than EOK is an answer, not an error.

        Adds in v3 are not refused for lack of room, and take none from other requests: like those in v2 they are
        bounded by what their writers have in flight, and a writer checks `is_v3_writable`. A request to force a ledger
        is not refused on an unwritable connection: it waits there after the adds of its writer.
        """

    @abstractmethod
    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection, for a caller that finds that the bookie is silent."""


class ReadTicket(Protocol):
    """Represents the reads of one `send_reads`."""

    @property
    def is_settled(self) -> bool:
        """Whether the listener was called for all of these reads."""

    def cancel(self) -> None:
        """Ends the calls to the listener for these reads."""
