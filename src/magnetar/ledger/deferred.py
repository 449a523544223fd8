"""Deferred sync: adds that are answered before they are durable, and a force that makes all of them durable.

Adds:      in v3, which alone has the flag. An add is answered in order when Qa bookies have the entry in memory.
LAC:       stands still until `force`: only then may readers rely on the entries.
Force:     every bookie that was sent an entry must say that it is durable. One that has too many requests is asked
           again (busy.py); if it still has, the force has failed, and not the writer: it may be tried again.
Failure:   a bookie cannot be replaced, as what the others have may not be durable: the writer fails, as Apache's does.
Bound:     the v3 connection is everybody's, so a writer has no more in flight than may wait and be owed there; and it
           waits while the connection is full, as others wait for the v2 connection.
Cost:      a task per entry and bookie: for writers who wait for the disk once in a while, not for the fast path.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any, Final

from magnetar.errors import BookieUnavailableError, MagnetarError, WriterFailedError
from magnetar.ledger.busy import ask_while_busy, is_busy
from magnetar.ledger.channel import Channel
from magnetar.ledger.seats import Seat
from magnetar.ledger.write_engine import Token, WriteEngine
from magnetar.wire.bookkeeper.client import encode_request
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, PREFIX_BYTES, Buffer
from magnetar.wire.bookkeeper.messages import AddEntry, ForceLedger
from magnetar.wire.bookkeeper.packet import MASTER_KEY_BYTES, WORD

_BODY_AT: Final = PREFIX_BYTES + WORD.size + MASTER_KEY_BYTES  # Where the entry begins in a v2 frame.
_ENTRY_ID = struct.Struct(">8xq")  # In an entry.
_NUMBER_MAX: Final = 2**63 - 1
_LENGTHS_GROW_BYTES: Final = 2 * 3  # Two lengths in a v3 frame, of one byte if it is small, and of four at the limit.


class DeferredWriteEngine(WriteEngine[Token]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timeout_s = self.config.add_timeout_ms / 1000
        self._entries_max = min(self._entries_max, self.config.requests_in_flight_max)
        self._bytes_max = min(self._bytes_max, self.config.channel_unsent_bytes_max)
        smallest = encode_request(self._request(_NUMBER_MAX, bytes(self.keys.digest.overhead_bytes), _NUMBER_MAX))
        self.payload_bytes_max = FRAME_BYTES_MAX - len(smallest) - _LENGTHS_GROW_BYTES

    def _request(self, entry_id: int, body: bytes, number: int = 0) -> AddEntry:
        return AddEntry(self.ledger_id, entry_id, self.keys.master_key, body, deferred_sync=True, txn_id=number)

    def _joined(self, frames: list[Buffer]) -> list[Buffer]:
        return frames  # Each entry is a request of its own.

    def _hand_over(self, seat: Seat, channel: Channel, frames: list[Buffer]) -> None:
        for header, payload in zip(frames[::2], frames[1::2], strict=True):
            body = bytes(header[_BODY_AT:]) + payload
            (entry_id,) = _ENTRY_ID.unpack_from(body)
            self._spawn(self._add(seat, channel, self._request(entry_id, body)))

    def _has_room_at(self, channel: Channel) -> bool:
        return channel.is_full_writable

    async def _add(self, seat: Seat, channel: Channel, request: AddEntry) -> None:
        try:
            response = await channel.request(request, timeout_s=self._timeout_s)
        except MagnetarError as error:
            self.fail_seat(seat, error)
        else:
            self.on_add_answers(channel, [request.entry_id], [int(response.code)])

    def _advance_lac(self) -> None:
        """Only `force` does."""

    def fail_seat(self, seat: Seat, error: MagnetarError) -> None:
        if self.error is not None:  # Every add in flight there fails with the connection: that is one failure.
            return
        self.bookies.report_failure(seat.bookie_id)
        failure = WriterFailedError(
            f"ledger {self.ledger_id} is written with deferred sync, so a failed bookie cannot be replaced: {error}; "
            "close the ledger, which keeps what was forced, and write to another"
        )
        failure.__cause__ = error
        self.fail(failure)

    def on_channel_lost(self, channel: Channel, error: MagnetarError) -> None:
        """Also of a bookie that answered everything: if it restarts, it may have lost what was not forced."""
        seat = self._seat_of.get(channel)
        if seat is not None and seat.sent:
            self.fail_seat(seat, error)
        else:
            super().on_channel_lost(channel, error)

    def _leave(self, seat: Seat, error: MagnetarError | None) -> None:
        seat.answered = seat.sent  # Requests are linked by number: nobody has to wait until late answers came.
        super()._leave(seat, error)

    async def force(self) -> int:
        """Makes everything that was answered up to now durable, and returns the last such entry: the LAC."""
        target, length = self.pending.first_entry_id - 1, self.pending.confirmed_length
        channels = [seat.channel for seat in self.seats if seat.sent and seat.channel is not None]
        forcing = [asyncio.ensure_future(self._force(channel)) for channel in channels]
        try:
            await asyncio.gather(*forcing)
        finally:
            for force in forcing:  # One failure is enough: nobody goes on asking for what cannot be had any more.
                force.cancel()
            await asyncio.gather(*forcing, return_exceptions=True)
        if target > self.lac:
            self.lac, self.length_at_lac = target, length
        return self.lac

    async def _force(self, channel: Channel) -> None:
        response = await ask_while_busy(
            lambda: channel.request(ForceLedger(self.ledger_id), timeout_s=self._timeout_s),
            self._random,
            self._timeout_s,
        )
        if response.code is not Code.EOK:
            kind = BookieUnavailableError if is_busy(response) else WriterFailedError
            raise kind(
                f"bookie {channel.bookie_id} did not make ledger {self.ledger_id} durable: {response.code.name}; try "
                "again, or close the ledger and write to another"
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=f"deferred-add-{self.ledger_id}")
        self._tasks[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def aclose(self, error: MagnetarError) -> None:
        await super().aclose(error)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
