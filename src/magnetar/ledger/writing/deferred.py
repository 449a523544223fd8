"""Deferred sync: adds that are answered before they are durable, and a force that makes all of them durable.

An add is answered in order when Qa bookies have the entry in memory. Such adds travel in v3, which alone has the flag.
With a task per entry and bookie, they are for writers that wait for the disk now and then, not for the fast path.

Invariant: The LAC moves only with `force`, since readers may rely on the entries only then. Every bookie that was sent
           an entry must confirm that it is durable.
Failure:   A bookie cannot be replaced, as what the others have may not be durable: the writer fails, as Apache's does.
           In a force, a bookie that has too many requests is asked again (ledger/channels/answers.py); if it still has
           too many, the force has failed, and not the writer: it may be tried again.
Limits:    Others use the v3 connection too, so a writer has no more bytes in flight than may wait there; and it waits
           while the connection is full, as other writers wait for the v2 connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any, Final

from magnetar.errors import BookieUnavailableError, MagnetarError, WriterFailedError
from magnetar.ledger.channels.answers import is_busy, retry_while_busy
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.writing.engine import Token, WriteEngine
from magnetar.ledger.writing.ensemble_slot import EnsembleSlot
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import encode_request
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, MASTER_KEY_BYTES, PREFIX_BYTES, WORD, Buffer
from magnetar.wire.bookkeeper.messages import AddEntry, ForceLedger

_BODY_AT: Final = PREFIX_BYTES + WORD.size + MASTER_KEY_BYTES  # Where the entry begins in a v2 frame.
_ENTRY_ID = struct.Struct(">8xq")  # In an entry.
_NUMBER_MAX: Final = 2**63 - 1
_LENGTHS_GROW_BYTES: Final = 2 * 3  # Two lengths in a v3 frame, of one byte if it is small, and of four at the limit.


class DeferredWriteEngine(WriteEngine[Token]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timeout_s = self.config.add_timeout_ms / 1000
        self._bytes_max = min(self._bytes_max, self.config.channel_unsent_bytes_max)
        smallest = encode_request(self._request(_NUMBER_MAX, bytes(self.keys.digest.overhead_bytes), _NUMBER_MAX))
        self.payload_bytes_max = FRAME_BYTES_MAX - len(smallest) - _LENGTHS_GROW_BYTES

    def _request(self, entry_id: int, body: bytes, number: int = 0) -> AddEntry:
        return AddEntry(self.ledger_id, entry_id, self.keys.master_key, body, deferred_sync=True, txn_id=number)

    def _joined(self, frames: list[Buffer]) -> list[Buffer]:
        return frames  # Each entry is a request of its own.

    def _hand_over(self, slot: EnsembleSlot, channel: Channel, frames: list[Buffer]) -> None:
        for header, payload in zip(frames[::2], frames[1::2], strict=True):
            body = bytes(header[_BODY_AT:]) + payload
            (entry_id,) = _ENTRY_ID.unpack_from(body)
            self._spawn(self._add(slot, channel, self._request(entry_id, body)))

    def _has_room_at(self, channel: Channel) -> bool:
        return channel.is_v3_writable

    async def _add(self, slot: EnsembleSlot, channel: Channel, request: AddEntry) -> None:
        try:
            response = await channel.request(request, timeout_s=self._timeout_s)
        except MagnetarError as error:
            self.fail_slot(slot, error)
        else:
            self.on_add_answers(channel, [request.entry_id], [int(response.code)])

    def _advance_lac(self) -> None:
        """Leaves the LAC to `force`."""

    def fail_slot(self, slot: EnsembleSlot, error: MagnetarError) -> None:
        if self.error is not None:  # Every add in flight there fails with the connection: that is one failure.
            return
        self.bookies.report_failure(slot.bookie_id)
        failure = WriterFailedError(
            f"ledger {self.ledger_id} is written with deferred sync, so a failed bookie cannot be replaced: {error}; "
            "close the ledger, which keeps what was forced, and write to another"
        )
        failure.__cause__ = error
        self.fail(failure)

    def on_channel_lost(self, channel: Channel, error: MagnetarError) -> None:
        """Fails also for a bookie that answered everything: if it restarts, it may have lost what was not forced."""
        slot = self._slot_of.get(channel)
        if slot is not None and slot.sent:
            self.fail_slot(slot, error)
        else:
            super().on_channel_lost(channel, error)

    def _leave(self, slot: EnsembleSlot, error: MagnetarError | None) -> None:
        slot.answered = slot.sent  # Requests are linked by number, so no later writer has to wait for late answers.
        super()._leave(slot, error)

    async def force(self) -> int:
        """Makes everything that was answered until now durable, and returns the last such entry: the LAC."""
        target, length = self.pending.first_entry_id - 1, self.pending.confirmed_length
        channels = [slot.channel for slot in self.slots if slot.sent and slot.channel is not None]
        forcing = [asyncio.ensure_future(self._force(channel)) for channel in channels]
        try:
            await asyncio.gather(*forcing)
        finally:
            for force in forcing:  # One failure is enough: the other requests are of no use then.
                force.cancel()
            await asyncio.gather(*forcing, return_exceptions=True)
        if target > self.lac:
            self.lac, self.length_at_lac = target, length
        return self.lac

    async def _force(self, channel: Channel) -> None:
        response = await retry_while_busy(
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
