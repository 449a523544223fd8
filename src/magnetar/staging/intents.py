"""Intents of one owner: read, created in the one step that is the commit point, deleted when they are done.

Order:     create: [put the owner's record at the version that was read, with this epoch as decided | create the
           intent's node | check that the first part's register node still exists], all or nothing. So no two intents
           are created at once, none after a sweeper has begun, and none for an owner that was forgotten since.
Format:    above `INTENT_BYTES_MAX` the intent is in a ledger of its own, written before, and the node holds its id.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Final, NamedTuple

from magnetar.errors import (
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    StagingRecordError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import Check, Create, MetadataStore, Operation, Put
from magnetar.staging.records import Intent, OwnerRecord
from magnetar.staging.register import Register, StagingSettings, epochs_in, intent_path, owner_path, registration_path

INTENT_BYTES_MAX: Final = 500_000
"""The largest intent in a node: ZooKeeper takes one megabyte in all."""

_PIECE_BYTES: Final = 2**20  # Bytes of an intent in a ledger, per entry.


class VersionedRecord(NamedTuple):
    record: OwnerRecord
    version: int
    created_ms: int


class Intents:
    def __init__(self, store: MetadataStore, ledgers: LedgerClient, settings: StagingSettings, owner: str) -> None:
        self.owner = owner
        self._store = store
        self._ledgers = ledgers
        self._settings = settings
        self._register = Register(store, owner)

    async def epochs(self) -> list[int]:
        """Returns the epochs of the existing intents, oldest first. The caller has synced."""
        try:
            return epochs_in(await self._store.children(owner_path(self.owner)))
        except NoNodeError:
            return []

    async def read(self, epoch: int) -> Intent | None:
        """Returns None if it does not exist, or no longer."""
        node = await self._store.get(intent_path(self.owner, epoch))
        if node is None:
            return None
        ledger_id = _ledger_in(node.value)
        if ledger_id is None:
            return Intent.from_bytes(node.value)
        try:
            return replace(Intent.from_bytes(await self._read_ledger(ledger_id)), own_ledger=ledger_id)
        except NoSuchLedgerError:  # It is deleted after the node: another client has finished it since.
            if await self._store.get(intent_path(self.owner, epoch)) is None:
                return None
            raise

    async def prepare(self, intent: Intent) -> Intent:
        """Writes the ledger of a large intent. To be called once, before `create`."""
        data = intent.to_bytes()
        if len(data) <= INTENT_BYTES_MAX:
            return intent
        return replace(intent, own_ledger=await self._write_ledger(intent.epoch, data))

    async def create(self, intent: Intent, found: VersionedRecord) -> None:
        """TransactionFailedError: nothing was done, read again. OutcomeUnknownError: read again to learn it."""
        record = replace(found.record, decided=intent.epoch, decided_by=intent.digest)
        value = intent.to_bytes() if intent.own_ledger is None else json.dumps({"ledger": intent.own_ledger}).encode()
        operations: list[Operation] = [
            Put(owner_path(self.owner), record.to_bytes(), found.version),
            Create(intent_path(self.owner, intent.epoch), value),
            Check(registration_path(self.owner, intent.parts[0].ledger_id)),
        ]
        await self._store.transact(operations)

    async def delete(self, epoch: int) -> None:
        with contextlib.suppress(NoNodeError):
            await self._store.delete(intent_path(self.owner, epoch))

    async def _write_ledger(self, epoch: int, data: bytes) -> int:
        ledger_id = await self._ledgers.next_id()
        await self._register.note(ledger_id, epoch)
        settings = self._settings
        writer = await self._ledgers.create(
            ledger_id=ledger_id,
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest_type=settings.digest_type,
            custom_metadata={"application": b"magnetar", "component": b"intent", "owner": self.owner.encode()},
        )
        async with writer:
            for start in range(0, len(data), _PIECE_BYTES):
                await writer.add(data[start : start + _PIECE_BYTES])
        return ledger_id

    async def _read_ledger(self, ledger_id: int) -> bytes:
        reader = await self._ledgers.open(ledger_id, digest_type=self._settings.digest_type)
        pieces = await reader.read(0, reader.last_confirmed)
        return b"".join(bytes(piece.payload) for piece in pieces)


class OwnerNode:
    """An owner's record in the metadata store, read as it is now, and changed by compare-and-set."""

    def __init__(self, store: MetadataStore, owner: str) -> None:
        self.owner = owner
        self.path = owner_path(owner)
        self._store = store

    async def find(self) -> VersionedRecord | None:
        """Returns the record with every change that was confirmed to any client until now."""
        await self._store.sync()
        node = await self._store.get(self.path)
        if node is None:
            return None
        return VersionedRecord(OwnerRecord.from_bytes(node.value), node.version, node.created_ms)

    async def read(self) -> VersionedRecord:
        """Returns the record, and makes a missing one."""
        found = await self.find()
        if found is None:
            with contextlib.suppress(NodeExistsError):
                await self._store.create(self.path, OwnerRecord().to_bytes(), make_parents=True)
            found = await self.find()
        if found is None:  # A sweeper took it for forgotten.
            raise MetadataUnavailableError(f"{self.path} was deleted as soon as it was made: try again")
        return found

    async def put(self, record: OwnerRecord, version: int) -> None:
        """Raises BadVersionError if another client was faster, OutcomeUnknownError if it is unknown: read again in both
        cases."""
        await self._store.put(self.path, record.to_bytes(), version)


def _ledger_in(value: bytes) -> int | None:
    """Returns the ledger of a large intent's node; None for any other."""
    if not value.startswith(b"{"):
        return None
    try:
        return int(json.loads(value)["ledger"])
    except (ValueError, TypeError, KeyError) as error:
        raise StagingRecordError(f"the node of an intent cannot be read: {error}") from None
