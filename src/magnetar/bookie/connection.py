"""One client's connection: bytes in, whole runs of requests out; answers in, one write per turn of the loop out.

Reading:   into one buffer that is used again and again (receive_buffer.py). All frames of one read are handled before
           the next one.
Holding:   whoever cannot take more requests holds the connection: the socket is not read, so that TCP slows the client
           down, and what was read already waits in the buffer. Several may hold it; the last one to let go resumes it.
Writing:   answers of one turn leave in one write. What the transport has got it keeps as long as the connection lives,
           so it gets little at a time. While much waits for it, be the client slow or only the answers many, the
           connection holds itself, and who makes more answers waits for a turn (`turn_to_answer`).
Dropping:  only when the client took nothing for `unwritable_wait_ms`; then answers are dropped and counted, so a client
           that never reads costs no memory. One that reads gets every answer, however many it asked for at once, and
           however slowly. Whole answers are dropped: one whose first byte the transport has got is there to its last.
Order:     requests are handed on in their order; answers leave in the order in which they were sent.
Read next: requests.py (what becomes of a request), docs/bookie.md
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from magnetar.bookie.receive_buffer import ReceiveBuffer
from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.runtime.sockets import undelivered_bytes
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import AddRun, ReadRun
from magnetar.wire.bookkeeper.messages import AnyRequest, Refusal
from magnetar.wire.bookkeeper.server import RequestDecoder

log = logging.getLogger(__name__)

LARGE_BUFFER_S = 1.0  # How long one is kept that grew for a large frame: more of them may follow.
WRITE_BYTES_MAX = 2**20  # Given to the transport at once: enough to keep a socket busy for a turn of the loop.
UNSENT_BYTES_MAX = 4 * 2**20  # Answers that wait to be written; beyond this, no more requests are taken …
UNSENT_BYTES_LOW = 2 * 2**20  # … until so much is left: enough to write while the next requests are looked at.
ANSWERS_AT_ONCE_MAX = 16  # Being made for one client, off the hot path: each may be as large as a frame.


Sent: TypeAlias = tuple[Sequence[Buffer], int, int]
"""As it was given to `send`: the parts, how many answers they are, and how many bytes."""


class Handler(Protocol):
    """Takes what a connection received. Called on the loop; never blocks. The buffer is only lent.

    False: not taken, and the connection is held; the same is offered again when it is released. Of reads, those at the
    front may be taken and the others not: the answer is how many.
    """

    def on_adds(self, connection: Connection, buffer: bytearray, start: int, run: AddRun) -> bool: ...
    def on_reads(self, connection: Connection, run: ReadRun) -> int: ...
    def on_request(self, connection: Connection, request: AnyRequest) -> bool: ...
    def on_closed(self, connection: Connection) -> None: ...


@dataclass(slots=True)
class ConnectionCounters:
    """Of all connections of a bookie together."""

    opened: int = 0
    closed: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    refused: int = 0
    """Requests that were answered as malformed or unsupported."""
    broken: int = 0
    """Connections closed because the client broke the protocol."""
    dropped_answers: int = 0
    """Of clients that did not read them in time."""


class Connection(asyncio.BufferedProtocol):
    def __init__(self, handler: Handler, counters: ConnectionCounters, *, unwritable_wait_s: float) -> None:
        self._handler = handler
        self._counters = counters
        self._unwritable_wait_s = unwritable_wait_s
        self._decoder = RequestDecoder()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._received = ReceiveBuffer()
        self._shrinking: asyncio.TimerHandle | None = None
        self._holds = 0
        self._parsing = False
        self._unsent: list[Sent] = []
        self._unsent_bytes = 0
        self._flush_is_due = False
        self._writable = True
        self._crowded = False  # Too much is unsent: held until it is less.
        self._dropping = False
        self._give_up: asyncio.TimerHandle | None = None
        self._takes_answers = asyncio.Event()
        self._takes_answers.set()
        self._turns = asyncio.Semaphore(ANSWERS_AT_ONCE_MAX)
        self.closed = asyncio.Event()

    # --- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class.
        self._counters.opened += 1

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # The client is gone, for whatever reason.
        self._counters.closed += 1
        self._transport = None
        self._forget_unsent()
        self._cancel_give_up()
        if self._shrinking is not None:
            self._shrinking.cancel()
        self._takes_answers.set()
        self.closed.set()
        self._handler.on_closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._received.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._counters.received_bytes += nbytes
        self._received.end += nbytes
        self._handle_received()

    def pause_writing(self) -> None:
        self._writable = False
        self._takes_answers.clear()
        self.hold()
        self._wait_for_progress()

    def resume_writing(self) -> None:
        self._writable = True
        self._dropping = False
        if not self._crowded:
            self._takes_answers.set()
        self._cancel_give_up()
        self._flush_later()
        self.release()

    # --- requests -----------------------------------------------------------------------------------------------------

    def _handle_received(self) -> None:
        if self._parsing:  # A handler let go of the connection while it was being served.
            return
        self._parsing = True
        try:
            received = self._received
            while received.start < received.end and not self._holds and self._transport is not None:
                if not self._handle_next(received):
                    break
            if received.start == received.end:
                received.rewind()
                if received.is_large and self._shrinking is None:
                    self._shrinking = self._loop.call_later(LARGE_BUFFER_S, self._shrink_buffer)
        except RemoteProtocolError as error:
            self._counters.broken += 1
            log.warning("connection closed: the client broke the protocol", extra={"why": str(error)})
            self.abort()
        except MagnetarError as error:  # The journal has failed, and the bookie is about to stop: there is no answer.
            log.error("connection closed: the bookie cannot take what was sent", extra={"why": str(error)})
            self.abort()
        finally:
            self._parsing = False

    def _shrink_buffer(self) -> None:
        self._shrinking = None  # If it is in use now, it is looked at again when it is empty.
        self._received.shrink()

    def _handle_next(self, received: ReceiveBuffer) -> bool:
        """One run or one request; False if the next one is not whole yet, or nobody takes it now."""
        buffer, start, end = received.data, received.start, received.end
        adds = self._decoder.scan_adds(buffer, start, end)
        if adds.entry_ids:
            return self._handled(self._handler.on_adds(self, buffer, start, adds), adds.end)
        reads = self._decoder.scan_reads(buffer, start, end)
        if reads.entry_ids:
            taken = self._handler.on_reads(self, reads)
            received.start += (reads.end - start) // len(reads.entry_ids) * taken  # They all have the same size.
            return self._handled(taken == len(reads.entry_ids), reads.end)
        decoded = self._decoder.decode(buffer, start, end)
        if decoded is None:
            return False
        request, following = decoded
        if isinstance(request, Refusal):
            self._counters.refused += 1
            self.send((request.answer,))
            return self._handled(True, following)
        return self._handled(self._handler.on_request(self, request), following)

    def _handled(self, taken: bool, following: int) -> bool:
        if taken:
            self._received.start = following
        else:
            assert self._holds or self._transport is None, "what is not taken must be offered again"
        return taken

    def hold(self) -> None:
        """No more requests are taken from this client until `release`."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        assert self._holds > 0, "released more often than held"
        self._holds -= 1
        if self._holds == 0 and self._transport is not None:
            self._transport.resume_reading()
            if self._received.start < self._received.end:
                self._loop.call_soon(self._handle_received)  # Not from inside whoever lets go.

    # --- answers ------------------------------------------------------------------------------------------------------

    def send(self, parts: Sequence[Buffer], answers: int = 1) -> None:
        """Joins this turn's write. The parts may not change any more. Of several answers each is as many parts, or
        they are one part together: so it is known where one ends."""
        if not parts or self._transport is None:
            return
        if self._dropping:
            self._counters.dropped_answers += answers
            return
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))  # One is by far the most common.
        self._unsent.append((parts, answers, size))
        self._unsent_bytes += size
        if self._unsent_bytes > UNSENT_BYTES_MAX and not self._crowded:
            self._crowded = True
            self._takes_answers.clear()
            self.hold()
        if self._writable:
            self._flush_later()

    @property
    def takes_answers(self) -> bool:
        """False: enough waits to be written, and the connection is held."""
        return self._takes_answers.is_set()

    @contextlib.asynccontextmanager
    async def turn_to_answer(self) -> AsyncIterator[None]:
        """For who makes answers that may be large: begins when the client has read most of what was sent, or has lost
        its chance to. What was made is sent before anything else is awaited."""
        async with self._turns:
            await self._takes_answers.wait()
            yield

    def _flush_later(self) -> None:
        if self._unsent and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport is None or not self._unsent or not self._writable:
            return
        if self._unsent_bytes > WRITE_BYTES_MAX:
            self._flush_some(self._transport)
            return
        unsent, self._unsent = self._unsent, []
        self._counters.sent_bytes += self._unsent_bytes
        self._unsent_bytes = 0
        self._transport.writelines(_parts_of(unsent))
        if self._crowded:
            self._end_crowding()

    def _flush_some(self, transport: asyncio.Transport) -> None:
        """The rest follows in the next turn, if the client still reads. Whole answers only: what is left may be
        dropped, and the client would take the next answer for the rest of one that was begun."""
        unsent, self._unsent = _cut(self._unsent, WRITE_BYTES_MAX)
        size = sum([size for _, _, size in unsent])
        self._unsent_bytes -= size
        self._counters.sent_bytes += size
        transport.writelines(_parts_of(unsent))
        self._flush_later()
        if self._crowded and self._unsent_bytes <= UNSENT_BYTES_LOW:
            self._end_crowding()

    def _end_crowding(self) -> None:
        self._crowded = False
        if self._writable or self._dropping:
            self._takes_answers.set()
        self.release()

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
        self._takes_answers.set()
        self._counters.dropped_answers += sum([answers for _, answers, _ in self._unsent])
        self._forget_unsent()
        log.warning("answers are dropped: the client does not read them")

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._crowded:
            self._end_crowding()

    def _cancel_give_up(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    # --- ending -------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Closes at once; nothing more is handled or sent."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes when what was sent has left."""
        while self._transport is not None and self._unsent and self._writable:
            self._flush()
        if self._transport is not None:
            self._transport.close()


def _parts_of(sent: Sequence[Sent]) -> Sequence[Buffer]:
    if len(sent) == 1:
        return sent[0][0]
    joined: list[Buffer] = []
    for parts, _, _ in sent:
        joined += parts
    return joined


def _cut(unsent: list[Sent], bytes_min: int) -> tuple[list[Sent], list[Sent]]:
    """Whole answers from the front, as many as have so many bytes; and the others."""
    taken = 0
    before = 0
    for sent in unsent:
        if before + sent[2] >= bytes_min:
            break
        before += sent[2]
        taken += 1
    begun, left = _cut_inside(unsent[taken], bytes_min - before)
    return [*unsent[:taken], begun], [*left, *unsent[taken + 1 :]]


def _cut_inside(sent: Sent, bytes_min: int) -> tuple[Sent, list[Sent]]:
    parts, answers, size = sent
    assert len(parts) == 1 or len(parts) % answers == 0, "nobody knows where one ends"
    parts_each = max(1, len(parts) // answers)
    count = taken_bytes = 0
    while taken_bytes < bytes_min or count % parts_each:
        taken_bytes += len(parts[count])
        count += 1
    if count == len(parts):
        return sent, []
    taken = count // parts_each
    return (parts[:count], taken, taken_bytes), [(parts[count:], answers - taken, size - taken_bytes)]
