"""Clients publish and consume while their bundle moves from broker to broker, and a session expires."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.client.client import PulsarClient
from magnetar.client.values import EARLIEST, ProducerOptions
from magnetar.runtime.system import SystemRuntime
from tests.unit.broker.cluster.brokers_world import BrokersWorld, brokers_world

pytestmark = pytest.mark.virtual_time

TOPIC = "persistent://public/default/t"
MESSAGES = 400


async def _move_forever(world: BrokersWorld) -> None:
    turn = 0
    while True:
        await asyncio.sleep(0.3)
        turn += 1
        for name in "abc":
            for bundle in list(world.ownership(name).owned()):
                await world.ownership(name).unload(bundle)
        world.members.chooses = f"{'abc'[turn % 3]}:8080"
        if turn % 5 == 0:
            await world.cluster.server.expire(world.stores["abc"[turn % 3]])


async def test_no_message_is_lost_and_each_producer_keeps_its_order() -> None:
    async with brokers_world("a", "b", "c") as world:
        moving = asyncio.create_task(_move_forever(world))
        async with PulsarClient(world.url_of("a"), SystemRuntime().entropy) as client:
            producer = await client.producer(TOPIC, ProducerOptions(batching=False, send_timeout_s=120.0))
            for number in range(MESSAGES):
                await producer.send(b"%d" % number)
                await asyncio.sleep(0.01)
            assert not moving.done()
            moving.cancel()
            await asyncio.wait([moving])
            reader = await client.reader(TOPIC, EARLIEST)
            found: list[int] = []
            while await reader.has_next():
                found.append(int((await reader.read()).payload))
        without_repeats = list(dict.fromkeys(found))
        assert without_repeats == list(range(MESSAGES))
        assert sum(bool(world.ownership(name).owned()) for name in "abc") == 1
