from __future__ import annotations

import json

import pytest

from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, Schema, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker

pytestmark = pytest.mark.virtual_time


def avro(*fields: str, optional: str = "") -> Schema:
    parts: list[dict[str, object]] = [{"name": name, "type": "string"} for name in fields]
    if optional:
        parts.append({"name": optional, "type": ["null", "string"], "default": None})
    data = json.dumps({"type": "record", "name": "R", "fields": parts}).encode()
    return Schema(name="R", schema_data=data, type=Schema.Avro)


async def produce_with(talker: Talker, schema: Schema, producer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    request = command.producer
    request.topic, request.producer_id, request.request_id = "t", producer_id, talker.next_request()
    request.schema.CopyFrom(schema)
    talker.send(command)
    return await talker.answer(BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR)


async def get_schema(talker: Talker, version: bytes | None = None) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_SCHEMA)
    command.getSchema.topic, command.getSchema.request_id = "t", talker.next_request()
    if version is not None:
        command.getSchema.schema_version = version
    talker.send(command)
    return await talker.answer(BaseCommand.GET_SCHEMA_RESPONSE)


async def test_a_producers_schema_becomes_a_version_that_can_be_asked_for(world: BrokerWorld) -> None:
    talker = await world.talker()
    first = (await produce_with(talker, avro("a"), 1)).producer_success.schema_version
    second = (await produce_with(talker, avro("a", optional="b"), 2)).producer_success.schema_version
    again = (await produce_with(talker, avro("a"), 3)).producer_success.schema_version
    assert (first, second, again) == ((0).to_bytes(8, "big"), (1).to_bytes(8, "big"), first)
    latest = (await get_schema(talker)).getSchemaResponse
    assert (latest.schema_version, latest.schema.type) == (second, Schema.Avro)
    assert (await get_schema(talker, first)).getSchemaResponse.schema.schema_data == avro("a").schema_data


async def test_a_schema_that_does_not_fit_or_is_not_one_is_incompatible(world: BrokerWorld) -> None:
    talker = await world.talker()
    await produce_with(talker, avro("a"), 1)
    assert (await produce_with(talker, avro("a", "needed"), 2)).error.error == ServerError.IncompatibleSchema
    broken = Schema(name="R", schema_data=b"{", type=Schema.Avro)
    assert (await produce_with(talker, broken, 3)).error.error == ServerError.IncompatibleSchema


async def test_a_topic_without_a_schema_has_none_to_give_and_an_empty_version_is_no_version(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    assert (await get_schema(talker)).getSchemaResponse.error_code == ServerError.TopicNotFound
    assert (await get_schema(talker, b"")).getSchemaResponse.error_code == ServerError.IncompatibleSchema


async def test_a_schema_is_added_without_a_producer_to_a_topic_that_exists(world: BrokerWorld) -> None:
    talker = await world.talker()
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
    request = command.getOrCreateSchema
    request.topic, request.request_id = "t", talker.next_request()
    request.schema.CopyFrom(avro("a"))
    talker.send(command)
    answer = (await talker.answer(BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)).getOrCreateSchemaResponse
    assert answer.error_code == ServerError.TopicNotFound
    await talker.producer("t")
    talker.send(command)
    answer = (await talker.answer(BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)).getOrCreateSchemaResponse
    assert answer.schema_version == (0).to_bytes(8, "big")


async def test_a_consumer_brings_the_first_schema_to_an_idle_topic_and_none_to_one_in_use_without(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()

    async def subscribe_with(topic: str, consumer_id: int) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription, request.subType = topic, f"s{consumer_id}", 0
        request.consumer_id, request.request_id = consumer_id, talker.next_request()
        request.schema.CopyFrom(avro("a"))
        talker.send(command)
        return await talker.answer(BaseCommand.SUCCESS, BaseCommand.ERROR)

    assert (await subscribe_with("t", 1)).type == BaseCommand.SUCCESS
    assert (await get_schema(talker)).getSchemaResponse.schema.type == Schema.Avro
    await talker.producer("plain")
    assert (await subscribe_with("plain", 2)).error.error == ServerError.IncompatibleSchema
