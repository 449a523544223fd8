"""SchemaLedgers: each version of a schema is the only entry of a ledger, as Pulsar has it.

Ledgers:   CRC32C, no password; custom metadata says what they are for, so that tools can tell them from topics'.
Memory:    an entry never changes, so it is kept after it was read; bounded by bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from magnetar.config.topic import TopicConfig
from magnetar.errors import LedgerError, MagnetarError, NotEnoughBookiesError, SchemaUnavailableError
from magnetar.ledger.client import LedgerClient

_CACHE_BYTES_MAX = 32 * 2**20  # Thousands of schemas of the usual size.
_TROUBLE = (LedgerError, NotEnoughBookiesError)


class SchemaLedgers(Protocol):
    async def write(self, schema_name: str, entry: bytes) -> tuple[int, int]:
        """The ledger and the entry, when it is durable and the ledger closed."""

    async def read(self, ledger: int, entry: int) -> bytes: ...

    async def delete(self, ledger: int) -> None: ...


class BookieSchemaLedgers:
    """On bookies."""

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
