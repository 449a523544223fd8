"""A producer of finished entries: what the encoder made is sent as it is, and sent again until it has its receipt.

Bound:     so many bytes without a receipt; `wait_room` waits for some.
Failed:    an entry that the broker refuses, or does not answer in time, ends the producer's task: `check` raises.
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.client.brokers import Brokers
from magnetar.client.options import ProducerOptions
from magnetar.client.pending_sends import PendingSend
from magnetar.client.sender import Sender
from magnetar.errors import ClosedError, MagnetarError
from magnetar.spark.encoding.entries import Entry

_PENDING_BYTES_MAX: Final = 32 * 2**20


class EntryProducer(Sender):
    """Opened by `open`, ended by `aclose` or `abandon`."""

    def __init__(self, brokers: Brokers, topic: str, name: str) -> None:
        super().__init__(brokers, topic, ProducerOptions(name=name))
        self._pending_bytes = 0
        self._failure: MagnetarError | None = None
        self._answered = asyncio.Event()

    async def send(self, entry: Entry) -> None:
        """Waits only for room."""
        while self._pending_bytes and self._pending_bytes + len(entry.body) > _PENDING_BYTES_MAX:
            await self._wait_answer()
        self._check()
        size = len(entry.body)
        self._pending_bytes += size
        self._submit(
            PendingSend(
                sequence_id=entry.sequence_id,
                highest_sequence_id=entry.highest_sequence_id if entry.rows > 1 else 0,
                messages=max(1, entry.rows),
                body=entry.body,
                since=self._loop.time(),
                on_done=lambda _ledger, _entry: self._on_done(size),
                on_failed=lambda error: self._on_failed(size, error),
            )
        )

    async def aclose(self) -> None:
        """When everything has its receipt. Raises if something has not."""
        while self._pending_bytes:
            await self._wait_answer()
        self._check()
        await self._close_at_broker()
        await self._stop(ClosedError(f"the producer of {self.topic} is closed"))

    async def abandon(self) -> None:
        await self._close_at_broker()
        await self._stop(ClosedError(f"the producer of {self.topic} was given up"))

    async def _wait_answer(self) -> None:
        """Ends: what has no receipt for long fails."""
        self._check()
        self._answered.clear()
        await self._answered.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._check_open()

    def _on_done(self, size: int) -> None:
        self._pending_bytes -= size
        self._answered.set()

    def _on_failed(self, size: int, error: MagnetarError) -> None:
        self._failure = self._failure or error
        self._on_done(size)
