"""The connections to a bookie: v2 for adds, reads of entries and batch reads; v3 for the requests that v2 lacks.

Invariant: v2 has no request number. An answer to an add belongs to the ledger's writer; an answer to a read, to the
           first request for that entry; an answer to a batch read carries the number we gave it. A read that was given
           up keeps its place: its late answer must not be taken for that of a later read of the same entry. Until it
           comes, the entry is read in v3 (`is_ambiguous`). The answer to a read that fences is a promise, so such a
           read is alone with its entry here: other reads of the entry travel in v3 meanwhile. Answers in v3 are linked
           by number.
Limits:    Buffers that the transport does not take wait here. When they are more than `unsent_bytes_max`, the
           connection is unwritable until the bookie reads again.
Failure:   Whatever the reason, the owner is called once for the loss, with an error that names the bookie.
Read next: runtime/framed_connection.py; channel.py
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.errors import BookieUnavailableError, MagnetarError, RemoteProtocolError
from magnetar.ids import BookieId
from magnetar.ledger.channels.pending_requests import Pending, PendingReads, PendingRequest
from magnetar.runtime.framed_connection import ConnectionCounters, FramedConnection, PrivateInbox
from magnetar.wire.bookkeeper import messages as m
from magnetar.wire.bookkeeper.codes import code_of_number
from magnetar.wire.bookkeeper.ends import decode_response, decode_responses
from magnetar.wire.bookkeeper.frames import Buffer, frame_end
from magnetar.wire.bookkeeper.hot_path import AddResponseRun, scan_add_responses, scan_read_responses

RECEIVE_BYTES: Final = 256 * 1024  # One read of a busy socket brings about this much.
_TRANSPORT_BYTES_HIGH: Final = 2**20  # What the transport takes before it asks to wait: a turn's worth of adds.
_ANSWERS: Final[dict[type[m.Request], type[m.Response]]] = {
    m.AddEntry: m.AddResponse,
    m.ReadEntry: m.ReadResponse,
    m.ReadLac: m.ReadLacResponse,
    m.WriteLac: m.WriteLacResponse,
    m.ForceLedger: m.ForceLedgerResponse,
    m.GetBookieInfo: m.GetBookieInfoResponse,
    m.ListEntries: m.ListEntriesResponse,
    m.Auth: m.AuthResponse,
    m.StartTls: m.StartTlsResponse,
}

_Key = tuple[int, int]


class ConnectionOwner(Protocol):
    """The channel, as its connections see it."""

    def on_adds_answered(self, run: AddResponseRun) -> None: ...
    def on_answered(self, pending: Pending, answers: int) -> None:
        """Is called before the caller of the request is answered."""

    def on_room(self) -> None:
        """Is called when there is room again, after there was none."""

    def on_connection_lost(self, error: MagnetarError) -> None:
        """Is called once."""


class Connection(FramedConnection):
    """Is made for one channel, and gets its transport from a dialler."""

    __slots__ = ("_asked_at", "_buffer", "_owner", "_writable_bytes_max", "bookie_id", "error")

    def __init__(self, bookie_id: BookieId, owner: ConnectionOwner, *, unsent_bytes_max: int) -> None:
        self._buffer = PrivateInbox(RECEIVE_BYTES, frame_end)
        super().__init__(self._buffer, ConnectionCounters(), transport_bytes_high=_TRANSPORT_BYTES_HIGH)
        self.bookie_id = bookie_id
        self.error: MagnetarError | None = None
        """The reason for the loss, as soon as it is known."""
        self._owner = owner
        self._writable_bytes_max = unsent_bytes_max
        self._asked_at: float | None = None  # When the first bytes were sent since the bookie was last heard.

    def on_received(self, buffer: bytearray, start: int, end: int) -> int:
        self._asked_at = None
        return self.take_frames(buffer, start, end)

    @abstractmethod
    def take_frames(self, buffer: bytearray, start: int, end: int) -> int:
        """Takes all whole frames of the region and returns where the rest begins. RemoteProtocolError: the end."""

    def on_failed(self, error: MagnetarError) -> None:
        if not isinstance(error, RemoteProtocolError):
            raise error
        lost = BookieUnavailableError(f"bookie {self.bookie_id} sent what it must not: {error}")
        lost.__cause__ = error
        self.lose(lost)

    @property
    def silent_s(self) -> float:
        """Seconds since something was sent, if nothing at all was heard since."""
        return 0.0 if self._asked_at is None else self._loop.time() - self._asked_at

    @property
    def is_writable(self) -> bool:
        return not self._transport_is_full or self._unsent_bytes <= self._writable_bytes_max

    def send(self, parts: Sequence[Buffer]) -> None:
        if self._asked_at is None:
            self._asked_at = self._loop.time()
        super().send(parts)

    def send_now(self, parts: Sequence[Buffer]) -> None:
        if self._asked_at is None:
            self._asked_at = self._loop.time()
        super().send_now(parts)

    def resume_writing(self) -> None:
        was_writable = self.is_writable
        super().resume_writing()
        if not was_writable and self.is_writable:  # The transport may have asked to wait again.
            self._owner.on_room()

    def lose(self, error: MagnetarError) -> None:
        """Breaks the connection; the owner is called in a later turn of the loop."""
        if self.error is None:
            self.error = error
            self.abort()

    def on_closed(self, exc: Exception | None) -> None:
        if self.error is None:
            why = "the bookie closed it" if exc is None else str(exc) or type(exc).__name__
            self.error = BookieUnavailableError(f"the connection to bookie {self.bookie_id} was lost: {why}")
        self._owner.on_connection_lost(self.error)


class V2Connection(Connection):
    __slots__ = ("_batches", "_batches_made", "_more_reads", "_reads", "fencing", "given_up")

    def __init__(self, bookie_id: BookieId, owner: ConnectionOwner, *, unsent_bytes_max: int) -> None:
        super().__init__(bookie_id, owner, unsent_bytes_max=unsent_bytes_max)
        self.given_up = 0
        """Reads that were given up and may still be answered."""
        self.fencing = 0
        """Reads that fence and may still be answered."""
        self._reads: dict[_Key, PendingReads] = {}
        self._more_reads: dict[_Key, deque[PendingReads]] = {}  # Further reads of the same entry, after the first.
        self._batches: dict[int, PendingRequest] = {}
        self._batches_made = 0

    def is_ambiguous(self, ledger_id: int, entry_id: int, *, fences: bool = False) -> bool:
        key = (ledger_id, entry_id)
        first = self._reads.get(key)
        if first is None:
            return False
        if fences or first.fence_with is not None:
            return True
        return first.is_over or any(later.is_over for later in self._more_reads.get(key, ()))

    def expect_reads(self, reads: PendingReads) -> None:
        ledger_id, waiting = reads.ledger_id, self._reads
        if reads.fence_with is not None:
            self.fencing += len(reads.unanswered)
        for entry_id in reads.unanswered:
            key = (ledger_id, entry_id)
            if key in waiting:
                assert reads.fence_with is None, "a read that fences is alone with its entry"
                self._more_reads.setdefault(key, deque()).append(reads)
            else:
                waiting[key] = reads

    def next_batch_number(self) -> int:
        self._batches_made += 1
        return self._batches_made

    def expect_batch(self, pending: PendingRequest) -> None:
        self._batches[pending.number] = pending

    def give_up(self, pending: Pending) -> None:
        """Keeps the place of a request whose caller has left."""
        if isinstance(pending, PendingReads):
            self.given_up += len(pending.unanswered)
        elif isinstance(pending, PendingRequest):
            self._batches.pop(pending.number, None)

    def unanswered(self) -> list[Pending]:
        """Returns all requests with a waiting caller, each once."""
        found: dict[Pending, None] = dict.fromkeys(self._reads.values())
        for later in self._more_reads.values():
            found.update(dict.fromkeys(later))
        found.update(dict.fromkeys(self._batches.values()))
        return [pending for pending in found if not pending.is_over]

    def take_frames(self, buffer: bytearray, start: int, end: int) -> int:
        while start < end and self.error is None:
            adds = scan_add_responses(buffer, start, end)
            if adds.codes:
                start = adds.end
                self._owner.on_adds_answered(adds)
                continue
            reads = scan_read_responses(buffer, start, end, is_ours=self._buffer.is_large)
            if reads.codes:
                start = reads.end
                self._on_reads(reads.keys, reads.codes, reads.bodies)
                continue
            decoded = decode_response(buffer, start, end, m.V2)
            if decoded is None:
                break
            start = decoded.end
            self._on_other(decoded.response)
        return start

    def _on_reads(self, keys: Sequence[_Key], codes: Sequence[int], bodies: Sequence[Buffer]) -> None:
        """Passes to each `PendingReads` all consecutive answers for it in one call."""
        if any(codes):
            for code in codes:
                code_of_number(code)
        current: PendingReads | None = None
        first = 0
        for at, key in enumerate(keys):
            reads = self._take(key)
            if reads is not current:
                if current is not None:
                    self._deliver(current, keys[first:at], codes[first:at], bodies[first:at])
                current, first = reads, at
            if reads is None:
                raise RemoteProtocolError(f"an answer to a read of ledger and entry {key}, which was not asked for")
        if current is not None:
            self._deliver(current, keys[first:], codes[first:], bodies[first:])

    def _take(self, key: _Key) -> PendingReads | None:
        """Returns the oldest request for the entry; the caller of this method must answer it."""
        reads = self._reads.pop(key, None)
        if reads is not None and reads.fence_with is not None:
            self.fencing -= 1
        if self._more_reads and (later := self._more_reads.get(key)):
            self._reads[key] = later.popleft()
            if not later:
                del self._more_reads[key]
        return reads

    def _deliver(
        self, reads: PendingReads, keys: Sequence[_Key], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        if reads.is_over:
            self.given_up -= len(keys)
            return
        self._owner.on_answered(reads, len(keys))
        reads.answer([entry_id for _, entry_id in keys], codes, bodies)

    def _on_other(self, response: m.AnyResponse) -> None:
        if not isinstance(response, m.BatchReadResponse):
            raise RemoteProtocolError(f"{type(response).__name__} was not asked for")
        pending = self._batches.pop(response.request_id, None)
        if pending is None:
            if not 0 < response.request_id <= self._batches_made:
                raise RemoteProtocolError(f"an answer to batch read {response.request_id}, which was not asked for")
            return
        self._owner.on_answered(pending, 1)
        pending.complete(response)


class V3Connection(Connection):
    __slots__ = ("_last_number", "_requests")

    def __init__(self, bookie_id: BookieId, owner: ConnectionOwner, *, unsent_bytes_max: int) -> None:
        super().__init__(bookie_id, owner, unsent_bytes_max=unsent_bytes_max)
        self._requests: dict[int, PendingRequest] = {}
        self._last_number = 0

    def ask(self, frame: bytes, pending: PendingRequest) -> None:
        """Sends the frame. Numbers only grow."""
        assert pending.number > self._last_number
        self._last_number = pending.number
        self._requests[pending.number] = pending
        self.send((frame,))

    def give_up(self, pending: PendingRequest) -> None:
        self._requests.pop(pending.number, None)

    def unanswered(self) -> list[Pending]:
        return list(self._requests.values())

    def take_frames(self, buffer: bytearray, start: int, end: int) -> int:
        responses, rest = decode_responses(buffer, start, end, m.V3)
        for response in responses:
            if self.error is None:
                self._on_response(response)
        return rest

    def _on_response(self, response: m.AnyResponse) -> None:
        number = response.txn_id
        pending = self._requests.get(number)
        if pending is None:
            if not 0 < number <= self._last_number:
                raise RemoteProtocolError(f"an answer to request {number}, which was not asked for")
            return  # A late answer, whose caller has left.
        check_answer(pending.request, response)
        del self._requests[number]
        self._owner.on_answered(pending, 1)
        pending.complete(response)


def check_answer(request: m.AnyRequest, response: m.AnyResponse) -> None:
    """Raises RemoteProtocolError if the response cannot be the answer to the request."""
    expected = _ANSWERS[type(request)]
    if not isinstance(response, (expected, m.BareResponse)):
        raise RemoteProtocolError(f"{type(response).__name__} in answer to {type(request).__name__}")
    asked, told = getattr(request, "ledger_id", None), getattr(response, "ledger_id", None)
    if told is not None and told != asked:
        raise RemoteProtocolError(f"an answer about ledger {told} to a request about ledger {asked}")
