"""StagedLedger: a ledger that one attempt of a task writes for one topic.

Flow:      entries are submitted without a future each; whoever adds waits only when the ledger's writer is full.
Failure:   an add that failed ends the ledger, and with it the attempt: `add`, `wait_for_room` and `close` raise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.errors import MagnetarError, NoSuchLedgerError, StagingError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writer import LedgerWriter
from magnetar.staging.records import StagedPart, checksum_of
from magnetar.staging.register import Register
from magnetar.staging.settings import StagingSettings
from magnetar.wire.bookkeeper.frames import Buffer

_ROOM_SECONDS_MAX: Final = 120.0  # A writer that had no room for so long would have failed by its own patience.


class StagedLedger:
    """Made by `create`; ended by `close`, or `delete`."""

    def __init__(self, topic: str, ledgers: LedgerClient, register: Register) -> None:
        """For `create` only."""
        self.topic = topic
        self._ledgers = ledgers
        self._register = register
        self._writer: LedgerWriter
        self._entries = self._rows = self._size = self._checksum = 0
        self._failure: MagnetarError | None = None
        self._room: asyncio.Future[None] | None = None

    @classmethod
    async def create(
        cls,
        topic: str,
        ledgers: LedgerClient,
        settings: StagingSettings,
        register: Register,
        epoch: int,
        about: Mapping[str, bytes],
    ) -> StagedLedger:
        self = cls(topic, ledgers, register)
        ledger_id = await ledgers.next_id()
        await register.note(ledger_id, epoch)
        self._writer = await ledgers.create(
            ledger_id=ledger_id,
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest_type=settings.digest_type,
            custom_metadata={**about, "topic": topic.encode()},
            listener=self,
        )
        return self

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self._writer.has_room

    def add(self, entry: Buffer, rows: int) -> None:
        """Only with `has_room`."""
        self._check()
        self._writer.submit(entry, None)
        self._entries += 1
        self._rows += rows
        self._size += len(entry)
        self._checksum = checksum_of(entry, self._checksum)

    async def wait_for_room(self) -> None:
        while not self._writer.has_room:
            self._check()
            self._room = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(_ROOM_SECONDS_MAX):
                    await self._room
            except TimeoutError:
                raise StagingError(f"ledger {self.ledger_id} took nothing for {_ROOM_SECONDS_MAX:.0f} s") from None
            finally:
                self._room = None
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise StagingError(
                f"what is staged for {self.topic} could not be written to ledger {self.ledger_id}: {self._failure}"
            ) from self._failure

    # --- what the writer says -----------------------------------------------------------------------------------------

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[object]) -> None:  # noqa: ARG002
        self._wake()

    def on_failed(self, tokens: Sequence[object], error: MagnetarError) -> None:  # noqa: ARG002
        self._failure = error
        self._wake()

    def on_room(self) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # --- ending -------------------------------------------------------------------------------------------------------

    async def close(self) -> StagedPart:
        """When all of it is acknowledged. StagingError if it is not."""
        self._check()
        await self._writer.close()
        self._check()
        if self._writer.last_confirmed + 1 != self._entries:
            raise StagingError(
                f"ledger {self.ledger_id} was closed with {self._writer.last_confirmed + 1} of {self._entries} entries"
            )
        return StagedPart(self.topic, self.ledger_id, self._entries, self._rows, self._size, self._checksum)

    async def delete(self) -> None:
        """Of an attempt that has failed; nobody has heard of it."""
        await self._writer.release()
        with contextlib.suppress(NoSuchLedgerError):
            await self._ledgers.delete(self.ledger_id)
        await self._register.forget(self.ledger_id)
