from __future__ import annotations

import asyncio

import pytest

from magnetar.config.defaults import SchemasConfig
from magnetar.config.topic import TopicConfig
from magnetar.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    MalformedMetadataError,
    OutcomeUnknownError,
    SchemaMissingError,
    SchemaUnavailableError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.cache import MetadataCache
from magnetar.runtime.system import SystemEntropy
from magnetar.schemas.compatibility import CompatibilityStrategy as Strategy
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.schemas.proto.schema_storage_pb2 import SchemaEntry, SchemaInfo, SchemaLocator
from magnetar.schemas.registry import SchemaRegistry
from magnetar.schemas.storage import BookieSchemaLedgers, SchemaStorage
from magnetar.testing.cluster import BookieCluster
from magnetar.wire.bookkeeper.digests import DigestType
from tests.unit.broker import golden
from tests.unit.schemas.schema_world import SchemaWorld, registry_on, schema_world
from tests.unit.schemas.test_compatibility import STRING, record

NAME = "public/default/t"
PATH = "/schemas/public/default/t"
FULL = Strategy.FULL


async def locator(world: SchemaWorld) -> SchemaLocator:
    node = await world.store.get(PATH)
    assert node is not None
    return SchemaLocator.FromString(node.value)


# --- Apache's form ----------------------------------------------------------------------------------------------------


def test_forms_are_those_of_apache() -> None:
    info = SchemaInfo.FromString(golden.binary("schema info"))
    assert (info.schema_id, info.user, info.type, info.timestamp) == ("public/default/t", "u", 5, 1234567890123)
    entry = SchemaEntry.FromString(golden.binary("schema entry"))
    assert entry.schema_data == golden.binary("schema info")
    found = SchemaLocator.FromString(golden.binary("schema locator"))
    for name, message in (("schema info", info), ("schema entry", entry), ("schema locator", found)):
        assert message.SerializeToString() == golden.binary(name)


async def test_schemas_that_apache_stored_are_read_and_added_to() -> None:
    async with schema_world() as world:
        await world.store.create(PATH, golden.binary("schema locator"), make_parents=True)
        world.ledgers.entries = {11: golden.binary("schema entry"), 12: golden.binary("schema entry")}
        latest = await world.registry.latest(NAME)
        assert latest is not None
        expected = SchemaData(SchemaType.AVRO, b'{"type":"string"}', {"k": "v"}, "u", 1234567890123)
        assert (latest.schema, latest.version) == (expected, 1)
        added = await world.registry.add(NAME, SchemaData(SchemaType.AVRO, b'"bytes"'), FULL)
        assert added.version == 2
        assert [entry.version for entry in (await locator(world)).index] == [0, 1, 2]


async def test_first_version_is_stored_as_apache_stores_it() -> None:
    async with schema_world() as world:
        schema = SchemaData(SchemaType.AVRO, b'{"type":"string"}', {"k": "v"}, "u")
        stored = await world.registry.add(NAME, schema, FULL)
        apache, ours = SchemaEntry.FromString(golden.binary("schema entry")), world.ledgers.entries[11]
        entry = SchemaEntry.FromString(ours)
        assert list(entry.index) == list(apache.index)
        info = SchemaInfo.FromString(entry.schema_data)
        assert info.timestamp == stored.schema.timestamp_ms > 0
        info.timestamp = 1234567890123
        assert info.SerializeToString() == golden.binary("schema info")
        found = await locator(world)
        assert found.info == found.index[0]
        assert found.info.hash == schema.hash


async def test_deletion_is_stored_as_apache_stores_it() -> None:
    async with schema_world() as world:
        await world.registry.add(NAME, record("a"), FULL)
        assert await world.registry.delete(NAME, user="u") == 1
        found = await locator(world)
        stored = SchemaEntry.FromString(world.ledgers.entries[found.info.position.ledgerId])
        info = SchemaInfo.FromString(stored.schema_data)
        assert info.timestamp > 0
        info.timestamp = 1234567890123
        assert info.SerializeToString() == golden.binary("deleted schema")


def test_types_are_stored_with_the_numbers_of_apache() -> None:
    assert {kind.name: kind.to_stored() for kind in SchemaType} == golden.document("stored schema types")


# --- versions ---------------------------------------------------------------------------------------------------------


