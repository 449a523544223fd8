"""SchemaStorage: the versions of each topic's schema, in Pulsar's layout.

Format:    `/schemas/{tenant}/{namespace}/{topic}` = SchemaLocator: the newest version, and an index of all. Each
           version has a ledger (`SchemaLedgers`), whose only entry is a SchemaEntry around a SchemaInfo. The ledger has
           CRC32C and no password; its custom metadata names the purpose, so that tools can distinguish it.
Order:     the ledger is written first, then the node is changed by compare-and-set; on a lost race the ledger is
           deleted, and everything is decided again on the new state, at most `TRIES_MAX` times. The loop is not that
           of metadata/compare_and_set.py. Each try has a ledger of its own, so an unknown outcome is resolved within
           its try, by looking for that ledger; a store that cannot be reached ends it at once.
Limits:    an entry never changes, so it is kept after it was read; bounded by bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from google.protobuf.message import DecodeError

from magnetar.config.topic import TopicConfig
from magnetar.errors import (
    BadVersionError,
    LedgerError,
    MagnetarError,
    MalformedMetadataError,
    NodeExistsError,
    NoNodeError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    SchemaUnavailableError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.store import MetadataStore, Node
from magnetar.schemas.data import SchemaData, SchemaType, StoredSchema
from magnetar.schemas.proto.schema_storage_pb2 import IndexEntry, SchemaEntry, SchemaInfo, SchemaLocator

_CACHE_BYTES_MAX = 32 * 2**20  # Thousands of schemas of the usual size.
_TROUBLE = (LedgerError, NotEnoughBookiesError)


class SchemaLedgers(Protocol):
    async def write(self, schema_name: str, entry: bytes) -> tuple[int, int]:
        """Returns the ledger and the entry, when it is durable and the ledger closed."""

    async def read(self, ledger: int, entry: int) -> bytes: ...

    async def delete(self, ledger: int) -> None: ...


class BookieSchemaLedgers:
    """Keeps schemas on bookies."""

    def __init__(self, client: LedgerClient, config: TopicConfig) -> None:
        self._client = client
        self._config = config
        self._cache: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._cached_bytes = 0

    async def write(self, schema_name: str, entry: bytes) -> tuple[int, int]:
        metadata = {"application": b"pulsar", "component": b"schema", "pulsar/schemaId": schema_name.encode()}
        try:
            writer = await self._client.create(
                ensemble_size=self._config.ensemble_size,
                write_quorum=self._config.write_quorum,
                ack_quorum=self._config.ack_quorum,
                custom_metadata=metadata,
            )
            async with writer:
                entry_id = await writer.add(entry)
        except _TROUBLE as error:
            raise SchemaUnavailableError(f"a schema of {schema_name} cannot be stored: {error}") from error
        self._keep((writer.ledger_id, entry_id), entry)
        return writer.ledger_id, entry_id

    async def read(self, ledger: int, entry: int) -> bytes:
        key = (ledger, entry)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        try:
            reader = await self._client.open(ledger)
            (found,) = await reader.read(entry, entry)
        except MagnetarError as error:
            raise SchemaUnavailableError(f"a schema cannot be read from ledger {ledger}: {error}") from error
        payload = bytes(found.payload)
        self._keep(key, payload)
        return payload

    async def delete(self, ledger: int) -> None:
        for key in [key for key in self._cache if key[0] == ledger]:
            self._cached_bytes -= len(self._cache.pop(key))
        await self._client.delete(ledger)

    def _keep(self, key: tuple[int, int], payload: bytes) -> None:
        self._cached_bytes += len(payload) - len(self._cache.pop(key, b""))
        self._cache[key] = payload
        while self._cached_bytes > _CACHE_BYTES_MAX:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)


log = logging.getLogger(__name__)

ROOT: Final = "/schemas"
"""The parent of the nodes: `/schemas/{tenant}/{namespace}/{topic}`."""
TRIES_MAX: Final = 10
_READS_AT_ONCE = 16
_NOWHERE = -1  # The place of the first version's entry, as Pulsar writes it in that entry itself.

Decision: TypeAlias = Callable[[Sequence[StoredSchema]], SchemaData | int]
"""Takes all versions, deleted ones too; returns the schema to add, or the version that it is already. Raises to
refuse."""


@dataclass(frozen=True, slots=True)
class _Located:
    locator: SchemaLocator
    node_version: int


def schema_path(schema_name: str) -> str:
    """Takes the name `TopicName.schema_name`."""
    return f"{ROOT}/{schema_name}"


class SchemaStorage:
    def __init__(self, store: MetadataStore, cache: MetadataCache, ledgers: SchemaLedgers) -> None:
        self._store = store
        self._cache = cache
        self._ledgers = ledgers

    async def all(self, name: str) -> list[StoredSchema]:
        """Returns every version, oldest first; those that mark a deletion too."""
        path = schema_path(name)
        located = _located(path, await self._cache.get(path))
        return [] if located is None else await self._read(located.locator)

    async def add(self, name: str, decide: Decision) -> int:
        """Returns the version that the schema has then."""
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
        """Deletes ledgers and node; returns False if the topic has none."""
        located = await self._look(name)
        if located is None:
            return False
        for entry in located.locator.index:
            await self._drop_ledger(entry.position.ledgerId, name)
        try:
            await self._store.delete(schema_path(name))
        except NoNodeError:
            return False
        finally:
            self._cache.drop(schema_path(name))
        return True

    async def _look(self, name: str) -> _Located | None:
        """Reads past the cache: a decision on it is written at its version."""
        path = schema_path(name)
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
            raise MalformedMetadataError(f"ledger {position.ledgerId} has no schema in Pulsar's form") from None
        return StoredSchema(_schema_data(info), entry.version)

    async def _try_add(self, name: str, schema: SchemaData, located: _Located | None) -> int | None:
        """Returns None if another client was faster."""
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
        path, value = schema_path(name), locator.SerializeToString()
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
        """Reads the node to learn the outcome. If that fails too, the ledger stays, and nothing refers to it."""
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
