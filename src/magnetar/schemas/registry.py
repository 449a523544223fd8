"""SchemaRegistry: the schemas of topics, as producers, consumers and the admin API use them.

Invariant: a topic's partitions share one schema (`TopicName.schema_name`). Versions are numbers from 0 on, never used
           twice. A deletion is a version of its own; versions before it do not count. The caller brings the strategy
           for a new schema: `EffectivePolicies.schema_compatibility`.
Read next: storage.py, compatibility.py, docs/schemas.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from magnetar.config.defaults import SchemasConfig
from magnetar.errors import IncompatibleSchemaError, SchemaMissingError, SchemaUnavailableError
from magnetar.runtime.keyed_lock import KeyedLock
from magnetar.runtime.runtime import Entropy
from magnetar.schemas.compatibility import CompatibilityStrategy, check_compatible, is_same_schema
from magnetar.schemas.data import SchemaData, SchemaType, StoredSchema
from magnetar.schemas.storage import Decision, SchemaStorage
from magnetar.schemas.validation import check_schema

_TURN_TIMEOUT_S: Final = 30.0


class SchemaRegistry:
    def __init__(self, storage: SchemaStorage, config: SchemasConfig, entropy: Entropy) -> None:
        self._storage = storage
        self._config = config
        self._entropy = entropy
        self._locks = KeyedLock()

    async def latest(self, name: str) -> StoredSchema | None:
        """Returns None if the topic has no schema, or its schema was deleted."""
        found = await self.all(name)
        return found[-1] if found else None

    async def version(self, name: str, version: int) -> StoredSchema | None:
        return next((each for each in await self.all(name) if each.version == version), None)

    async def all(self, name: str) -> list[StoredSchema]:
        """Returns the versions since the last deletion, oldest first."""
        return _since_deletion(await self._storage.all(name))

    async def find(self, name: str, schema: SchemaData) -> StoredSchema | None:
        """Returns the version that is this schema."""
        return _same(await self.all(name), schema)

    async def check(self, name: str, schema: SchemaData, strategy: CompatibilityStrategy) -> None:
        """Raises InvalidSchemaError or IncompatibleSchemaError unless it could be added."""
        self._check_form(schema)
        _check_new(await self.all(name), schema, strategy)

    async def add(
        self, name: str, schema: SchemaData, strategy: CompatibilityStrategy, *, may_update: bool = True
    ) -> StoredSchema:
        """Returns the version of this schema, which is added if it is new and fits.

        Without `may_update` only an existing schema is accepted, as for topics whose schemas are changed by
        administrators only.
        """
        self._check_form(schema)
        if (found := await self.find(name, schema)) is not None:
            return found
        if not may_update:
            raise IncompatibleSchemaError(
                "the topic does not have this schema, and new ones are not added automatically: use the admin API"
            )
        stamped = replace(schema, timestamp_ms=self._entropy.wall_ms())

        def decide(versions: Sequence[StoredSchema]) -> SchemaData | int:
            counting = _since_deletion(versions)
            if (same := _same(counting, schema)) is not None:
                return same.version
            if len(versions) >= self._config.versions_max:
                raise IncompatibleSchemaError(
                    f"the topic's schema has {len(versions)} versions, as many as schemas.versions_max allows: "
                    "delete the schema with all its versions first"
                )
            _check_new(counting, schema, strategy)
            return stamped

        version = await self._add(name, decide)
        return StoredSchema(stamped, version)

    async def check_consumer(self, name: str, schema: SchemaData, strategy: CompatibilityStrategy) -> None:
        """Checks that a consumer with this schema can read the topic. Raises SchemaMissingError if the topic has
        none."""
        self._check_form(schema)
        if strategy is CompatibilityStrategy.ALWAYS_COMPATIBLE:
            return
        versions = [each.schema for each in await self.all(name)]
        if not versions:
            raise SchemaMissingError("the topic has no schema that the consumer's schema could be compared with")
        if strategy in _CONSUMER_READS_LATEST:
            _check_latest(versions[-1], schema, CompatibilityStrategy.BACKWARD)
        else:
            check_compatible(versions, schema, strategy)

    async def add_or_check(
        self, name: str, schema: SchemaData, strategy: CompatibilityStrategy, *, may_update: bool, is_idle: bool
    ) -> None:
        """Adds or checks the schema of a consumer that subscribes. `is_idle`: the topic has neither messages nor
        producers, nor consumers that bring or know a schema; then its schema becomes the topic's, if that has none."""
        if is_idle and not await self.all(name):
            await self.add(name, schema, strategy, may_update=may_update)
            return
        try:
            await self.check_consumer(name, schema, strategy)
        except SchemaMissingError:
            raise IncompatibleSchemaError(
                f"the topic is in use without a schema: a consumer cannot add one of type {schema.type.name}"
            ) from None

    async def delete(self, name: str, *, user: str = "") -> int | None:
        """Marks the schema as deleted; returns that mark's version, or None if the topic has no schema."""
        mark = SchemaData(SchemaType.NONE, b"", {}, user, self._entropy.wall_ms(), is_deleted=True)
        if not await self.all(name):
            return None
        return await self._add(name, lambda _versions: mark)

    async def delete_with_history(self, name: str) -> bool:
        """Deletes all versions and their ledgers, as when its topic is deleted; returns False if it has none."""
        return await self._storage.delete(name)

    async def _add(self, name: str, decide: Decision) -> int:
        late = SchemaUnavailableError(f"other clients have been changing the schema of {name} for too long: try again")
        async with self._locks.hold(name, _TURN_TIMEOUT_S, late):
            return await self._storage.add(name, decide)

    def _check_form(self, schema: SchemaData) -> None:
        check_schema(schema, bytes_max=self._config.definition_bytes_max)


_CONSUMER_READS_LATEST: Final = (
    CompatibilityStrategy.BACKWARD,
    CompatibilityStrategy.FORWARD,
    CompatibilityStrategy.FORWARD_TRANSITIVE,
    CompatibilityStrategy.FULL,
)
"""Strategies with which a consumer must be able to read the newest schema only; otherwise the strategy itself holds."""


def _since_deletion(versions: Sequence[StoredSchema]) -> list[StoredSchema]:
    deletions = [index for index, each in enumerate(versions) if each.schema.is_deleted]
    return list(versions[deletions[-1] + 1 :] if deletions else versions)


def _same(versions: Sequence[StoredSchema], schema: SchemaData) -> StoredSchema | None:
    return next((each for each in versions if is_same_schema(each.schema, schema)), None)


def _check_new(versions: Sequence[StoredSchema], schema: SchemaData, strategy: CompatibilityStrategy) -> None:
    if not versions:
        return
    if strategy.is_transitive:
        check_compatible([each.schema for each in versions], schema, strategy)
    else:
        _check_latest(versions[-1].schema, schema, strategy)


def _check_latest(latest: SchemaData, schema: SchemaData, strategy: CompatibilityStrategy) -> None:
    is_equal = latest.type is schema.type and latest.data == schema.data
    if not is_equal:  # A schema fits itself with every strategy.
        check_compatible([latest], schema, strategy)
