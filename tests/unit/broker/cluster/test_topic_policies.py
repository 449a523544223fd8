"""Policies of single topics, in a namespace whose `__change_events` another broker serves."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.names import TopicName
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand
from tests.unit.broker.cluster.brokers_world import BrokersWorld, brokers_world

pytestmark = pytest.mark.virtual_time

EVENTS = "persistent://public/default/__change_events"
V2 = "/admin/v2/persistent/public/default"


async def _topic_elsewhere(world: BrokersWorld) -> str:
    """Returns a topic that b owns, while a owns the events."""
    events = await world.own("a", EVENTS)
    names = (TopicName.parse(f"persistent://public/default/t{number}") for number in range(100))
    topic = str(next(name for name in names if name not in events))
    await world.own("b", topic)
    return topic


def limit_on(world: BrokersWorld, name: str, topic: str) -> int:
    return world.brokers[name].broker.service.policies.effective(TopicName.parse(topic)).producers_max


@pytest.mark.parametrize("setter", ["a", "b"])
async def test_a_policy_is_in_force_on_every_broker(setter: str) -> None:
    async with brokers_world("a", "b") as world:
        topic = await _topic_elsewhere(world)
        talker = await world.brokers["b"].talker()
        assert (await talker.producer(topic, 1)).type == BaseCommand.PRODUCER_SUCCESS
        path = f"{V2}/{TopicName.parse(topic).local}/maxProducers"
        await world.admins[setter].done("POST", path, 1)
        await until(lambda: limit_on(world, "b", topic) == 1, "the owner of the topic knows the policy")
        assert (await talker.producer(topic, 2)).type == BaseCommand.ERROR
        await world.admins[setter].done("DELETE", path)
        await until(lambda: not limit_on(world, "b", topic), "the owner knows that it is deleted")
        assert (await talker.producer(topic, 3)).type == BaseCommand.PRODUCER_SUCCESS


async def test_policies_are_known_of_topics_that_are_not_loaded_and_stay_when_the_events_move() -> None:
    async with brokers_world("a", "b") as world:
        topic = await _topic_elsewhere(world)
        await world.admins["b"].done("PUT", f"{V2}/{TopicName.parse(topic).local}")
        await world.ownership("b").unload(await world.ownership("b").bundle_of(TopicName.parse(topic)))
        await world.admins["a"].done("POST", f"{V2}/{TopicName.parse(topic).local}/maxProducers", 1)
        await world.own("b", topic)
        await until(lambda: limit_on(world, "b", topic) == 1, "the next owner of the topic knows the policy")
        talker = await world.brokers["b"].talker()
        await talker.producer(topic, 1)
        assert (await talker.producer(topic, 2)).type == BaseCommand.ERROR
        await world.ownership("a").unload(await world.ownership("a").bundle_of(TopicName.parse(EVENTS)))
        await world.own("b", EVENTS)
        await asyncio.sleep(1.0)
        path = f"{V2}/{TopicName.parse(topic).local}/maxProducers"
        await world.admins["a"].done("POST", path, 2)
        await until(lambda: limit_on(world, "b", topic) == 2, "the change was made where the events are now")
        assert (await talker.producer(topic, 3)).type == BaseCommand.PRODUCER_SUCCESS
