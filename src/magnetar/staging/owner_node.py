"""OwnerNode: an owner's record in the metadata store, read as it is now, and changed by compare-and-set."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from magnetar.errors import MetadataUnavailableError, NodeExistsError
from magnetar.metadata.store import MetadataStore
from magnetar.staging.paths import owner_path
from magnetar.staging.records import OwnerRecord


class VersionedRecord(NamedTuple):
    record: OwnerRecord
    version: int
    created_ms: int


class OwnerNode:
    def __init__(self, store: MetadataStore, owner: str) -> None:
        self.owner = owner
        self.path = owner_path(owner)
        self._store = store

    async def find(self) -> VersionedRecord | None:
        """As everybody was told that it is by now."""
        await self._store.sync()
        node = await self._store.get(self.path)
        if node is None:
            return None
        return VersionedRecord(OwnerRecord.from_bytes(node.value), node.version, node.created_ms)

    async def read(self) -> VersionedRecord:
        """The same; made if it is not there."""
        found = await self.find()
        if found is None:
            with contextlib.suppress(NodeExistsError):
                await self._store.create(self.path, OwnerRecord().to_bytes(), make_parents=True)
            found = await self.find()
        if found is None:  # A sweeper took it for forgotten.
            raise MetadataUnavailableError(f"{self.path} was deleted as soon as it was made: try again")
        return found

    async def put(self, record: OwnerRecord, version: int) -> None:
        """BadVersionError if somebody else was faster, OutcomeUnknownError if nobody knows: read again, either way."""
        await self._store.put(self.path, record.to_bytes(), version)