async def test_versions_count_up_and_a_known_schema_keeps_its_own() -> None:
    async with schema_world() as world:
        registry = world.registry
        assert await registry.latest(NAME) is None
        schemas = [record("a"), record("a", "b="), record("a", "b=", "c=")]
        assert [(await registry.add(NAME, each, FULL)).version for each in schemas] == [0, 1, 2]
        assert [(await registry.add(NAME, each, FULL)).version for each in schemas] == [0, 1, 2]
        assert len(world.ledgers.entries) == 3
        latest = await registry.latest(NAME)
        assert latest is not None
        assert (latest.version, latest.version_bytes) == (2, b"\0" * 7 + b"\2")
        second = await registry.version(NAME, 1)
        assert second is not None
        assert second.schema.data == schemas[1].data
        assert await registry.version(NAME, 7) is None
        found = await registry.find(NAME, schemas[1])
        assert found is not None
        assert found.version == 1


async def test_schema_that_does_not_fit_is_not_added() -> None:
    async with schema_world() as world:
        await world.registry.add(NAME, record("a"), FULL)
        with pytest.raises(IncompatibleSchemaError, match="at b"):
            await world.registry.add(NAME, record("a", "b"), FULL)
        with pytest.raises(IncompatibleSchemaError):
            await world.registry.check(NAME, STRING, FULL)
        with pytest.raises(InvalidSchemaError):
            await world.registry.add(NAME, SchemaData(SchemaType.AVRO, b"{"), FULL)
        assert len(world.ledgers.entries) == 1


async def test_only_transitive_strategies_look_at_older_versions() -> None:
    async with schema_world() as world:
        for schema in (record("a"), record()):
            await world.registry.add(NAME, schema, Strategy.BACKWARD)
        await world.registry.check(NAME, record("b="), Strategy.FULL)
        with pytest.raises(IncompatibleSchemaError):
            await world.registry.check(NAME, record("b="), Strategy.FORWARD_TRANSITIVE)


async def test_without_leave_only_known_schemas_are_accepted() -> None:
    async with schema_world() as world:
        await world.registry.add(NAME, record("a"), FULL)
        assert (await world.registry.add(NAME, record("a"), FULL, may_update=False)).version == 0
        with pytest.raises(IncompatibleSchemaError, match="admin API"):
            await world.registry.add(NAME, record("a", "b="), FULL, may_update=False)


async def test_deleted_schema_is_gone_and_numbers_go_on() -> None:
    async with schema_world() as world:
        registry = world.registry
        assert await registry.delete(NAME) is None
        await registry.add(NAME, record("a"), FULL)
        assert await registry.delete(NAME, user="me") == 1
        assert (await locator(world)).info.hash == b""
        assert await registry.latest(NAME) is None
        assert await registry.version(NAME, 0) is None
        assert await registry.delete(NAME) is None
        assert (await registry.add(NAME, STRING, FULL)).version == 2
        assert [each.version for each in await registry.all(NAME)] == [2]
        assert await registry.delete(NAME) == 3
        assert (await registry.add(NAME, record("a"), FULL)).version == 4
        assert [each.version for each in await registry.all(NAME)] == [4]


async def test_deletion_with_history_leaves_neither_node_nor_ledger() -> None:
    async with schema_world() as world:
        for schema in (record("a"), record("a", "b=")):
            await world.registry.add(NAME, schema, FULL)
        assert await world.registry.delete_with_history(NAME)
        assert await world.store.get(PATH) is None
        assert world.ledgers.entries == {}
        assert not await world.registry.delete_with_history(NAME)
        assert (await world.registry.add(NAME, STRING, FULL)).version == 0


async def test_number_of_versions_has_a_limit() -> None:
    async with schema_world(SchemasConfig(versions_max=2)) as world:
        for schema in (record("a"), record("a", "b=")):
            await world.registry.add(NAME, schema, FULL)
        with pytest.raises(IncompatibleSchemaError, match="versions_max"):
            await world.registry.add(NAME, record("a", "c="), FULL)


# --- consumers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "fits"),
    [
        (Strategy.BACKWARD, True),  # Only the newest must be readable: the consumer reads {a, b=} with {b=}.
        (Strategy.FORWARD, True),
        (Strategy.FULL, True),
        (Strategy.FORWARD_TRANSITIVE, True),
        (Strategy.FULL_TRANSITIVE, False),
        (Strategy.ALWAYS_COMPATIBLE, True),
        (Strategy.ALWAYS_INCOMPATIBLE, False),
    ],
)
async def test_consumer_must_be_able_to_read_the_topic(strategy: Strategy, fits: bool) -> None:
    async with schema_world() as world:
        for schema in (record("a"), record("a", "b=")):
            await world.registry.add(NAME, schema, FULL)
        if fits:
            await world.registry.check_consumer(NAME, record("b="), strategy)
        else:
            with pytest.raises(IncompatibleSchemaError):
                await world.registry.check_consumer(NAME, record("b="), strategy)


