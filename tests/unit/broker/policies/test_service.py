from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from magnetar.broker.policies import follower
from magnetar.broker.policies.events import IncomingEvent, encode_event, event_key, event_schema
from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.config.broker import BrokerConfig
from magnetar.config.root import Config
from magnetar.errors import InvalidPolicyError, NotAllowedError, PoliciesUnavailableError, ResourceMissingError
from magnetar.names import CHANGE_EVENTS, NamespaceName, TopicName
from magnetar.schemas.avro.binary import encode_value
from magnetar.schemas.avro.parser import parse_schema
from magnetar.schemas.compatibility import CompatibilityStrategy
from magnetar.schemas.data import SchemaData, SchemaType, version_to_bytes
from tests.unit.broker import golden
from tests.unit.broker.policies.policy_world import PolicyWorld, policy_world
from tests.unit.broker.worlds import TIMEOUT_S
from tests.unit.schemas.schema_world import registry_on

NAMESPACE = NamespaceName("public", "default")
TOPIC = NAMESPACE.topic("t")
EVENTS = NAMESPACE.topic(CHANGE_EVENTS)


class Listener:
    def __init__(self) -> None:
        self.heard: list[EffectivePolicies] = []
        self._something = asyncio.Event()

    def __call__(self, policies: EffectivePolicies) -> None:
        self.heard.append(policies)
        self._something.set()

    async def wait(self) -> EffectivePolicies:
        async with asyncio.timeout(TIMEOUT_S):
            await self._something.wait()
        self._something.clear()
        return self.heard[-1]


def set_ttl(seconds: int | None) -> Any:
    return lambda document: document | {"messageTTLInSeconds": seconds}


async def set_namespace(world: PolicyWorld, **policies: Any) -> None:
    await world.resources.namespaces.update(NAMESPACE, lambda found: found | policies)


# --- namespaces -------------------------------------------------------------------------------------------------------


async def test_loaded_topic_hears_of_a_change_of_its_namespace_and_only_of_changes() -> None:
    async with policy_world() as world:
        await world.policies.load(TOPIC)
        listener = Listener()
        unwatch = world.policies.watch(TOPIC, listener)
        await set_namespace(world, message_ttl_in_seconds=5)
        assert (await listener.wait()).message_ttl_s == 5
        assert world.policies.effective(TOPIC) == listener.heard[-1]
        await set_namespace(world, properties={"colour": "red"})
        await set_namespace(world, message_ttl_in_seconds=6)
        assert (await listener.wait()).message_ttl_s == 6
        assert len(listener.heard) == 2
        unwatch()
        unwatch()
        another = Listener()
        world.policies.watch(TOPIC, another)
        await set_namespace(world, message_ttl_in_seconds=7)
        assert (await another.wait()).message_ttl_s == 7
        assert len(listener.heard) == 2


async def test_refresh_puts_a_change_in_force_at_once_and_nothing_goes_back() -> None:
    async with policy_world() as world:
        await world.policies.load(TOPIC)
        for ttl_s in range(1, 20):
            await set_namespace(world, message_ttl_in_seconds=ttl_s)
            await world.policies.refresh(NAMESPACE)
            assert world.policies.effective(TOPIC).message_ttl_s == ttl_s
            await asyncio.sleep(0)
            assert world.policies.effective(TOPIC).message_ttl_s == ttl_s


async def test_policies_of_a_namespace_are_merged_once_for_each_document() -> None:
    async with policy_world() as world:
        await world.policies.load_namespace(NAMESPACE)
        for most in (3, 4):
            await set_namespace(world, max_topics_per_namespace=most)
            await world.policies.refresh(NAMESPACE)
            assert world.policies.of_namespace(NAMESPACE).topics_max == most
            assert world.policies.of_namespace(NAMESPACE) is world.policies.of_namespace(NAMESPACE)


async def test_namespace_that_does_not_exist_is_an_error_until_it_is_made() -> None:
    async with policy_world() as world:
        name = NamespaceName("public", "later")
        with pytest.raises(ResourceMissingError, match="public/later"):
            await world.policies.load(name.topic("t"))
        await world.resources.namespaces.create(name, golden.document("policies full"))
        await world.policies.load(name.topic("t"))
        assert world.policies.effective(name.topic("t")).message_ttl_s == 5
        assert world.policies.of_namespace(name).auto_topic_creation.partitions == 3


