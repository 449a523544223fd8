"""One client's connection: whole runs of requests to their handler, answers back.

Order:     Requests are handed on in their order; answers leave in the order in which they were sent. All frames of one
           read are handled before the next one.
Limits:    A handler that cannot take more requests holds the connection. The transport keeps what it was given as long
           as the connection lives, so it gets little at a time. While much waits for it, be the client slow or only the
           answers many, the connection is held, and work that makes more answers waits for a turn (`turn_to_answer`).
Failure:   Answers are dropped and counted only when the client took nothing for `unwritable_wait_ms`, so a client that
           never reads costs no memory. One that reads gets every answer, however many it asked for at once, and however
           slowly. Whole answers are dropped: one whose first byte the transport has leaves to its last.
Read next: runtime/framed_connection.py; requests.py (what becomes of a request), docs/bookie.md
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.runtime import framed_connection
from magnetar.runtime.descriptors import undelivered_bytes
from magnetar.runtime.framed_connection import UNDELIVERED, UNSENT, FramedConnection
from magnetar.runtime.receiving import Received, ReceiveMemory
from magnetar.storage.frames import ENTRY_OFFSET
from magnetar.wire.bookkeeper.ends import RequestDecoder
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import AddRun, ReadRun
from magnetar.wire.bookkeeper.messages import AnyRequest, Refusal

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 * 1024  # One read of a busy socket brings about this much; more is only touched in vain.
WRITE_BYTES_MAX: Final = 2**20  # Given to the transport at once: enough to keep a socket busy for a turn of the loop.
UNSENT_BYTES_MAX: Final = 4 * 2**20  # Answers that wait to be written; beyond this, no more requests are taken …
UNSENT_BYTES_LOW: Final = 2 * 2**20  # … until this is left: enough to write while the next requests are looked at.
ANSWERS_AT_ONCE_MAX: Final = 16  # Being made for one client, off the hot path: each may be as large as a frame.


class Handler(Protocol):
    """Takes what a connection received. Called on the loop; never blocks. The buffer is only lent.

    False: not taken, and the connection is held; the same is offered again when it is released. Of adds and of reads,
    those at the front may be taken and the others not: the answer is how many.
    """

    def on_adds(self, connection: Connection, buffer: bytearray, start: int, run: AddRun) -> int: ...
    def on_reads(self, connection: Connection, run: ReadRun) -> int: ...
    def on_request(self, connection: Connection, request: AnyRequest) -> bool: ...
    def on_closed(self, connection: Connection) -> None: ...


@dataclass(slots=True)
class ConnectionCounters(framed_connection.ConnectionCounters):
    refused: int = 0
    """Requests that were answered as malformed or unsupported."""
    dropped_answers: int = 0
    """Answers of clients that did not read them in time."""


class Connection(FramedConnection):
    _counters: ConnectionCounters

    __slots__ = (
        "_decoder",
        "_dropping",
        "_give_up",
        "_handler",
        "_takes_answers",
        "_turns",
        "_unsent_runs",
        "_unwritable_wait_s",
    )

    def __init__(
        self, handler: Handler, counters: ConnectionCounters, memory: ReceiveMemory, *, unwritable_wait_s: float
    ) -> None:
        super().__init__(Received(memory, self), counters, server="bookie", unsent_bytes_max=UNSENT_BYTES_MAX)
        self._handler = handler
        self._unwritable_wait_s = unwritable_wait_s
        self._decoder = RequestDecoder()
        self._unsent_runs: list[tuple[int, int]] = []  # Of each `send`: how many parts and answers.
        self._dropping = False
        self._give_up: asyncio.TimerHandle | None = None
        self._takes_answers = asyncio.Event()
        self._takes_answers.set()
        self._turns = asyncio.Semaphore(ANSWERS_AT_ONCE_MAX)

    # --- requests -----------------------------------------------------------------------------------------------------

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        while start < end and not self._holds and not self.is_closing:
            following = self._handle_next(buffer, start, end)
            if following == start:
                break
            start = following
        return start

    def _handle_next(self, buffer: bytearray, start: int, end: int) -> int:
        """Hands on one run or one request. Returns where the next one begins, which is `start` if this one is not whole
        yet, or was not taken."""
        adds = self._decoder.scan_adds(buffer, start, end)
        if adds.entry_ids:
            taken = self._handler.on_adds(self, buffer, start, adds)
            if taken == len(adds.entry_ids):
                return adds.end
            return self._offered_again(adds.offsets[taken] - ENTRY_OFFSET)
        reads = self._decoder.scan_reads(buffer, start, end)
        if reads.entry_ids:
            taken, count = self._handler.on_reads(self, reads), len(reads.entry_ids)
            if taken == count:
                return reads.end
            return self._offered_again(start + (reads.end - start) // count * taken)  # They all have the same size.
        decoded = self._decoder.decode(buffer, start, end)
        if decoded is None:
            return start
        request, following = decoded
        if isinstance(request, Refusal):
            self._counters.refused += 1
            self.send((request.answer,))
            return following
        return following if self._handler.on_request(self, request) else self._offered_again(start)

    def _offered_again(self, start: int) -> int:
        assert self._holds or self.is_closing, "what is not taken must be offered again"
        return start

    def on_failed(self, error: MagnetarError) -> None:
        if isinstance(error, RemoteProtocolError):
            self._counters.broken += 1
            log.warning("connection closed: the client broke the protocol", extra={"why": str(error)})
        else:  # The journal has failed, and the bookie is about to stop: there is no answer.
            log.error("connection closed: the bookie cannot take what was sent", extra={"why": str(error)})
        self.abort()

    # --- answers ------------------------------------------------------------------------------------------------------

    def send(self, parts: Sequence[Buffer], answers: int = 1) -> None:
        """Joins this turn's write. The parts may not change any more. Of several answers each is as many parts, or
        they are one part together: so it is known where one ends."""
        if not parts or self._transport is None or self.is_closing:
            return
        if self._dropping:
            self._counters.dropped_answers += answers
            return
        super().send(parts)
        self._unsent_runs.append((len(parts), answers))
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self._stop_answers()

    @property
    def takes_answers(self) -> bool:
        """False: enough waits to be written, and the connection is held."""
        return self._takes_answers.is_set()

    def _stop_answers(self) -> None:
        self._waits_for_room = True
        self._takes_answers.clear()

    def _let_answers_be_made(self) -> None:
        self._waits_for_room = False
        self._takes_answers.set()

    @contextlib.asynccontextmanager
    async def turn_to_answer(self) -> AsyncIterator[None]:
        """For work that makes answers that may be large: begins when the client has read most of what was sent, or has
        lost its chance to. What was made is sent before anything else is awaited."""
        async with self._turns:
            await self._takes_answers.wait()
            yield

    def take_unsent(self) -> tuple[list[Buffer], int]:
        """The rest follows in the next turn, if the client still reads. Whole answers only: what is left may be
        dropped, and the client would take the next answer for the rest of one that was begun."""
        unsent = self._unsent
        if self._unsent_bytes <= WRITE_BYTES_MAX:
            self._unsent = []
            self._unsent_runs.clear()
            return unsent, self._unsent_bytes
        parts, size = self._take_runs()
        self._unsent = unsent[parts:]
        return unsent[:parts], size

    def _take_runs(self) -> tuple[int, int]:
        """Removes what stands for the answers of the next write. Returns how many parts and bytes they have."""
        unsent, runs = self._unsent, self._unsent_runs
        taken = size = whole = left = each = 0
        while size < WRITE_BYTES_MAX:
            parts, answers = runs[whole]
            assert parts == 1 or parts % answers == 0, "nobody knows where one ends"
            each = max(1, parts // answers)
            end = taken + parts
            while taken < end and size < WRITE_BYTES_MAX:
                size += sum(map(len, unsent[taken : taken + each]))
                taken += each
            left = end - taken
            whole += 1
        self._unsent_runs = [*([(left, left // each)] if left else []), *runs[whole:]]
        return taken, size

    def on_progress(self) -> None:
        if self._unsent_bytes <= UNSENT_BYTES_LOW:
            self.release(UNSENT)
        if not self._transport_is_full and UNSENT not in self._holds:
            self._let_answers_be_made()

    # --- a client that does not read ----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_answers()
        self.hold(UNDELIVERED)
        self._wait_for_progress()

    def resume_writing(self) -> None:
        self._dropping = False
        self._cancel_give_up()
        self.release(UNDELIVERED)
        super().resume_writing()

    def _wait_for_progress(self) -> None:
        if self._transport is not None:
            undelivered = undelivered_bytes(self._transport)
            self._give_up = self._loop.call_later(self._unwritable_wait_s, self._look_for_progress, undelivered)

    def _look_for_progress(self, before: int) -> None:
        """Nothing was written meanwhile: if less is undelivered than before, the client reads."""
        if self._transport is not None and undelivered_bytes(self._transport) < before:
            self._wait_for_progress()
        else:
            self._begin_dropping()

    def _begin_dropping(self) -> None:
        self._dropping = True
        self._counters.dropped_answers += sum([answers for _, answers in self._unsent_runs])
        self._unsent.clear()
        self._unsent_runs.clear()
        self._unsent_bytes = 0
        self.release(UNSENT)
        self._let_answers_be_made()
        log.warning("answers are dropped: the client does not read them")

    def _cancel_give_up(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    # --- ending -------------------------------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        log.warning("connection closed by the bookie", extra={"why": why})
        self.abort()

    def on_closed(self, exc: Exception | None) -> None:
        del exc  # The reason does not matter: the client has left.
        self._unsent_runs.clear()
        self._cancel_give_up()
        self._let_answers_be_made()
        self._handler.on_closed(self)
