"""SchemaStorage: the versions of each topic's schema, in Pulsar's layout.

Node:      `/schemas/{tenant}/{namespace}/{topic}` = SchemaLocator: the newest version, and an index of all.
Ledger:    one for each version, its only entry a SchemaEntry around a SchemaInfo.
Adding:    the ledger is written first, then the node is changed by compare-and-set; on a lost race the ledger is
           deleted, and everything is decided again on what is there then, at most `TRIES_MAX` times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from magnetar.broker.resources import paths
from magnetar.broker.schemas.data import SchemaData, SchemaType, StoredSchema
from magnetar.broker.schemas.ledgers import SchemaLedgers
from magnetar.broker.schemas.proto.schema_storage_pb2 import IndexEntry, SchemaEntry, SchemaInfo, SchemaLocator
from magnetar.errors import (
    BadVersionError,
    MagnetarError,
    MalformedMetadataError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SchemaUnavailableError,
)
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.store import MetadataStore, Node

log = logging.getLogger(__name__)

TRIES_MAX: Final = 10
_READS_AT_ONCE = 16
_NOWHERE = -1  # Where Pulsar says the first version's entry is, in that entry itself.

Decision: TypeAlias = Callable[[Sequence[StoredSchema]], SchemaData | int]
"""From all versions, deleted ones too, to what is to be added, or the version that it is already. Raises to refuse."""


@dataclass(frozen=True, slots=True)
class _Located:
    locator: SchemaLocator
    node_version: int


class SchemaStorage:
    def __init__(self, store: MetadataStore, cache: MetadataCache, ledgers: SchemaLedgers) -> None:
        self._store = store
        self._cache = cache
        self._ledgers = ledgers

    async def all(self, name: str) -> list[StoredSchema]:
        """Every version, oldest first; those that mark a deletion too."""
        path = paths.schema(name)
        located = _located(path, await self._cache.get(path))
        return [] if located is None else await self._read(located.locator)

    async def add(self, name: str, decide: Decision) -> int:
        """The version that it has then."""
        for _ in range(TRIES_MAX):
            located = await self._look(name)
            wanted = decide([] if located is None else await self._read(located.locator))
            if isinstance(wanted, int):
                return wanted
            version = await self._try_add(name, wanted, located)
            if version is not None:
                return version
            await asyncio.sleep(0)
        raise SchemaUnavailableError(f"the schema of {name} changes faster than a version can be added: try again")

    async def delete(self, name: str) -> bool:
        """Everything of it, ledgers and node; False if there is nothing."""
        located = await self._look(name)
        if located is None:
            return False
        for entry in located.locator.index:
            await self._drop_ledger(entry.position.ledgerId, name)
        try:
            await self._store.delete(paths.schema(name))
        except NoNodeError:
            return False
        finally:
            self._cache.drop(paths.schema(name))
        return True

    async def ledgers(self, name: str) -> list[int]:
        located = await self._look(name)
        return [] if located is None else [entry.position.ledgerId for entry in located.locator.index]

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _look(self, name: str) -> _Located | None:
        """Past the cache: what is decided on it is written at its version."""
        path = paths.schema(name)
        return _located(path, await self._store.get(path))

    async def _read(self, locator: SchemaLocator) -> list[StoredSchema]:
        found: list[StoredSchema] = []
        for start in range(0, len(locator.index), _READS_AT_ONCE):
            some = locator.index[start : start + _READS_AT_ONCE]
            found.extend(await asyncio.gather(*(self._read_one(entry) for entry in some)))
        return found

    async def _read_one(self, entry: IndexEntry) -> StoredSchema:
        position = entry.position
        data = await self._ledgers.read(position.ledgerId, position.entryId)
        try:
            info = SchemaInfo.FromString(SchemaEntry.FromString(data).schema_data)
        except DecodeError:
            raise MalformedMetadataError(f"ledger {position.ledgerId} holds no schema in Pulsar's form") from None
        return StoredSchema(_schema_data(info), entry.version)

    # --- adding -------------------------------------------------------------------------------------------------------

    async def _try_add(self, name: str, schema: SchemaData, located: _Located | None) -> int | None:
        """None: somebody else was quicker."""
        digest = b"" if schema.is_deleted else schema.hash
        index = _first_index(digest) if located is None else list(located.locator.index)
        entry = SchemaEntry(schema_data=_schema_info(name, schema).SerializeToString(), index=index)
        ledger, entry_id = await self._ledgers.write(name, entry.SerializeToString())
        version = 0 if located is None else located.locator.info.version + 1
        info = IndexEntry(version=version, hash=digest)
        info.position.ledgerId, info.position.entryId = ledger, entry_id
        before = [] if located is None else list(located.locator.index)
        locator = SchemaLocator(info=info, index=[*before, info])
        if await self._put(name, locator, located):
            return version
        await self._drop_ledger(ledger, name)
        return None

    async def _put(self, name: str, locator: SchemaLocator, located: _Located | None) -> bool:
        path, value = paths.schema(name), locator.SerializeToString()
        try:
            if located is None:
                await self._store.create(path, value, make_parents=True)
            else:
                await self._store.put(path, value, located.node_version)
        except (NodeExistsError, BadVersionError, NoNodeError):
            return False
        except OutcomeUnknownError:
            return await self._was_put(name, locator)
        finally:
            self._cache.drop(path)
        return True

    async def _was_put(self, name: str, locator: SchemaLocator) -> bool:
        """Only looking tells. If it fails too, the ledger stays, and nobody points to it."""
        await self._store.sync()
        found = await self._look(name)
        mine = locator.info.position.ledgerId
        return found is not None and any(entry.position.ledgerId == mine for entry in found.locator.index)

    async def _drop_ledger(self, ledger: int, name: str) -> None:
        try:
            await self._ledgers.delete(ledger)
        except MagnetarError as error:  # It takes room, and does no other harm.
            log.warning("a schema's ledger is left", extra={"ledger_id": ledger, "schema": name, "why": str(error)})


def _located(path: str, node: Node | None) -> _Located | None:
    if node is None or not node.value:
        return None
    try:
        return _Located(SchemaLocator.FromString(node.value), node.version)
    except DecodeError:
        raise MalformedMetadataError(f"{path} is not a locator of schemas in Pulsar's form") from None


def _first_index(digest: bytes) -> list[IndexEntry]:
    entry = IndexEntry(version=0, hash=digest)
    entry.position.ledgerId = entry.position.entryId = _NOWHERE
    return [entry]


def _schema_info(name: str, schema: SchemaData) -> SchemaInfo:
    return SchemaInfo(
        schema_id=name,
        user=schema.user,
        type=SchemaInfo.SchemaType.Name(schema.type.to_stored()),
        schema=schema.data,
        timestamp=schema.timestamp_ms,
        deleted=schema.is_deleted,
        props=[SchemaInfo.KeyValuePair(key=key, value=value) for key, value in schema.properties.items()],
    )


def _schema_data(info: SchemaInfo) -> SchemaData:
    return SchemaData(
        SchemaType.from_stored(info.type),
        info.schema,
        {pair.key: pair.value for pair in info.props},
        info.user,
        info.timestamp,
        info.deleted,
    )
