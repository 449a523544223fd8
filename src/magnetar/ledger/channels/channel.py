"""A channel: one bookie, as the ledger protocol sees it, over a v2 connection and, when it is first needed, a v3 one.

Adds and runs of reads are many, so their answers go to listeners, a whole run in one call. Every other request is
awaited. This module has connecting, adds and the end of a channel; requests are in requests.py.

Failure:   Both connections lead to the same process. If either is lost, the channel is lost as a whole and once: with
           only one, the state of the other would be a guess. Every listener is called, every request fails, and the
           object stays dead: whatever was unanswered is undecided. To continue, a caller asks the pool for another.
           Every request has its deadline in one wheel. If a request or a writer's adds ran out of time and nothing at
           all was heard from the bookie meanwhile, the connection is given up, unless another writer uses it: a writer
           decides better when to replace a bookie.
Limits:    At most `ledger.requests_in_flight_max` answers are owed, not counting those to adds, and as many again whose
           callers have left; after that the channel is lost. At most `ledger.channel_unsent_bytes_max` bytes wait for a
           bookie that does not read, beside what writers have in flight: then the channel is unwritable. A sender of
           adds checks this first, and continues when `on_writable` is called; requests are refused.
Read next: requests.py, pending_requests.py (listeners), connection.py, bookies.py (where channels come from)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import BookieUnavailableError, ClosedError, MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.connection import Connection, V2Connection
from magnetar.ledger.channels.pending_requests import SLOT_S, AddListener
from magnetar.ledger.channels.requests import ChannelRequests
from magnetar.wire.bookkeeper.codes import code_of_number
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import AddResponseRun

log = logging.getLogger(__name__)

Dial: TypeAlias = Callable[[Callable[[], Connection]], Awaitable[None]]
"""Makes a connection to one bookie and gives it a transport. Raises OSError, or a MagnetarError with the reason."""

_CLOSE_TIMEOUT_S = 5.0  # Closing a transport takes no network.

_CLOCK_SLACK_S = SLOT_S / 2  # A request is sent a moment after its time began to run, and clocks have steps.


class Channel:
    """Is shared by all users of the bookie in this process."""

    def __init__(self, bookie_id: BookieId, config: LedgerConfig, dial: Dial) -> None:
        """Is called by `connect` only."""
        self.bookie_id = bookie_id
        self.on_lost: Callable[[Channel, MagnetarError], None] | None = None
        """Is set by the pool; called once, after all listeners."""
        self._config = config
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self.error: MagnetarError | None = None
        """The reason why the channel is lost, or None."""
        self._loss_is_reported = False
        self._has_answered_adds = False
        self.was_turned_away = False
        """The bookie broke the connection before it sent anything."""
        self._writers: dict[int, AddListener] = {}
        self._late_adds: dict[int, int] = {}  # Ledger → answers that are still to come for a writer that left.
        self._v2 = V2Connection(bookie_id, self, unsent_bytes_max=config.channel_unsent_bytes_max)
        self._requests = ChannelRequests(bookie_id, config, self, self._v2)
        self.request = self._requests.request
        self.send_reads = self._requests.send_reads
        self.on_answered = self._requests.on_answered
        self.used_at = self._loop.time()

    @classmethod
    async def connect(cls, bookie_id: BookieId, config: LedgerConfig, dial: Dial) -> Channel:
        """Raises BookieUnavailableError within `ledger.connect_timeout_ms`."""
        channel = cls(bookie_id, config, dial)
        await channel.open(lambda: channel._v2)
        channel.on_used()  # Connecting may take longer than a channel may be idle.
        return channel

    async def open(self, make: Callable[[], Connection]) -> None:
        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                await self._dial(make)
        except TimeoutError:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id} did not accept a connection within {self._config.connect_timeout_ms} ms"
            ) from None
        except ClosedError as error:  # Raised by a bookie in this process.
            raise BookieUnavailableError(f"no connection to bookie {self.bookie_id}: {error}") from error
        except OSError as error:
            raise BookieUnavailableError(
                f"no connection to bookie {self.bookie_id}: {error.strerror or error}; does it run?"
            ) from error

    @property
    def is_lost(self) -> bool:
        """Whether the channel is lost, which is final."""
        return self.error is not None

    @property
    def is_writable(self) -> bool:
        """False while more than `ledger.channel_unsent_bytes_max` wait for a bookie that does not read."""
        return self._v2.is_writable

    @property
    def is_v3_writable(self) -> bool:
        """Whether the v3 connection is writable; it is a separate connection."""
        return self._requests.is_v3_writable

    def can_attach(self, ledger_id: int) -> bool:
        """Whether this ledger has no writer on this channel, and no answer to an earlier writer is still to come."""
        return ledger_id not in self._writers and ledger_id not in self._late_adds

    def attach(self, ledger_id: int, listener: AddListener) -> None:
        """Sends answers to adds of this ledger to the listener from now on. Raises BookieUnavailableError on a lost
        channel.

        Raises LookupError if `can_attach` is false: a second writer of a ledger, such as the recovery of a ledger that
        is still open in this process, needs a channel of its own. `Bookies.channel` with the ledger's id returns one.
        """
        if self.error is not None:
            raise BookieUnavailableError(str(self.error))
        if not self.can_attach(ledger_id):
            raise LookupError(f"ledger {ledger_id} is written by another through this channel to {self.bookie_id}")
        self._writers[ledger_id] = listener
        self.used_at = self._loop.time()

    def detach(self, ledger_id: int, listener: AddListener, *, unanswered: int = 0) -> None:
        """Ends the calls to the listener. Does nothing if it is not attached, or if the channel is lost.

        `unanswered`: how many of its adds were not answered. Their answers mean nothing to the ledger's next writer, so
        no writer can attach for this ledger before they came.
        """
        if self._writers.get(ledger_id) is not listener or self.error is not None:
            return
        del self._writers[ledger_id]
        self.used_at = self._loop.time()
        if unanswered > 0:
            self._late_adds[ledger_id] = unanswered
            self.on_silence(self._v2, self._config.add_timeout_ms / 1000)

    def send_adds(self, frames: Sequence[Buffer]) -> None:
        """Sends whole v2 add frames, in any number of buffers that do not change any more, in this turn of the loop.

        Does nothing on a lost channel: its listeners were called.
        """
        self._v2.send_now(frames)

    def on_adds_answered(self, run: AddResponseRun) -> None:
        self._has_answered_adds = True
        codes, ledger_ids = run.codes, run.ledger_ids
        if any(codes):
            for code in codes:
                code_of_number(code)
        first = ledger_ids[0]
        if ledger_ids.count(first) == len(ledger_ids):
            self._report_answers(first, run.entry_ids, codes)
            return
        by_ledger: dict[int, tuple[list[int], list[int]]] = {}
        for ledger_id, entry_id, code in zip(ledger_ids, run.entry_ids, codes, strict=True):
            entry_ids, its_codes = by_ledger.setdefault(ledger_id, ([], []))
            entry_ids.append(entry_id)
            its_codes.append(code)
        for ledger_id, (entry_ids, its_codes) in by_ledger.items():
            self._report_answers(ledger_id, entry_ids, its_codes)

    def _report_answers(self, ledger_id: int, entry_ids: list[int], codes: list[int]) -> None:
        writer = self._writers.get(ledger_id)
        if writer is not None:
            writer.on_add_answers(self, entry_ids, codes)
            return
        late = self._late_adds.pop(ledger_id, 0) - len(entry_ids)
        if late > 0:
            self._late_adds[ledger_id] = late

    def on_room(self) -> None:
        for writer in list(self._writers.values()):
            writer.on_writable(self)

    def on_used(self) -> None:
        self.used_at = self._loop.time()

    def on_silence(self, connection: Connection | None, patience_s: float) -> None:
        if connection is None or self._writers:
            return
        silent_s = connection.silent_s
        if silent_s and silent_s >= patience_s - _CLOCK_SLACK_S:  # 0: it was asked nothing.
            ms = round(silent_s * 1000)
            self.lose(BookieUnavailableError(f"nothing was heard of bookie {self.bookie_id} for {ms} ms"))

    @property
    def is_idle(self) -> bool:
        """Whether no caller uses the channel now."""
        return not self._writers and self._requests.is_idle

    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection, for a caller that finds that the bookie is silent."""
        if self.error is None:
            self.error = error
            self._break(error)

    def _break(self, error: MagnetarError) -> None:
        self._v2.lose(error)
        self._requests.break_connection(error)

    def on_connection_lost(self, error: MagnetarError) -> None:
        """Ends the channel when either connection is lost: informs every listener, and closes the other connection."""
        if self._loss_is_reported:
            return
        self._loss_is_reported = True
        self.was_turned_away = self.error is None and not (self._has_answered_adds or self._requests.has_answered)
        self.error = self.error or error
        self._break(self.error)
        self._late_adds.clear()
        writers, self._writers = self._writers, {}
        self._requests.fail_all(self.error)
        for writer in writers.values():
            writer.on_channel_lost(self, self.error)
        if self.on_lost is not None:
            self.on_lost(self, self.error)

    async def aclose(self) -> None:
        """Closes the channel; its users get an error."""
        self.lose(BookieUnavailableError(f"the channel to bookie {self.bookie_id} was closed"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._requests.wait_closed()
                await self._v2.wait_closed()