async def test_namespace_on_its_way_out_is_told() -> None:
    async with policy_world() as world:
        await world.policies.load(TOPIC)
        assert not world.policies.is_being_deleted(NAMESPACE)
        await world.resources.namespaces.mark_deleted(NAMESPACE)
        await world.policies.refresh(NAMESPACE)
        assert world.policies.is_being_deleted(NAMESPACE)
        await world.resources.namespaces.delete(NAMESPACE)
        await world.policies.refresh(NAMESPACE)
        assert world.policies.is_being_deleted(NAMESPACE)
        await world.policies.forget([NAMESPACE])
        with pytest.raises(PoliciesUnavailableError, match="not loaded"):
            world.policies.effective(TOPIC)


async def test_malformed_change_leaves_topics_with_what_they_have() -> None:
    async with policy_world() as world:
        await set_namespace(world, message_ttl_in_seconds=5)
        await world.policies.load(TOPIC)
        listener = Listener()
        world.policies.watch(TOPIC, listener)
        await set_namespace(world, message_ttl_in_seconds="many")
        await world.policies.refresh(NAMESPACE)
        await world.resources.store.put(f"/admin/policies/{NAMESPACE}", b"{")
        await world.policies.refresh(NAMESPACE)
        assert listener.heard == []
        await world.resources.store.put(f"/admin/policies/{NAMESPACE}", b'{"message_ttl_in_seconds":6}')
        assert (await listener.wait()).message_ttl_s == 6


async def test_listener_that_fails_does_not_keep_others_from_hearing() -> None:
    async with policy_world() as world:
        await world.policies.load(TOPIC)

        def fail(_policies: EffectivePolicies) -> None:
            raise RuntimeError("planted")

        listener = Listener()
        world.policies.watch(TOPIC, fail)
        world.policies.watch(TOPIC, listener)
        await set_namespace(world, message_ttl_in_seconds=5)
        assert (await listener.wait()).message_ttl_s == 5


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_loading_makes_no_topic_where_there_are_no_topic_policies() -> None:
    async with policy_world() as world:
        await world.policies.load(TOPIC)
        assert await world.resources.topics.names(NAMESPACE) == []
        assert world.policies.topic_policies(TOPIC) is None


async def test_change_of_a_topic_is_in_force_when_it_returns_and_partitions_hear_of_it() -> None:
    async with policy_world() as world:
        part = TOPIC.with_partition(1)
        await world.policies.load(part)
        listener, other = Listener(), Listener()
        world.policies.watch(part, listener)
        world.policies.watch(NAMESPACE.topic("other"), other)
        await world.policies.update_topic(TOPIC, set_ttl(9))
        assert world.policies.effective(part).message_ttl_s == 9
        assert [each.message_ttl_s for each in listener.heard] == [9]
        await world.policies.update_topic(TOPIC, set_ttl(None))
        assert world.policies.effective(part).message_ttl_s == 0
        assert other.heard == []


async def test_event_is_the_one_that_apache_publishes() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(10))
        (event,) = world.events.published
        assert (event.key, event.payload) == (str(TOPIC), golden.binary("event ttl"))
        assert (event.schema_version, event.replicate_to) == (b"\0" * 8, ("standalone",))
        registry = registry_on(world.resources.store, world.ledgers, world.resources.cache)
        stored = await registry.latest(EVENTS.schema_name)
        assert stored is not None
        assert stored.schema.data == event_schema().data
        assert stored.schema.type is SchemaType.AVRO


async def test_own_policies_count_before_global_ones_and_both_are_deleted_with_the_topic() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1), is_global=True)
        await world.policies.update_topic(TOPIC, set_ttl(2))
        assert world.policies.effective(TOPIC).message_ttl_s == 2
        assert world.events.published[0].key == f"__G__{TOPIC}"
        assert world.events.published[0].replicate_to == ()
        await world.policies.delete_topic(TOPIC)
        assert world.policies.effective(TOPIC).message_ttl_s == 0
        assert [event.payload is None for event in world.events.published] == [False, False, True, True]
        await world.policies.delete_topic(TOPIC)
        assert len(world.events.published) == 4


async def test_change_that_changes_nothing_publishes_nothing() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, lambda _document: None)
        await world.policies.update_topic(TOPIC, set_ttl(1))
        await world.policies.update_topic(TOPIC, set_ttl(1))
        assert len(world.events.published) == 1


