"""Stager: what one attempt of one task writes, into ledgers that nobody can see.

    stager = Stager(ledgers, settings, owner, epoch, partition, attempt, task_attempt_id)
    await stager.add("persistent://public/default/out", entry, rows=1_000)
    staged = await stager.finish()              # or `give_up`, whatever became of it

Entries:   as a producer sends them: checksum, message metadata, payload; without the broker's header, which the broker
           puts before each of them when it publishes. The producer's name in them is the owner's.
Ledgers:   one for each topic, made with its first entry, closed by `finish`. After an error none is used again: the
           task is repeated with new ones.
Promise:   what `finish` returns is on the bookies, durably, and its ledgers are closed.
Repeated:  an attempt may repeat an epoch that was decided before (its driver died before it had noted that), and a
           sweeper deletes its ledgers under it when that epoch is done. So an attempt that fails asks whether its epoch
           is decided. If it is, nothing that it stages is ever read, and it has failed at nothing: it takes and drops
           what else it is given, and `finish` returns an empty result, which `Sink.commit` does not look at.
Bounds:    `add` waits while the ledger's writer has too much in flight.
Read next: staged_ledger.py, commit.py
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from magnetar.errors import MagnetarError, StagingError
from magnetar.ledger.client import LedgerClient
from magnetar.staging.at_once import all_of
from magnetar.staging.owner_node import OwnerNode
from magnetar.staging.publisher import Reached, nothing_reached
from magnetar.staging.records import Staged
from magnetar.staging.register import Register
from magnetar.staging.settings import StagingSettings
from magnetar.staging.staged_ledger import StagedLedger
from magnetar.wire.bookkeeper.frames import Buffer

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
        self._node = OwnerNode(ledgers.parts.metadata.store, owner)
        self._register = Register(ledgers.parts.metadata.store, owner)
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
        """It failed at an epoch that is decided: whatever it is given is dropped."""

    async def add(self, topic: str, entry: Buffer, rows: int) -> None:
        """Waits only while too much is in flight, and for a new topic's ledger. The entry must not change any more.

        `rows` is how many messages the entry has. One `add` at a time.
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
        """All ledgers closed, and what is in them. If it raises, the attempt has failed: nothing of it counts."""
        self._require_open()
        self._is_over = True
        try:
            parts = await all_of([ledger.close for ledger in self._open.values()], _AT_ONCE_MAX)
        except MagnetarError as error:
            if not await self._was_for_nothing(error):
                raise
            parts = []
        self._open.clear()  # They are the driver's now: only a sweeper deletes them.
        self._reached("acked-not-returned", self._staged.epoch)
        return replace(self._staged, parts=tuple(parts))

    async def _was_for_nothing(self, error: MagnetarError) -> bool:
        """Whether the epoch is decided, so that this attempt failed at nothing. What it wrote goes, then."""
        try:
            found = await self._node.find()
        except MagnetarError as unknown:
            error.add_note(f"Whether its epoch is decided already could not be asked: {unknown}")
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
        """What was written goes, as far as that can be done; else a sweeper sees to it. After `finish` has returned,
        nothing is touched: nobody knows whether it was committed."""
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