async def test_consumer_brings_the_schema_of_an_idle_topic_and_is_refused_by_a_busy_one_without() -> None:
    async with schema_world() as world:
        registry = world.registry
        with pytest.raises(SchemaMissingError):
            await registry.check_consumer(NAME, STRING, FULL)
        with pytest.raises(IncompatibleSchemaError, match="in use without a schema"):
            await registry.add_or_check(NAME, STRING, FULL, may_update=True, is_idle=False)
        await registry.add_or_check(NAME, STRING, FULL, may_update=True, is_idle=True)
        latest = await registry.latest(NAME)
        assert latest is not None
        assert latest.schema.type is SchemaType.STRING
        with pytest.raises(IncompatibleSchemaError):
            await registry.add_or_check(NAME, record("a"), FULL, may_update=True, is_idle=True)


# --- races and trouble ------------------------------------------------------------------------------------------------


async def test_many_who_bring_the_same_schema_write_one_ledger() -> None:
    async with schema_world() as world:
        added = await asyncio.gather(*(world.registry.add(NAME, record("a"), FULL) for _ in range(50)))
        assert {each.version for each in added} == {0}
        assert len(world.ledgers.entries) == 1
        assert world.ledgers.deleted == []


async def test_brokers_that_add_at_once_get_different_versions_and_leave_no_ledger_behind() -> None:
    async with schema_world() as world:
        caches = [MetadataCache(world.store, entries_max=10) for _ in range(4)]
        brokers = [registry_on(world.store, world.ledgers, cache) for cache in caches]
        schemas = [record("a", *(f"f{other}=" for other in range(number + 1))) for number in range(4)]
        added = await asyncio.gather(
            *(broker.add(NAME, schema, FULL) for broker, schema in zip(brokers, schemas, strict=True))
        )
        assert sorted(each.version for each in added) == [0, 1, 2, 3]
        ledgers = [entry.position.ledgerId for entry in (await locator(world)).index]
        assert sorted(world.ledgers.entries) == sorted(ledgers)
        for cache in caches:
            await cache.aclose()


@pytest.mark.parametrize("is_done", [True, False])
async def test_outcome_that_is_unknown_is_looked_for(is_done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with schema_world() as world:
        await world.registry.add(NAME, record("a"), FULL)
        real, calls = world.store.put, 0

        async def put(path: str, value: bytes, version: int = -1) -> int:
            nonlocal calls
            calls += 1
            if calls == 1 and not is_done:
                raise OutcomeUnknownError("lost")
            done = await real(path, value, version)
            if calls == 1:
                raise OutcomeUnknownError("lost")
            return done

        monkeypatch.setattr(world.store, "put", put)
        assert (await world.registry.add(NAME, record("a", "b="), FULL)).version == 1
        assert [entry.version for entry in (await locator(world)).index] == [0, 1]
        assert len(world.ledgers.entries) == 2


async def test_locator_and_entry_that_are_damaged_are_named_errors() -> None:
    async with schema_world() as world:
        await world.store.create(PATH, b"\x0a\xff", make_parents=True)
        with pytest.raises(MalformedMetadataError, match=PATH):
            await world.registry.latest(NAME)
        await world.registry.add("other", STRING, FULL)
        world.ledgers.entries[11] = b"\xff\xff"
        with pytest.raises(MalformedMetadataError, match="ledger 11"):
            await world.registry.latest("other")


async def test_schemas_are_on_bookies_and_survive_the_broker() -> None:
    topic = TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)
    async with BookieCluster(1) as cluster, LedgerClient(cluster.store, cluster.config, cluster.runtime) as client:
        cache = MetadataCache(cluster.store, entries_max=100)

        def registry() -> SchemaRegistry:
            storage = SchemaStorage(cluster.store, cache, BookieSchemaLedgers(client, topic))
            return SchemaRegistry(storage, SchemasConfig(), SystemEntropy())

        await registry().add(NAME, record("a"), FULL)
        after = registry()
        assert (await after.add(NAME, record("a", "b="), FULL)).version == 1
        assert [each.schema.data for each in await after.all(NAME)] == [record("a").data, record("a", "b=").data]
        node = await cluster.store.get(PATH)
        assert node is not None
        ledger = SchemaLocator.FromString(node.value).info.position.ledgerId
        metadata = await client.metadata(ledger)
        assert metadata.is_closed
        assert dict(metadata.custom_metadata) == golden.custom_metadata("schema")
        assert (metadata.digest_type, metadata.password) == (DigestType.CRC32C, b"")
        await client.delete(ledger)
        with pytest.raises(SchemaUnavailableError, match=str(ledger)):
            await registry().latest(NAME)
        await cache.aclose()
