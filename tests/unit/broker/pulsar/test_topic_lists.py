from __future__ import annotations

import pytest

from magnetar.broker.pulsar.topic_lists import compile_pattern, hash_of, matching
from magnetar.names import TopicName
from magnetar.runtime.slices import Slices
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    ServerError,
)
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker

pytestmark = pytest.mark.virtual_time

PREFIX = "persistent://public/default/"


async def topics(talker: Talker, **fields: object) -> CommandGetTopicsOfNamespaceResponse:
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.request_id, request.namespace = talker.next_request(), "public/default"
    for name, value in fields.items():
        setattr(request, name, value)
    talker.send(command)
    return (await talker.answer(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)).getTopicsOfNamespaceResponse


async def test_topics_of_a_namespace_are_listed_by_kind_and_pattern_and_only_if_they_changed(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    for number, name in enumerate(("a-1", "a-2", "b", "non-persistent://public/default/n")):
        await talker.producer(name, number)
    everything = await topics(talker, mode=CommandGetTopicsOfNamespace.ALL)
    assert sorted(everything.topics) == sorted(
        [PREFIX + "a-1", PREFIX + "a-2", PREFIX + "b", "non-persistent://public/default/n"]
    )
    some = await topics(talker, topics_pattern="persistent://public/default/a-.*")
    assert (list(some.topics), some.filtered) == ([PREFIX + "a-1", PREFIX + "a-2"], True)
    same = await topics(talker, topics_pattern="public/default/a-.*", topics_hash=some.topics_hash)
    assert (list(same.topics), same.changed) == ([], False)


async def test_a_pattern_that_may_take_for_ever_is_left_to_the_client(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("a")
    found = await topics(talker, topics_pattern="(a+)+$")
    assert (list(found.topics), found.filtered) == ([PREFIX + "a"], False)


@pytest.mark.parametrize("pattern", ["(a+)+", "(?=x)", r"(.)\1", "a*b*c*d*", "x" * 51, "["])
def test_unsafe_long_and_broken_patterns_are_not_compiled(pattern: str) -> None:
    assert compile_pattern(pattern, 50) is None


async def test_a_partition_matches_by_the_name_of_its_topic() -> None:
    pattern = compile_pattern("persistent://public/default/orders", 50)
    assert pattern is not None
    names = [TopicName.parse("orders-partition-0"), TopicName.parse("orders-2")]
    assert await matching(names, pattern, Slices()) == [PREFIX + "orders-partition-0"]


def test_the_hash_of_a_list_is_the_one_that_java_clients_compute() -> None:
    """Guava's crc32c of the sorted names, as its `HashCode` prints it."""
    assert hash_of([]) == "00000000"
    assert hash_of(["b", "a"]) == hash_of(["a", "b"])
    assert hash_of(["123456789"]) == "839206e3"  # CRC-32C of this text is e3069283; the lowest byte is printed first.


async def test_a_watcher_is_told_what_there_is_and_then_what_comes_and_goes(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("w-1", 1)
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id, request.namespace = 5, 7, "public/default"
    request.topics_pattern = "public/default/w-.*"
    talker.send(command)
    now = (await talker.answer(BaseCommand.WATCH_TOPIC_LIST_SUCCESS)).watchTopicListSuccess
    assert (now.watcher_id, list(now.topic)) == (7, [PREFIX + "w-1"])
    await talker.producer("other", 2)
    await talker.producer("w-2", 3)
    update = (await talker.answer(BaseCommand.WATCH_TOPIC_UPDATE)).watchTopicUpdate
    assert (list(update.new_topics), list(update.deleted_topics)) == ([PREFIX + "w-2"], [])
    await world.broker.service.delete_topic(TopicName.parse("w-1"), force=True)
    update = (await talker.answer(BaseCommand.WATCH_TOPIC_UPDATE)).watchTopicUpdate
    assert (list(update.deleted_topics), update.topics_hash) == ([PREFIX + "w-1"], hash_of([PREFIX + "w-2"]))
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_CLOSE)
    command.watchTopicListClose.request_id, command.watchTopicListClose.watcher_id = 6, 7
    talker.send(command)
    assert (await talker.answer(BaseCommand.SUCCESS)).success.request_id == 6


async def test_a_watcher_of_a_namespace_that_is_not_there_is_refused(world: BrokerWorld) -> None:
    talker = await world.talker()
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id, request.namespace, request.topics_pattern = 5, 7, "public/no", ".*"
    talker.send(command)
    assert (await talker.answer(BaseCommand.ERROR)).error.error == ServerError.TopicNotFound