async def test_changes_at_once_do_not_overwrite_each_other() -> None:
    async with policy_world() as world:
        fields = ["messageTTLInSeconds", "maxProducerPerTopic", "maxConsumerPerTopic", "maxMessageSize"]
        await asyncio.gather(
            *(world.policies.update_topic(TOPIC, lambda found, name=name: found | {name: 3}) for name in fields)  # type: ignore[misc]
        )
        document = world.policies.topic_policies(TOPIC)
        assert document is not None
        assert [document[name] for name in fields] == [3] * 4


async def test_value_that_makes_no_sense_is_refused_and_nothing_is_published() -> None:
    async with policy_world() as world:
        with pytest.raises(InvalidPolicyError):
            await world.policies.update_topic(TOPIC, lambda found: found | {"messageTTLInSeconds": "long"})
        assert world.events.published == []


async def test_broker_that_starts_later_reads_everything_before_a_topic_is_loaded() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1))
        await world.policies.update_topic(TOPIC, set_ttl(2))
        await world.policies.update_topic(NAMESPACE.topic("gone"), set_ttl(3))
        await world.policies.delete_topic(NAMESPACE.topic("gone"))
        broker = world.another_broker()
        await broker.load(TOPIC)
        assert broker.effective(TOPIC).message_ttl_s == 2
        assert broker.topic_policies(NAMESPACE.topic("gone")) is None
        await broker.aclose()


async def test_other_broker_hears_of_the_first_topic_policy_of_a_namespace() -> None:
    async with policy_world() as world:
        broker = world.another_broker()
        await broker.load(TOPIC)
        listener = Listener()
        broker.watch(TOPIC, listener)
        await world.policies.update_topic(TOPIC, set_ttl(4))
        assert (await listener.wait()).message_ttl_s == 4
        await broker.aclose()


async def test_change_events_itself_is_loaded_without_its_content() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1))
        broker = world.another_broker()
        world.events.topic(NAMESPACE).allowed.clear()  # Its reader waits for the topic, which is being loaded.
        async with asyncio.timeout(TIMEOUT_S):
            await broker.load(EVENTS)
        assert broker.effective(EVENTS).retention.minutes == -1
        await broker.aclose()


async def test_topic_is_not_loaded_without_its_policies() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1))
        broker = world.another_broker()
        world.events.topic(NAMESPACE).allowed.clear()
        await broker.load_namespace(NAMESPACE)
        broker._timeout_s = 0.01
        with pytest.raises(PoliciesUnavailableError, match="topic policies"):
            await broker.load(TOPIC)
        world.events.topic(NAMESPACE).allowed.set()
        broker._timeout_s = TIMEOUT_S
        await broker.load(TOPIC)
        assert broker.effective(TOPIC).message_ttl_s == 1
        await broker.aclose()


async def test_reader_that_fails_is_opened_again_and_policies_stay_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_PAUSE_MIN_S", 0.0)
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1))
        listener = Listener()
        world.policies.watch(TOPIC, listener)
        topic = world.events.topic(NAMESPACE)
        topic.breaks = 3
        topic.tell()
        await world.policies.update_topic(TOPIC, set_ttl(2))
        assert [each.message_ttl_s for each in listener.heard] == [2]
        assert topic.breaks == 0
        assert [reader.is_open for reader in topic.readers[:-1]] == [False] * (len(topic.readers) - 1)


async def test_policies_go_with_the_topic_that_held_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_PAUSE_MIN_S", 0.0)
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1))
        await world.resources.store.delete(EVENTS.log_path)
        listener = Listener()
        world.policies.watch(TOPIC, listener)
        topic = world.events.topics.pop(NAMESPACE)
        topic.breaks = 1
        topic.tell()
        assert (await listener.wait()).message_ttl_s == 0


async def test_event_that_cannot_be_read_does_not_hide_the_others() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1))
        topic = world.events.topic(NAMESPACE)
        topic.events.append(IncomingEvent("x", b"\xff\xff", None, (0, 1, 1)))
        topic.events.append(IncomingEvent("no/topic", None, None, (0, 1, 2)))
        topic.events.append(IncomingEvent("x", b"\xff", b"\1", (0, 1, 3)))
        topic.tell()
        await world.policies.update_topic(TOPIC, set_ttl(2))
        assert world.policies.effective(TOPIC).message_ttl_s == 2


