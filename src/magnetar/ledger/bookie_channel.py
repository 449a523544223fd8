"""The channel to a bookie over one or two connections: v2 from the beginning, v3 when it is first needed.

One fate:  if either connection is lost, the channel is: both lead to the same process, and who lost one would have to
           guess about the other.
Time:      every request has its deadline in one wheel. A bookie from which nothing at all was heard while a request
           ran out of time, or a writer's adds did, is taken for gone, and the connection given up, unless somebody
           else writes through it: a writer knows better when to replace a bookie.
Bounds:    `ledger.requests_in_flight_max` answers are owed at most, and as many again that nobody waits for any more;
           then the channel is lost. `ledger.channel_unsent_bytes_max` bytes wait at most for a bookie that does not
           read, beside what writers have in flight.
Read next: compact_connection.py, full_connection.py, deadlines.py
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import (
    BookieUnavailableError,
    ClosedError,
    LocalProtocolError,
    MagnetarError,
    RequestTimeoutError,
)
from magnetar.ids import BookieId
from magnetar.ledger.channel import AddListener, Channel, ReadListener
from magnetar.ledger.compact_connection import CompactConnection
from magnetar.ledger.connection import Connection
from magnetar.ledger.deadlines import Deadlines
from magnetar.ledger.full_connection import FullConnection
from magnetar.ledger.pending_requests import Pending, PendingReads, PendingRequest, own_copy
from magnetar.ledger.read_answers import encode_reads
from magnetar.wire.bookkeeper.client import encode_request
from magnetar.wire.bookkeeper.codes import Code, code_of_number
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import AddResponseRun
from magnetar.wire.bookkeeper.messages import V3, AnyRequest, AnyResponse, BatchRead, ReadEntry, ReadResponse

log = logging.getLogger(__name__)

Dial: TypeAlias = Callable[[Callable[[], Connection]], Awaitable[None]]
"""Makes a connection to one bookie and gives it a transport. Raises OSError, or a MagnetarError that says why not."""

_Awaited: TypeAlias = tuple[asyncio.Future[AnyResponse], Pending]
_CLOSE_TIMEOUT_S = 5.0  # For transports to say that they are closed, which takes no network.


class BookieChannel(Channel):
    """Made by `connect`."""

    def __init__(self, bookie_id: BookieId, config: LedgerConfig, dial: Dial) -> None:
        """For `connect` only."""
        self.bookie_id = bookie_id
        self.on_lost: Callable[[BookieChannel, MagnetarError], None] | None = None
        """For the pool; called once, behind all listeners."""
        self.stray_answers = 0
        """To adds of ledgers that nobody writes through this channel."""
        self._config = config
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._error: MagnetarError | None = None
        self._everybody_was_told = False
        self._writers: dict[int, AddListener] = {}
        self._late_adds: dict[int, int] = {}  # Ledger → answers that are still to come for a writer that left.
        self._owed = 0
        self._numbers = 0
        self._compact = self._new_compact()
        self._full: FullConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[PendingRequest, bytes] = {}  # Frames for the v3 connection.
        self.used_at = self._loop.time()

    @classmethod
    async def connect(cls, bookie_id: BookieId, config: LedgerConfig, dial: Dial) -> BookieChannel:
        """BookieUnavailableError within `ledger.connect_timeout_ms`."""
        channel = cls(bookie_id, config, dial)
        await channel._open(lambda: channel._compact)
        return channel

    def _new_compact(self) -> CompactConnection:
        return CompactConnection(self.bookie_id, self, unsent_bytes_max=self._config.channel_unsent_bytes_max)

    async def _open(self, make: Callable[[], Connection]) -> None:
        try:
            async with asyncio.timeout(self._config.connect_timeout_ms / 1000):
                await self._dial(make)
        except TimeoutError:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id} did not accept a connection within {self._config.connect_timeout_ms} ms"
            ) from None
        except ClosedError as error:  # Of a bookie in this process.
            raise BookieUnavailableError(f"no connection to bookie {self.bookie_id}: {error}") from error
        except OSError as error:
            raise BookieUnavailableError(
                f"no connection to bookie {self.bookie_id}: {error.strerror or error}; does it run?"
            ) from error

    # --- adds ---------------------------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    @property
    def is_writable(self) -> bool:
        return self._compact.is_writable

    def can_attach(self, ledger_id: int) -> bool:
        return ledger_id not in self._writers and ledger_id not in self._late_adds

    def attach(self, ledger_id: int, listener: AddListener) -> None:
        if self._error is not None:
            raise BookieUnavailableError(str(self._error))
        if not self.can_attach(ledger_id):
            raise LookupError(f"ledger {ledger_id} is written by another through this channel to {self.bookie_id}")
        self._writers[ledger_id] = listener
        self.used_at = self._loop.time()

    def detach(self, ledger_id: int, listener: AddListener, *, unanswered: int = 0) -> None:
        if self._writers.get(ledger_id) is not listener or self._error is not None:
            return
        del self._writers[ledger_id]
        self.used_at = self._loop.time()
        if unanswered > 0:
            self._late_adds[ledger_id] = unanswered
            self._give_up_on_silence(self._compact, self._config.add_timeout_ms / 1000)

    def send_adds(self, frames: Sequence[Buffer]) -> None:
        self._compact.send_now(frames)

    def on_adds_answered(self, run: AddResponseRun) -> None:
        codes, ledger_ids = run.codes, run.ledger_ids
        if any(codes):
            for code in codes:
                code_of_number(code)
        first = ledger_ids[0]
        if ledger_ids.count(first) == len(ledger_ids):
            self._tell_writer(first, run.entry_ids, codes)
            return
        by_ledger: dict[int, tuple[list[int], list[int]]] = {}
        for ledger_id, entry_id, code in zip(ledger_ids, run.entry_ids, codes, strict=True):
            entry_ids, its_codes = by_ledger.setdefault(ledger_id, ([], []))
            entry_ids.append(entry_id)
            its_codes.append(code)
        for ledger_id, (entry_ids, its_codes) in by_ledger.items():
            self._tell_writer(ledger_id, entry_ids, its_codes)

    def _tell_writer(self, ledger_id: int, entry_ids: list[int], codes: list[int]) -> None:
        writer = self._writers.get(ledger_id)
        if writer is not None:
            writer.on_add_answers(self, entry_ids, codes)
            return
        late = self._late_adds.pop(ledger_id, 0) - len(entry_ids)
        if late > 0:
            self._late_adds[ledger_id] = late
        elif late < 0:
            self.stray_answers -= late

    def on_room(self) -> None:
        for writer in list(self._writers.values()):
            writer.on_writable(self)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: AnyRequest, *, timeout_s: float) -> AnyResponse:
        future, pending = self._ask(request, timeout_s)
        try:
            return await future
        finally:
            self.give_up(pending)  # If nobody waits any more; otherwise it is over.

    def send_reads(
        self, ledger_id: int, entry_ids: Sequence[int], listener: ReadListener, *, timeout_s: float
    ) -> PendingReads:
        self._check_room(len(entry_ids))
        compact = self._compact
        plain, ambiguous = entry_ids, []
        if compact.given_up:
            plain = [entry_id for entry_id in entry_ids if not compact.is_ambiguous(ledger_id, entry_id)]
            ambiguous = [entry_id for entry_id in entry_ids if compact.is_ambiguous(ledger_id, entry_id)]
        reads = PendingReads(self, self, timeout_s, ledger_id, plain, listener)
        assert len(reads.unanswered) == len(plain), "an entry is asked for once"
        if plain:
            compact.expect_reads(reads)
            self._begin(reads)
            compact.send((encode_reads(ledger_id, plain),))
        for entry_id in ambiguous:
            self._read_apart(reads, entry_id)
        return reads

    def _read_apart(self, reads: PendingReads, entry_id: int) -> None:
        pending = self._ask_full(ReadEntry(reads.ledger_id, entry_id), reads.timeout_s)
        reads.apart.append(pending)

        def tell(future: asyncio.Future[AnyResponse]) -> None:
            error = future.exception()
            if error is None:
                response = future.result()
                body = response.body if isinstance(response, ReadResponse) else b""
                reads.listener.on_read_answers(self, [entry_id], [int(response.code)], [body])
            else:
                assert isinstance(error, MagnetarError)
                reads.listener.on_reads_failed(self, [entry_id], error)

        pending.future.add_done_callback(tell)

    def _ask(self, request: AnyRequest, timeout_s: float) -> _Awaited:
        """Encoded first: what cannot be sent is not awaited."""
        self._check_room(1)
        match request:
            case ReadEntry(version=version, fence=False) if version != V3:
                if not self._compact.is_ambiguous(request.ledger_id, request.entry_id):
                    return self._ask_read(request, timeout_s)
            case BatchRead(version=version) if version != V3:
                batch = self._ask_batch(request, timeout_s)
                return batch.future, batch
            case ReadEntry():
                pass
            case _ if request.version != V3:
                raise LocalProtocolError(f"{type(request).__name__} is asked in v3, or by the calls for adds")
        pending = self._ask_full(request, timeout_s)
        return pending.future, pending

    def _ask_read(self, request: ReadEntry, timeout_s: float) -> _Awaited:
        frame = encode_request(request)
        single = _Single(self._loop.create_future(), request)
        reads = PendingReads(self, self, timeout_s, request.ledger_id, (request.entry_id,), single)
        self._compact.expect_reads(reads)
        self._begin(reads)
        self._compact.send((frame,))
        return single.future, reads

    def _ask_batch(self, request: BatchRead, timeout_s: float) -> PendingRequest:
        number = self._compact.next_batch_number()
        frame = encode_request(dataclasses.replace(request, request_id=number))
        pending = PendingRequest(self, timeout_s, request, number)
        self._compact.expect_batch(pending)
        self._begin(pending)
        self._compact.send((frame,))
        return pending

    def _ask_full(self, request: AnyRequest, timeout_s: float) -> PendingRequest:
        self._numbers += 1
        number = self._numbers
        frame = encode_request(dataclasses.replace(request, version=V3, txn_id=number))
        pending = PendingRequest(self, timeout_s, request, number, is_full=True)
        self._begin(pending)
        if self._full is not None:
            self._full.ask(frame, pending)
        else:
            self._waiting[pending] = frame
            if self._opening is None:
                self._opening = self._loop.create_task(self._open_full(), name=f"bookie-v3 {self.bookie_id}")
        return pending

    async def _open_full(self) -> None:
        connection = FullConnection(self.bookie_id, self, unsent_bytes_max=self._config.channel_unsent_bytes_max)
        try:
            await self._open(lambda: connection)
        except MagnetarError as error:
            waiting, self._waiting = self._waiting, {}
            for pending in waiting:
                self.on_answered(pending, 1)
                pending.fail(error)
            return
        finally:
            self._opening = None
        self._full = connection
        if self._error is not None:
            connection.lose(self._error)
            return
        waiting, self._waiting = self._waiting, {}
        for pending, frame in waiting.items():
            connection.ask(frame, pending)

    def _check_room(self, answers: int) -> None:
        if self._error is not None:
            raise BookieUnavailableError(str(self._error))
        if not self._compact.is_writable or (self._full is not None and not self._full.is_writable):
            raise BookieUnavailableError(f"bookie {self.bookie_id} does not read what it is sent")
        if self._owed + answers > self._config.requests_in_flight_max:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id} owes {self._owed} answers, and may owe {self._config.requests_in_flight_max} "
                "(ledger.requests_in_flight_max)"
            )

    # --- how requests end ---------------------------------------------------------------------------------------------

    def _begin(self, pending: Pending) -> None:
        self._owed += pending.owed
        self._deadlines.add(pending, pending.timeout_s)
        self.used_at = self._loop.time()

    def on_answered(self, pending: Pending, answers: int) -> None:
        self._owed -= answers
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
            RequestTimeoutError(f"bookie {self.bookie_id} did not answer within {round(pending.timeout_s * 1000)} ms")
        )
        is_full = isinstance(pending, PendingRequest) and pending.is_full
        self._give_up_on_silence(self._full if is_full else self._compact, pending.timeout_s)

    def _forget(self, pending: Pending) -> None:
        """It is not over yet; its answers, should they come, are for nobody."""
        self._owed -= pending.owed
        self._deadlines.discard(pending)
        if isinstance(pending, PendingRequest) and pending.is_full:
            self._waiting.pop(pending, None)
            if self._full is not None:
                self._full.give_up(pending)
            return
        self._compact.give_up(pending)
        if self._compact.given_up > self._config.requests_in_flight_max:
            self.lose(BookieUnavailableError(f"bookie {self.bookie_id} owes too many answers that came too late"))

    def _give_up_on_silence(self, connection: Connection | None, patience_s: float) -> None:
        if connection is not None and not self._writers and (silent_s := connection.silent_s) >= patience_s:
            ms = round(silent_s * 1000)
            self.lose(BookieUnavailableError(f"nothing was heard of bookie {self.bookie_id} for {ms} ms"))

    # --- ending -------------------------------------------------------------------------------------------------------

    @property
    def error(self) -> MagnetarError | None:
        """Why it is lost."""
        return self._error

    @property
    def is_idle(self) -> bool:
        """Nobody uses it now."""
        return not (self._writers or self._owed)

    def lose(self, error: MagnetarError) -> None:
        if self._error is None:
            self._error = error
            self._break(error)

    def _break(self, error: MagnetarError) -> None:
        self._compact.lose(error)
        if self._full is not None:
            self._full.lose(error)

    def on_connection_lost(self, error: MagnetarError) -> None:
        """Of either connection: everybody is told now, and the other connection ends too."""
        if self._everybody_was_told:
            return
        self._everybody_was_told = True
        self._error = self._error or error
        self._break(self._error)
        if self._opening is not None:
            self._opening.cancel()
        self._deadlines.clear()
        self._late_adds.clear()
        writers, self._writers = self._writers, {}
        for pending in self._unanswered():
            pending.fail(self._error)
        self._owed = 0
        for writer in writers.values():
            writer.on_channel_lost(self, self._error)
        if self.on_lost is not None:
            self.on_lost(self, self._error)

    def _unanswered(self) -> list[Pending]:
        unanswered = self._compact.unanswered() + list(self._waiting)
        self._waiting = {}
        return unanswered if self._full is None else unanswered + self._full.unanswered()

    async def aclose(self) -> None:
        """Everybody who still uses it is told."""
        self.lose(BookieUnavailableError(f"the channel to bookie {self.bookie_id} was closed"))
        if (opening := self._opening) is not None:
            opening.cancel()
            await asyncio.wait([opening])
        connections = [self._compact] if self._full is None else [self._compact, self._full]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                for connection in connections:
                    await connection.closed.wait()


class _Single(ReadListener):
    """One read that is awaited like any other request."""

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
