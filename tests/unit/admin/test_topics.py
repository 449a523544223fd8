"""Topics and partitions."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress, Owner
from magnetar.broker.staged.progress import property_of
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.config.broker import BrokerConfig
from magnetar.errors import MetadataUnavailableError
from magnetar.metadata.store import Create
from magnetar.names import TopicName
from tests.unit.admin.admin_world import TOPIC, V2, admin_world
from tests.unit.broker.pulsar.broker_world import BrokerWorld

pytestmark = pytest.mark.virtual_time

DEFAULT = f"{V2}/persistent/public/default"


async def test_topics_are_created_listed_and_deleted() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        assert (await world.call("PUT", TOPIC)).status == 409
        assert (await world.get(DEFAULT)).json == ["persistent://public/default/t"]
        await world.done("DELETE", TOPIC)
        assert (await world.get(DEFAULT)).json == []
        assert (await world.call("DELETE", TOPIC)).status == 404


async def test_a_name_with_a_slash_or_a_space_in_it_is_taken_as_it_was_encoded() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{DEFAULT}/a+b%26c")
        assert (await world.get(DEFAULT)).json == ["persistent://public/default/a b&c"]
        await world.done("PUT", f"{DEFAULT}/a+b%26c/subscription/x%2Fy")
        assert (await world.get(f"{DEFAULT}/a+b%26c/subscriptions")).json == ["x/y"]
        await world.done("DELETE", f"{DEFAULT}/a+b%26c/subscription/x%2Fy")


async def test_a_topic_that_somebody_uses_is_deleted_only_by_force() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.subscribe("t")
        assert (await world.call("DELETE", TOPIC)).status == 412
        await world.done("DELETE", f"{TOPIC}?force=true")
        assert (await world.get(DEFAULT)).json == []


async def test_a_topic_with_a_subscription_that_nobody_uses_is_deleted_with_it() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{TOPIC}/subscription/s")
        await world.done("DELETE", TOPIC)
        await world.done("PUT", TOPIC)
        assert (await world.get(f"{TOPIC}/subscriptions")).json == []


async def test_properties_that_brokers_keep_for_themselves_are_neither_shown_nor_changed() -> None:
    mark = property_of("job")
    async with admin_world() as world:
        await world.done("PUT", TOPIC, {"colour": "red"})
        topic = await world.world.broker.service.topic(TopicName.parse("persistent://public/default/t"), create=False)
        assert isinstance(topic, PersistentTopic)
        await topic.log.set_property(mark, "far")

        assert (await world.get(f"{TOPIC}/properties")).json == {"colour": "red"}
        refused = await world.call("PUT", f"{TOPIC}/properties", {"colour": "blue", mark: "back"})
        assert (refused.status, "is for brokers only" in refused.reason) == (412, True)
        await world.done("DELETE", f"{TOPIC}/properties?key={mark}")
        assert (topic.log.properties[mark], topic.log.properties["colour"]) == ("far", "red")

        assert (await world.call("PUT", f"{DEFAULT}/other", {mark: "back"})).status == 412
        assert (await world.get(DEFAULT)).json == ["persistent://public/default/t"]


async def test_partitions_are_there_before_anybody_uses_them_and_can_only_become_more() -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        await world.done("PUT", f"{many}/partitions", 2)
        assert (await world.get(DEFAULT)).json == [f"persistent://public/default/many-partition-{n}" for n in (0, 1)]
        assert (await world.get(f"{DEFAULT}/partitioned")).json == ["persistent://public/default/many"]
        assert (await world.call("PUT", f"{many}/partitions", 2)).status == 409
        assert (await world.call("POST", f"{many}/partitions", 1)).status == 422
        await world.done("POST", f"{many}/partitions", 3)
        assert (await world.get(f"{many}/partitions")).json == {"partitions": 3, "deleted": False}
        assert (await world.call("DELETE", many)).status == 409
        await world.done("DELETE", f"{many}/partitions")
        assert (await world.get(DEFAULT)).json == []
        assert (await world.get(f"{many}/partitions")).status == 404


async def test_a_topic_of_very_many_partitions_is_refused_and_many_are_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        refused = await world.call("PUT", f"{many}/partitions", 100_000)
        assert (refused.status, "broker.partitions_max" in refused.reason) == (412, True)
        assert (await world.get(f"{DEFAULT}")).json == []
        store = world.context.broker.service.resources.topics._documents.store
        created: list[str] = []
        monkeypatch.setattr(store, "create", _counted(store.create, created))
        await world.done("PUT", f"{many}/partitions", 1_200)
        assert len(created) <= 5
        assert len((await world.get(DEFAULT)).json) == 1_200
        await world.publish(1, "many-partition-3")
        service = world.context.broker.service
        monkeypatch.setattr(service.topics, "delete", _counted(service.topics.delete, deleted := []))
        await world.done("DELETE", f"{many}/partitions")
        assert len(deleted) == 1
        assert (await world.get(DEFAULT)).json == []


def _counted(original: Any, calls: list[str]) -> Any:
    async def create(path: str, *rest: Any, **options: Any) -> Any:
        calls.append(path)
        return await original(path, *rest, **options)

    return create


async def test_partitions_are_created_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        await world.done("PUT", f"{many}-partition-7")  # A topic that only looks like one of them.
        store = world.context.broker.service.resources.topics._documents.store
        original = store.transact
        with monkeypatch.context() as patch:

            async def fails_later(operations: Any) -> Any:
                if any(isinstance(each, Create) and each.path.endswith("-partition-600") for each in operations):
                    raise MetadataUnavailableError("away")
                return await original(operations)

            patch.setattr(store, "transact", fails_later)
            assert (await world.call("PUT", f"{many}/partitions", 700)).status == 503
        assert (await world.get(DEFAULT)).json == ["persistent://public/default/many-partition-7"]
        assert (await world.get(f"{DEFAULT}/partitioned")).json == []
        await world.done("PUT", f"{many}/partitions", 700)
        assert len((await world.get(DEFAULT)).json) == 700


async def test_subscriptions_are_on_new_partitions_too() -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        await world.done("PUT", f"{many}/partitions", {"partitions": 1, "properties": {"a": "b"}})
        await world.done("PUT", f"{many}/subscription/s")
        await world.done("POST", f"{many}/partitions", 2)
        assert (await world.get(f"{many}-partition-1/subscriptions")).json == ["s"]
        assert (await world.get(f"{many}/properties")).json == {"a": "b"}


async def test_what_is_published_to_a_new_partition_before_the_subscriptions_are_on_it_is_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        await world.done("PUT", f"{many}/partitions", 1)
        await world.done("PUT", f"{many}/subscription/s")
        partitioned_topics = world.world.broker.service.resources.partitioned_topics
        grow = partitioned_topics.grow

        async def grow_and_publish(topic: TopicName, partitions: int) -> None:
            await grow(topic, partitions)
            await world.publish(3, "many-partition-1")

        monkeypatch.setattr(partitioned_topics, "grow", grow_and_publish)
        await world.done("POST", f"{many}/partitions", 2)
        subscription = (await world.world.topic("many-partition-1")).subscriptions.require("s")
        assert subscription.cursor.backlog_entries() == 3


async def test_a_subscription_of_one_partition_alone_is_put_on_new_partitions_only() -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        await world.done("PUT", f"{many}/partitions", 2)
        await world.done("PUT", f"{many}-partition-0/subscription/s")
        await world.done("POST", f"{many}/partitions", 3)
        found = [(await world.get(f"{many}-partition-{index}/subscriptions")).json for index in range(3)]
        assert found == [["s"], [], ["s"]]


async def test_partitions_that_were_added_in_part_are_completed_by_asking_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        await world.done("PUT", f"{many}/partitions", 1)
        await world.done("PUT", f"{many}/subscription/s")
        await world.done("PUT", f"{many}/subscription/s/properties", {"colour": "red", "#pulsar.internal.x": "1"})
        with monkeypatch.context() as patch:

            async def fails(*_: Any) -> None:
                raise MetadataUnavailableError("away")

            patch.setattr(PersistentTopic, "create_subscription", fails)
            assert (await world.call("POST", f"{many}/partitions", 3)).status == 503
        assert (await world.get(f"{many}-partition-1/subscriptions")).json == []

        await world.publish(2, "many-partition-2")
        await world.done("POST", f"{many}/partitions", 3)
        for index in (1, 2):
            topic = await world.world.topic(f"many-partition-{index}")
            cursor = topic.cursors.get("s")
            assert cursor is not None
            assert cursor.backlog_entries() == topic.log.chain.entries
            assert cursor.properties == {"colour": "red"}


async def test_a_partitioned_topic_that_is_in_use_stays_whole() -> None:
    async with admin_world() as world:
        many = f"{DEFAULT}/many"
        await world.done("PUT", f"{many}/partitions", 2)
        talker = await world.talker()
        await talker.producer("many-partition-1")
        assert (await world.call("DELETE", f"{many}/partitions")).status == 412
        assert (await world.get(f"{many}/partitions")).json == {"partitions": 2, "deleted": False}
        await world.done("DELETE", f"{many}/partitions?force=true")


REFUSED: list[tuple[Any, ...]] = [
    ("PUT", "t/partitions", 0, 406),
    ("PUT", "t/partitions", "three", 400),
    ("PUT", "t-partition-0/partitions", 2, 412),
    ("PUT", "__change_events", None, 400),
    ("PUT", "%20", None, 412),
    ("GET", "t/stats", None, 404),
    ("GET", "t/partitioned-stats", None, 404),
    ("POST", "t/partitions", 2, 404),
    ("DELETE", "t/partitions", None, 404),
    ("PUT", "t/unload", None, 404),
    ("POST", "t/terminate", None, 404),
    ("PUT", "t", {"a": 1}, 400),
]


async def test_what_cannot_be_done_with_a_topic_has_pulsars_status() -> None:
    async with admin_world() as world:
        for method, path, body, status in REFUSED:
            answer = await world.call(method, f"{DEFAULT}/{path}", body)
            assert (answer.status, bool(answer.reason)) == (status, True), path


async def test_a_namespace_may_have_only_so_many_topics() -> None:
    async with admin_world(broker=BrokerConfig(topics_per_namespace_max=2)) as world:
        await world.done("PUT", TOPIC)
        assert (await world.call("PUT", f"{DEFAULT}/many/partitions", 2)).status == 412
        await world.done("PUT", f"{DEFAULT}/u")


async def test_a_terminated_topic_takes_no_more_and_says_where_it_ends() -> None:
    async with admin_world() as world:
        await world.publish(3)
        last = (await world.done("POST", f"{TOPIC}/terminate")).json
        assert (last["entryId"], last["batchIndex"]) == (2, -1)
        assert (await world.get(f"{TOPIC}/internalStats")).json["state"] == "Terminated"
        assert (await world.done("POST", f"{TOPIC}/terminate")).json == last


async def test_a_truncated_topic_is_empty_and_goes_on() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{TOPIC}/subscription/s")
        await world.publish(3)
        await world.done("DELETE", f"{TOPIC}/truncate")
        stats = (await world.get(f"{TOPIC}/internalStats")).json
        assert stats["numberOfEntries"] == 0
        await world.publish(2, first=10)
        assert (await world.get(f"{TOPIC}/stats")).json["subscriptions"]["s"]["msgBacklog"] == 2


async def test_properties_of_a_topic_come_and_go_and_a_brokers_own_are_not_shown() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC, {"a": "1"})
        await world.done("PUT", f"{TOPIC}/properties", {"b": "2"})
        await world.done("DELETE", f"{TOPIC}/properties?key=a")
        assert (await world.get(f"{TOPIC}/properties")).json == {"b": "2"}
        assert (await world.call("PUT", f"{TOPIC}/properties", {"index": "9"})).status == 412


async def test_a_compaction_begins_and_says_how_it_went() -> None:
    async with admin_world() as world:
        await world.publish(2)
        assert (await world.get(f"{TOPIC}/compaction")).json == {"status": "NOT_RUN", "lastError": ""}
        await world.done("PUT", f"{TOPIC}/compaction")
        await (await world.world.topic("t")).compaction.wait()
        assert (await world.get(f"{TOPIC}/compaction")).json["status"] == "SUCCESS"
        await world.done("POST", f"{TOPIC}/trim")


async def test_a_non_persistent_topic_is_there_while_somebody_uses_it() -> None:
    async with admin_world() as world:
        fleeting = f"{V2}/non-persistent/public/default"
        talker = await world.talker()
        await talker.subscribe("non-persistent://public/default/np", "s")
        assert (await world.get(fleeting)).json == ["non-persistent://public/default/np"]
        assert (await world.get(f"{fleeting}/np/subscriptions")).json == ["s"]
        stats = (await world.get(f"{fleeting}/np/stats")).json
        assert stats["subscriptions"]["s"]["type"] == "Exclusive"
        assert (await world.call("PUT", f"{fleeting}/np/subscription/u")).status == 400
        await world.done("PUT", f"{fleeting}/np/unload")
        assert (await world.get(fleeting)).json == []


async def test_a_topic_that_another_broker_serves_is_asked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin_world() as world:

        async def elsewhere(*_: object, **_named: object) -> Owner:
            return Owner(BrokerAddress("other:8080", "http://other:8080", {}), is_here=False)

        monkeypatch.setattr(world.context.broker.service, "look_up", elsewhere)
        answer = await world.get(f"{TOPIC}/stats?getPreciseBacklog=true")
        assert answer.status == 307
        location = f"http://other:8080{TOPIC}/stats?getPreciseBacklog=true&authoritative=false"
        assert answer.headers["location"] == location


async def test_a_lookup_names_the_broker_and_the_bundle() -> None:
    async with admin_world() as world:
        found = (await world.get("/lookup/v2/topic/persistent/public/default/t")).json
        address = world.context.broker.service.address
        assert (found["brokerUrl"], found["httpUrl"]) == (address.url_for(PULSAR), address.http_url)
        bundle = await world.get("/lookup/v2/topic/persistent/public/default/t/bundle")
        assert bundle.body.startswith(b"0x")
        assert (await world.get("/lookup/v2/topic/persistent/public/default/t?listenerName=x")).status == 412
        assert (await world.get("/lookup/v2/topic/queue/public/default/t")).status == 412
        assert (await world.get("/lookup/v2/topic/persistent/public/nothing/t")).status == 404


async def test_a_truncated_topic_still_knows_what_its_producers_have_sent_after_a_crash() -> None:
    async with admin_world(broker=BrokerConfig(deduplication=True)) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="p")
        for number in range(10):
            await talker.published(1, number, b"x")
        await world.done("DELETE", f"{TOPIC}/truncate")
        assert (await world.world.topic("t")).log.chain.entries == 0
        next_owner = BrokerWorld(world.world.cluster, world.world.config)
        await next_owner.start()  # The first one has stored nothing since.
        try:
            made = await (await next_owner.talker()).producer("t", producer_name="p")
            assert made.producer_success.last_sequence_id == 9
        finally:
            await next_owner.stop()
