"""The v2 connection of a channel: answers to adds, to reads of entries, to batch reads.

Invariant: v2 has no request number. An answer to an add belongs to the ledger's writer; an answer to a read, to the
           first request for that entry; an answer to a batch read carries the number we gave it. A read that was given
           up keeps its place: its late answer must not be taken for that of a later read of the same entry. Until it
           comes, the entry is read in v3 (`is_ambiguous`). The answer to a read that fences is a promise, so such a
           read is alone with its entry here: other reads of the entry travel in v3 meanwhile.
Read next: bookie_channel.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from magnetar.errors import MagnetarError, RemoteProtocolError
from magnetar.ids import BookieId
from magnetar.ledger.channels.connection import Connection
from magnetar.ledger.channels.pending_requests import Pending, PendingReads, PendingRequest
from magnetar.wire.bookkeeper.client import decode_response
from magnetar.wire.bookkeeper.codes import code_of_number
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import AddResponseRun, scan_add_responses, scan_read_responses
from magnetar.wire.bookkeeper.messages import V2, AnyResponse, BatchReadResponse

_Key = tuple[int, int]


class V2Owner(Protocol):
    """The channel, as its v2 connection sees it."""

    def on_adds_answered(self, run: AddResponseRun) -> None: ...
    def on_answered(self, pending: Pending, answers: int) -> None:
        """Is called before the caller of the request is answered."""

    def on_connection_lost(self, error: MagnetarError) -> None: ...
    def on_room(self) -> None: ...


class V2Connection:
    def __init__(self, bookie_id: BookieId, owner: V2Owner, *, unsent_bytes_max: int) -> None:
        self.link = Connection(bookie_id, self, unsent_bytes_max=unsent_bytes_max)
        self.given_up = 0
        """Reads that were given up and may still be answered."""
        self.fencing = 0
        """Reads that fence and may still be answered."""
        self._owner = owner
        self._reads: dict[_Key, PendingReads] = {}
        self._more_reads: dict[_Key, deque[PendingReads]] = {}  # Further reads of the same entry, after the first.
        self._batches: dict[int, PendingRequest] = {}
        self._batches_made = 0

    @property
    def is_writable(self) -> bool:
        return self.link.is_writable

    # --- asking -------------------------------------------------------------------------------------------------------

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

    # --- answers ------------------------------------------------------------------------------------------------------

    def on_received(self, buffer: bytearray, start: int, end: int, *, is_ours: bool) -> int:
        while start < end and self.link.error is None:
            adds = scan_add_responses(buffer, start, end)
            if adds.codes:
                start = adds.end
                self._owner.on_adds_answered(adds)
                continue
            reads = scan_read_responses(buffer, start, end, is_ours=is_ours)
            if reads.codes:
                start = reads.end
                self._on_reads(reads.keys, reads.codes, reads.bodies)
                continue
            decoded = decode_response(buffer, start, end, V2)
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

    def _on_other(self, response: AnyResponse) -> None:
        if not isinstance(response, BatchReadResponse):
            raise RemoteProtocolError(f"{type(response).__name__} was not asked for")
        pending = self._batches.pop(response.request_id, None)
        if pending is None:
            if not 0 < response.request_id <= self._batches_made:
                raise RemoteProtocolError(f"an answer to batch read {response.request_id}, which was not asked for")
            return
        self._owner.on_answered(pending, 1)
        pending.complete(response)

    def on_lost(self, error: MagnetarError) -> None:
        self._owner.on_connection_lost(error)

    def on_writable(self) -> None:
        self._owner.on_room()
