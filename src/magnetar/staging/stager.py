"""Stager: writes what one attempt of one task produces into ledgers that no reader sees.

    stager = Stager(ledgers, settings, owner, epoch, partition, attempt, task_attempt_id)
    await stager.add("persistent://public/default/out", entry, rows=1_000)
        staged = await stager.finish()              # or `give_up`, after any error

Format:    entries as a producer sends them: checksum, message metadata, payload; without the broker's header, which the
           broker puts before each of them when it publishes. Their producer name is the owner's.
Invariant: when `finish` returns, the entries are on the bookies, durably, and their ledgers are closed. There is one
           ledger for each topic, made with its first entry.
Failure:   after an error no ledger is used again: the task is repeated with new ones. A failed add ends the ledger, and
           with it the attempt: `add`, `wait_for_room` and `close` raise.
           An attempt may repeat an epoch that was decided before (its driver died before it had noted that), and a
           sweeper deletes its ledgers when that epoch is done. So an attempt that fails asks whether its epoch is
           decided. If it is, nothing that it stages is ever read, and it did not really fail: it drops all further
           entries, and `finish` returns an empty result, which `Sink.commit` ignores.
Limits:    `add` waits while the ledger's writer has too much in flight; entries have no future each.
Read next: sink.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from magnetar.errors import MagnetarError, NoSuchLedgerError, StagingError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.runtime.gather import gather_bounded
from magnetar.staging.intents import OwnerNode
from magnetar.staging.publisher import Reached, nothing_reached
from magnetar.staging.records import Staged, StagedPart, checksum_of
from magnetar.staging.register import Register, StagingSettings
from magnetar.wire.bookkeeper.frames import Buffer

_ROOM_SECONDS_MAX: Final = 120.0  # A writer without room for this long would have failed by its own patience.

log = logging.getLogger(__name__)

_AT_ONCE_MAX: Final = 16  # Ledgers closed at a time.


class Stager:
    """One per attempt. Ended by `finish` or `give_up`; give_up is harmless after either."""

    def __init__(
        self,
        ledgers: LedgerClient,
        settings: StagingSettings,
        owner: str,
        epoch: int,
        partition: int,
        attempt: int,
        task_attempt_id: int,
        *,
        reached: Reached = nothing_reached,
    ) -> None:
        self._ledgers = ledgers
        self._settings = settings
        self._staged = Staged(owner, epoch, partition, attempt)
        self._node = OwnerNode(ledgers.context.metadata.store, owner)
        self._register = Register(ledgers.context.metadata.store, owner)
        self._about = {
            "application": b"magnetar",
            "component": b"staging",
            "owner": owner.encode(),
            "epoch": str(epoch).encode(),
            "partition": str(partition).encode(),
            "attempt": str(attempt).encode(),
            "task_attempt_id": str(task_attempt_id).encode(),
        }
        self._reached = reached
        self._open: dict[str, StagedLedger] = {}
        """Topic → its ledger, in the order of their first entries."""
        self._is_over = False
        self._is_for_nothing = False
        """Whether it failed at an epoch that is decided: all further entries are dropped."""

    async def add(self, topic: str, entry: Buffer, rows: int) -> None:
        """Waits only while too much is in flight, and for a new topic's ledger. The entry must not change any more.

        `rows` is the number of messages in the entry. One `add` at a time.
        """
        self._require_open()
        if self._is_for_nothing:
            return
        try:
            await self._add(topic, entry, rows)
        except MagnetarError as error:
            if not await self._was_for_nothing(error):
                raise

    async def _add(self, topic: str, entry: Buffer, rows: int) -> None:
        ledger = self._open.get(topic)
        if ledger is None:
            ledger = await self._begin(topic)
        if not ledger.has_room:
            await ledger.wait_for_room()
        ledger.add(entry, rows)
        self._reached("mid-append", self._staged.epoch)

    async def _begin(self, topic: str) -> StagedLedger:
        if len(self._open) >= self._settings.open_ledgers_max:
            raise StagingError(
                f"this task writes to more than {len(self._open)} topics: use fewer topics, or more partitions by topic"
            )
        ledger = await StagedLedger.create(
            topic, self._ledgers, self._settings, self._register, self._staged.epoch, self._about
        )
        self._open[topic] = ledger
        self._reached("ledger-created", self._staged.epoch)
        return ledger

    async def finish(self) -> Staged:
        """Closes all ledgers and returns their content. If it raises, the attempt has failed: nothing of it counts."""
        self._require_open()
        self._is_over = True
        try:
            parts = await gather_bounded([ledger.close for ledger in self._open.values()], _AT_ONCE_MAX)
        except MagnetarError as error:
            if not await self._was_for_nothing(error):
                raise
            parts = []
        self._open.clear()  # They are the driver's now: only a sweeper deletes them.
        self._reached("acked-not-returned", self._staged.epoch)
        return replace(self._staged, parts=tuple(parts))

    async def _was_for_nothing(self, error: MagnetarError) -> bool:
        """Reports whether the epoch is decided, so that this attempt did not fail. Its ledgers are then deleted."""
        try:
            found = await self._node.find()
        except MagnetarError as unknown:
            error.add_note(f"It is unknown whether its epoch is decided already: {unknown}")
            return False
        if found is None or found.record.decided < self._staged.epoch:
            return False
        log.info(
            "a task repeats an epoch that is decided, and stages nothing more",
            extra={"owner": self._node.owner, "epoch": self._staged.epoch, "why": str(error)},
        )
        self._is_for_nothing = True
        await self._delete_all()
        return True

    async def give_up(self) -> None:
        """Deletes what was written, as far as possible; otherwise a sweeper does. After `finish` has returned, it does
        nothing: whether the result was committed is unknown."""
        self._is_over = True
        await self._delete_all()

    async def _delete_all(self) -> None:
        given_up, self._open = list(self._open.values()), {}
        for ledger in given_up:
            try:
                await ledger.delete()
            except MagnetarError as error:
                log.info(
                    "a staged ledger is left to the sweeper", extra={"ledger": ledger.ledger_id, "why": str(error)}
                )

    def _require_open(self) -> None:
        if self._is_over:
            raise StagingError("this task has finished, or has given up: a new attempt needs a new Stager")


class StagedLedger:
    """A ledger that one attempt of a task writes for one topic. Made by `create`; ended by `close`, or `delete`."""

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

    @property
    def has_room(self) -> bool:
        return self._writer.has_room

    def add(self, entry: Buffer, rows: int) -> None:
        """Adds an entry; only with `has_room`."""
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
                f"staged entries for {self.topic} could not be written to ledger {self.ledger_id}: {self._failure}"
            ) from self._failure

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

    async def close(self) -> StagedPart:
        """Returns when all of it is acknowledged. Raises StagingError if it is not."""
        self._check()
        await self._writer.close()
        self._check()
        if self._writer.last_confirmed + 1 != self._entries:
            raise StagingError(
                f"ledger {self.ledger_id} was closed with {self._writer.last_confirmed + 1} of {self._entries} entries"
            )
        return StagedPart(self.topic, self.ledger_id, self._entries, self._rows, self._size, self._checksum)

    async def delete(self) -> None:
        """Deletes the ledger of an attempt that has failed, which is known to no other client."""
        await self._writer.release()
        with contextlib.suppress(NoSuchLedgerError):
            await self._ledgers.delete(self.ledger_id)
        await self._register.forget(self.ledger_id)