async def test_event_of_a_schema_that_is_nothing_like_ours_does_not_hide_the_others() -> None:
    policies = {"type": "record", "name": "P", "fields": [{"name": "policies", "type": "string"}]}
    fields = [{"name": name, "type": "string"} for name in ("actionType", "eventType")]
    odd = {"type": "record", "name": "E", "fields": [*fields, {"name": "topicPoliciesEvent", "type": policies}]}
    event = {"actionType": "UPDATE", "eventType": "TOPIC_POLICY", "topicPoliciesEvent": {"policies": "no document"}}
    async with policy_world() as world:
        registry = registry_on(world.resources.store, world.ledgers, world.resources.cache)
        schema = SchemaData(SchemaType.AVRO, json.dumps(odd).encode())
        theirs = await registry.add(EVENTS.schema_name, schema, CompatibilityStrategy.ALWAYS_COMPATIBLE)
        await world.resources.topics.create_if_absent(EVENTS)
        payload = encode_value(parse_schema(schema.data), event)
        topic = world.events.topic(NAMESPACE)
        topic.events.append(IncomingEvent("x", payload, version_to_bytes(theirs.version), (0, 1, 0)))
        await world.policies.update_topic(TOPIC, set_ttl(2))
        assert world.policies.effective(TOPIC).message_ttl_s == 2


async def test_fields_that_a_newer_broker_wrote_survive_our_change() -> None:
    newer = json.loads(golden.text("event schema"))
    policies = newer["fields"][3]["type"][1]["fields"][2]["type"][1]
    policies["fields"].append({"name": "colour", "type": ["null", "string"], "default": None})
    async with policy_world() as world:
        registry = registry_on(world.resources.store, world.ledgers, world.resources.cache)
        schema = SchemaData(SchemaType.AVRO, json.dumps(newer).encode())
        theirs = await registry.add(EVENTS.schema_name, schema, CompatibilityStrategy.ALWAYS_COMPATIBLE)
        payload = encode_event(TOPIC, {"colour": "red", "isGlobal": False}, parse_schema(schema.data), [])
        await world.resources.topics.create_if_absent(EVENTS)
        key = event_key(TOPIC, is_global=False)
        topic = world.events.topic(NAMESPACE)
        topic.events.append(IncomingEvent(key, payload, version_to_bytes(theirs.version), (0, 1, 0)))
        await world.policies.update_topic(TOPIC, set_ttl(5))
        assert world.events.published[-1].schema_version == version_to_bytes(theirs.version)
        document = world.policies.topic_policies(TOPIC)
        assert document is not None
        assert (document["colour"], document["messageTTLInSeconds"]) == ("red", 5)


async def test_without_the_setting_topics_have_no_policies_of_their_own() -> None:
    async with policy_world(Config(broker=BrokerConfig(topic_policies=False))) as world:
        await world.policies.load(TOPIC)
        await world.policies.delete_topic(TOPIC)
        with pytest.raises(NotAllowedError, match=r"broker\.topic_policies"):
            await world.policies.update_topic(TOPIC, set_ttl(1))


async def test_closing_ends_every_task() -> None:
    async with policy_world() as world:
        await world.policies.load(TOPIC)
        await world.policies.load(TopicName.parse("pulsar/system/t"))
        await world.policies.aclose()
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith(("policies-of", "events-of"))]


async def test_closed_service_follows_no_namespace_again_when_a_client_still_asks() -> None:
    async with policy_world() as world:
        await world.policies.aclose()
        with pytest.raises(PoliciesUnavailableError, match="the broker is stopping"):
            await world.policies.load(TOPIC)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("policies-of")]


async def test_change_that_is_not_stored_or_not_read_in_time_says_what_is_known() -> None:
    async with policy_world() as world:
        await world.policies.update_topic(TOPIC, set_ttl(1))
        world.policies._timeout_s = 0.01
        world.events.may_publish.clear()
        with pytest.raises(PoliciesUnavailableError, match="may have been stored"):
            await world.policies.update_topic(TOPIC, set_ttl(2))
        world.events.may_publish.set()
        world.events.topic(NAMESPACE).allowed.clear()
        with pytest.raises(PoliciesUnavailableError, match="was stored"):
            await world.policies.update_topic(TOPIC, set_ttl(3))
        assert world.policies.effective(TOPIC).message_ttl_s == 1
