from __future__ import annotations

import pytest

from magnetar.config.broker import BrokerConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.names import TopicName
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, broker_world

pytestmark = pytest.mark.virtual_time


async def look_up(talker: Talker, topic: str, listener: str = "") -> CommandLookupTopicResponse:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = topic, talker.next_request()
    command.lookupTopic.advertised_listener_name = listener
    talker.send(command)
    return (await talker.answer(BaseCommand.LOOKUP_RESPONSE)).lookupTopicResponse


async def partitions(talker: Talker, topic: str, *, create: bool = True) -> CommandPartitionedTopicMetadataResponse:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    request = command.partitionMetadata
    request.topic, request.request_id, request.metadata_auto_creation_enabled = topic, talker.next_request(), create
    talker.send(command)
    return (await talker.answer(BaseCommand.PARTITIONED_METADATA_RESPONSE)).partitionMetadataResponse


async def test_a_lookup_names_this_broker_for_any_topic_of_a_namespace_that_exists(world: BrokerWorld) -> None:
    found = await look_up(await world.talker(), "persistent://public/default/any")
    assert found.response == CommandLookupTopicResponse.Connect
    assert found.brokerServiceUrl == f"pulsar://127.0.0.1:{world.front_end.port}"
    assert found.authoritative


async def test_a_lookup_in_a_namespace_that_is_not_there_is_not_found(world: BrokerWorld) -> None:
    found = await look_up(await world.talker(), "persistent://public/nowhere/t")
    assert (found.response, found.error) == (CommandLookupTopicResponse.Failed, ServerError.TopicNotFound)


async def test_a_name_that_is_not_one_is_an_invalid_topic_name(world: BrokerWorld) -> None:
    talker = await world.talker()
    assert (await look_up(talker, "persistent://a/b")).error == ServerError.InvalidTopicName
    assert (await partitions(talker, "other://a/b/c")).error == ServerError.InvalidTopicName
    assert (await talker.producer("persistent://a/b/c/d/e")).error.error == ServerError.InvalidTopicName
    assert (await talker.subscribe("")).error.error == ServerError.InvalidTopicName


async def test_a_lookup_by_a_listeners_name_gets_that_listeners_address() -> None:
    config = PulsarConfig(port=0, advertised_listeners="internal:pulsar://in:1, external:pulsar://out:2")
    async with broker_world(pulsar=config) as world:
        talker = await world.talker()
        assert (await look_up(talker, "t", "external")).brokerServiceUrl == "pulsar://out:2"
        assert (await look_up(talker, "t", "unknown")).error == ServerError.NotAllowedError


async def test_lookups_beyond_the_limit_are_too_many_requests(world: BrokerWorld) -> None:
    world.front_end.lookups.in_progress = world.config.pulsar.lookups_in_progress_max
    talker = await world.talker()
    assert (await look_up(talker, "t")).error == ServerError.TooManyRequests
    assert (await partitions(talker, "t")).error == ServerError.TooManyRequests


async def test_a_topic_that_is_not_partitioned_has_no_partitions_and_one_that_is_has_its_own(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    await world.broker.service.create_partitioned_topic(TopicName.parse("parted"), 3)
    assert (await partitions(talker, "parted")).partitions == 3
    assert (await partitions(talker, "plain")).partitions == 0


async def test_who_only_asks_makes_nothing(world: BrokerWorld) -> None:
    talker = await world.talker()
    assert (await partitions(talker, "absent", create=False)).error == ServerError.TopicNotFound
    await talker.producer("present")
    assert (await partitions(talker, "present", create=False)).partitions == 0


async def test_a_broker_that_makes_partitioned_topics_makes_one_for_whoever_asks() -> None:
    config = BrokerConfig(auto_create_topics_type="partitioned", auto_create_partitions=4)
    async with broker_world(broker=config) as world:
        talker = await world.talker()
        assert (await partitions(talker, "t")).partitions == 4
        assert (await partitions(talker, "t-RETRY")).partitions == 0
        assert (await talker.producer("t-partition-3")).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_partition_beyond_its_topics_and_a_partitioned_topic_by_its_own_name_are_not_allowed(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    await world.broker.service.create_partitioned_topic(TopicName.parse("parted"), 2)
    assert (await talker.producer("parted-partition-1", 1)).type == BaseCommand.PRODUCER_SUCCESS
    assert (await talker.producer("parted-partition-2", 2)).error.error == ServerError.NotAllowedError
    assert (await talker.producer("parted", 3)).error.error == ServerError.NotAllowedError
    assert (await talker.producer("single-partition-0", 4)).error.error == ServerError.NotAllowedError


async def test_topics_are_not_made_by_using_them_where_that_is_switched_off() -> None:
    async with broker_world(broker=BrokerConfig(auto_create_topics=False)) as world:
        talker = await world.talker()
        assert (await talker.producer("t")).error.error == ServerError.TopicNotFound
        assert (await talker.subscribe("t")).error.error == ServerError.TopicNotFound
        await world.broker.service.create_topic(TopicName.parse("t"))
        assert (await talker.producer("t")).type == BaseCommand.PRODUCER_SUCCESS
