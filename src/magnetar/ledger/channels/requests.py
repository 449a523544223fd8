"""The requests of a channel: sent in v2 or v3, answered, out of time, or given up.

Reads of entries and batch reads travel in v2. Requests that v2 lacks travel in v3, and so does a read whose answer in
v2 could be mistaken for another's. The v3 connection is opened when it is first needed, and requests wait for it.

Invariant: Every request is in the books (`_owed`, the wheel of deadlines, a connection) until it is over, and leaves
           all of them before its caller is answered.
Limits:    `ledger.requests_in_flight_max` counts requests of both versions, and no adds: their writers bound those in
           v3 as they do those in v2, so that adds take no room from requests.
Read next: pending_requests.py, connection.py
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import BookieUnavailableError, LocalProtocolError, MagnetarError, RequestTimeoutError
from magnetar.ids import BookieId
from magnetar.ledger.channels.connection import V2Connection, V3Connection
from magnetar.ledger.channels.pending_requests import (
    Deadlines,
    Pending,
    PendingReads,
    PendingRequest,
    ReadListener,
    own_copy,
)
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import encode_request
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import encode_fencing_reads, encode_reads
from magnetar.wire.bookkeeper.messages import (
    V3,
    AddEntry,
    AnyRequest,
    AnyResponse,
    BatchRead,
    ForceLedger,
    ReadEntry,
    ReadResponse,
)

if TYPE_CHECKING:
    from magnetar.ledger.channels.channel import Channel

_Awaited: TypeAlias = tuple[asyncio.Future[AnyResponse], Pending]


class ChannelRequests:
    def __init__(self, bookie_id: BookieId, config: LedgerConfig, channel: Channel, v2: V2Connection) -> None:
        self._bookie_id = bookie_id
        self._config = config
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._owed = 0
        self._adds_owed = 0  # The adds among them.
        self._numbers = 0
        self.has_answered = False
        """Any answer counts as a sign of life of the bookie."""
        self._v2 = v2
        self._v3: V3Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[PendingRequest, bytes] = {}  # Frames for the v3 connection.

    @property
    def is_idle(self) -> bool:
        return not self._owed

    @property
    def is_v3_writable(self) -> bool:
        return self._v3 is None or self._v3.is_writable

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
        future, pending = self._ask(request, timeout_s)
        try:
            return await future
        finally:
            self.give_up(pending)  # If the caller has stopped waiting; otherwise it is over.

    def send_reads(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        listener: ReadListener,
        *,
        timeout_s: float,
        fence_with: bytes | None = None,
    ) -> PendingReads:
        """Reads entries by their ids, all different, in v2. Each read is answered or fails within the time, once.

        With the ledger's master key in `fence_with` each read fences the ledger first, and `LAST_ENTRY` may be among
        the ids. Only such an answer is a promise to be fenced, and v2 links an answer to its request by ledger and
        entry alone. So a read that fences travels in v2 only if no other read of that entry is in progress there, and
        until it ends, other reads of the entry travel in v3. It also travels in v3 if the v2 connection is unwritable.

        Is refused like `request`, before anything was sent.
        """
        v2 = self._v2
        together, apart = self._divided(ledger_id, entry_ids, fences=fence_with is not None)
        if together:
            self._check_room(v2, len(entry_ids))
        if apart:
            self._check_room(self._v3, len(entry_ids))
        reads = PendingReads(self, self._channel, timeout_s, ledger_id, together, listener, fence_with)
        assert len(reads.unanswered) == len(together), "an entry is asked for once"
        if together:
            if fence_with is None:
                frames = encode_reads(ledger_id, together)
            else:
                frames = encode_fencing_reads(ledger_id, together, fence_with)
            v2.expect_reads(reads)
            self._begin(reads)
            v2.send((frames,))
        for entry_id in apart:
            self._read_apart(reads, entry_id)
        return reads

    def _divided(
        self, ledger_id: int, entry_ids: Sequence[int], *, fences: bool
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Returns the reads that travel in v2, and those that travel in v3."""
        v2 = self._v2
        if fences:
            if not v2.is_writable:  # Writers have filled it, and a fence must not wait for them.
                return (), entry_ids
        elif not v2.given_up and not v2.fencing:
            return entry_ids, ()
        apart = [entry_id for entry_id in entry_ids if v2.is_ambiguous(ledger_id, entry_id, fences=fences)]
        if not apart:
            return entry_ids, ()
        return [entry_id for entry_id in entry_ids if entry_id not in apart], apart

    def _read_apart(self, reads: PendingReads, entry_id: int) -> None:
        key = reads.fence_with
        request = ReadEntry(
            reads.ledger_id, entry_id, fence=key is not None, master_key=key, high_priority=key is not None
        )
        pending = self._ask_v3(request, reads.timeout_s)
        reads.apart.append(pending)

        def tell(future: asyncio.Future[AnyResponse]) -> None:
            error = future.exception()
            if error is None:
                response = future.result()
                body = response.body if isinstance(response, ReadResponse) else b""
                reads.listener.on_read_answers(self._channel, [entry_id], [int(response.code)], [body])
            else:
                assert isinstance(error, MagnetarError)
                reads.listener.on_reads_failed(self._channel, [entry_id], error)

        pending.future.add_done_callback(tell)

    def _ask(self, request: AnyRequest, timeout_s: float) -> _Awaited:
        """Encodes before it waits, so that an invalid request fails at once. Room counts only where the request
        travels."""
        match request:
            case ReadEntry(version=version, fence=False) if version != V3:
                if not self._v2.is_ambiguous(request.ledger_id, request.entry_id):
                    self._check_room(self._v2)
                    return self._ask_read(request, timeout_s)
            case BatchRead(version=version) if version != V3:
                self._check_room(self._v2)
                batch = self._ask_batch(request, timeout_s)
                return batch.future, batch
            case ReadEntry():
                pass
            case _ if request.version != V3:
                raise LocalProtocolError(f"{type(request).__name__} must be sent in v3, or by the calls for adds")
        match request:
            case AddEntry():
                self._check_alive()
            case ForceLedger():  # Its writer's own adds may fill the connection: it waits after them.
                self._check_bound(1)
            case _:
                self._check_room(self._v3)
        pending = self._ask_v3(request, timeout_s)
        return pending.future, pending

    def _ask_read(self, request: ReadEntry, timeout_s: float) -> _Awaited:
        frame = encode_request(request)
        single = _Single(self._loop.create_future(), request)
        reads = PendingReads(self, self._channel, timeout_s, request.ledger_id, (request.entry_id,), single)
        self._v2.expect_reads(reads)
        self._begin(reads)
        self._v2.send((frame,))
        return single.future, reads

    def _ask_batch(self, request: BatchRead, timeout_s: float) -> PendingRequest:
        number = self._v2.next_batch_number()
        frame = encode_request(dataclasses.replace(request, request_id=number))
        pending = PendingRequest(self, timeout_s, request, number)
        self._v2.expect_batch(pending)
        self._begin(pending)
        self._v2.send((frame,))
        return pending

    def _ask_v3(self, request: AnyRequest, timeout_s: float) -> PendingRequest:
        self._numbers += 1
        number = self._numbers
        frame = encode_request(dataclasses.replace(request, version=V3, txn_id=number))
        pending = PendingRequest(self, timeout_s, request, number, is_v3=True)
        self._begin(pending)
        if self._v3 is not None:
            self._v3.ask(frame, pending)
        else:
            self._waiting[pending] = frame
            if self._opening is None:
                self._opening = self._loop.create_task(self._open_v3(), name=f"bookie-v3 {self._bookie_id}")
        return pending

    async def _open_v3(self) -> None:
        connection = V3Connection(
            self._bookie_id, self._channel, unsent_bytes_max=self._config.channel_unsent_bytes_max
        )
        try:
            await self._channel.open(lambda: connection)
        except MagnetarError as error:
            waiting, self._waiting = self._waiting, {}
            for pending in waiting:
                self._settle(pending, 1)
                pending.fail(error)
            return
        finally:
            self._opening = None
        self._v3 = connection
        if (lost := self._channel.error) is not None:
            connection.lose(lost)
            return
        waiting, self._waiting = self._waiting, {}
        for pending, frame in waiting.items():
            connection.ask(frame, pending)

    def _check_alive(self) -> None:
        if (error := self._channel.error) is not None:
            raise BookieUnavailableError(str(error))

    def _check_room(self, connection: V2Connection | V3Connection | None, answers: int = 1) -> None:
        """None stands for a connection that will be opened."""
        self._check_bound(answers)
        if connection is not None and not connection.is_writable:
            raise BookieUnavailableError(f"bookie {self._bookie_id} does not read what it is sent")

    def _check_bound(self, answers: int) -> None:
        self._check_alive()
        owed = self._owed - self._adds_owed
        if owed + answers > self._config.requests_in_flight_max:
            raise BookieUnavailableError(
                f"bookie {self._bookie_id} owes {owed} answers, and may owe "
                f"{self._config.requests_in_flight_max} (ledger.requests_in_flight_max)"
            )

    def _begin(self, pending: Pending) -> None:
        self._count(pending, pending.owed)
        self._deadlines.add(pending, pending.timeout_s)
        self._channel.on_used()

    def _count(self, pending: Pending, answers: int) -> None:
        self._owed += answers
        if pending.is_add:
            self._adds_owed += answers

    def on_answered(self, pending: Pending, answers: int) -> None:
        self.has_answered = True
        self._settle(pending, answers)

    def _settle(self, pending: Pending, answers: int) -> None:
        self._count(pending, -answers)
        if pending.owed == answers:
            self._deadlines.discard(pending)

    def give_up(self, pending: Pending) -> None:
        if pending.is_over:
            return
        self._forget(pending)
        pending.is_over = True

    def on_expired(self, pending: Pending) -> None:
        self._forget(pending)
        pending.fail(
            RequestTimeoutError(f"bookie {self._bookie_id} did not answer within {round(pending.timeout_s * 1000)} ms")
        )
        is_v3 = isinstance(pending, PendingRequest) and pending.is_v3
        connection = self._v3 if is_v3 else self._v2
        self._channel.on_silence(connection, pending.timeout_s)

    def _forget(self, pending: Pending) -> None:
        """Keeps account of answers that may still come for a request that was given up."""
        self._count(pending, -pending.owed)
        self._deadlines.discard(pending)
        if isinstance(pending, PendingRequest) and pending.is_v3:
            self._waiting.pop(pending, None)
            if self._v3 is not None:
                self._v3.give_up(pending)
            return
        self._v2.give_up(pending)
        if self._v2.given_up > self._config.requests_in_flight_max:
            error = BookieUnavailableError(f"bookie {self._bookie_id} owes too many answers that came too late")
            self._channel.lose(error)

    def break_connection(self, error: MagnetarError) -> None:
        if self._v3 is not None:
            self._v3.lose(error)

    def fail_all(self, error: MagnetarError) -> None:
        """Fails every request when the channel is lost."""
        if self._opening is not None:
            self._opening.cancel()
        self._deadlines.clear()
        unanswered = self._v2.unanswered() + list(self._waiting)
        self._waiting = {}
        if self._v3 is not None:
            unanswered += self._v3.unanswered()
        for pending in unanswered:
            pending.fail(error)
        self._owed = self._adds_owed = 0

    async def wait_closed(self) -> None:
        """Waits until the connections of a lost channel are closed."""
        if (opening := self._opening) is not None:
            opening.cancel()
            await asyncio.wait([opening])
        if self._v3 is not None:
            await self._v3.wait_closed()


class _Single(ReadListener):
    """Is one read that is awaited like any other request."""

    def __init__(self, future: asyncio.Future[AnyResponse], request: ReadEntry) -> None:
        self.future = future
        self._request = request

    def on_read_answers(
        self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        del channel
        if not self.future.done():
            version = self._request.version
            answer = ReadResponse(Code(codes[0]), self._request.ledger_id, entry_ids[0], bodies[0], version=version)
            self.future.set_result(answer)

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:
        del channel, entry_ids
        if not self.future.done():
            self.future.set_exception(own_copy(error))
