"""Brokers of a test's cluster are killed, paused, separated and lose their sessions, while a client publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from magnetar.client.client import PulsarClient
from magnetar.client.values import EARLIEST
from magnetar.names import TopicName
from magnetar.testing.broker_node import BrokerNode
from magnetar.testing.cluster import METADATA, PulsarCluster
from magnetar.testing.waiting import until

TOPIC = TopicName.parse("public/default/t")
SHORT_SESSION = ("metadata.session_timeout_ms=300",)


@asynccontextmanager
async def brokers(
    count: int = 2, bookies: int = 1, settings: tuple[str, ...] = ()
) -> AsyncIterator[tuple[PulsarCluster, PulsarClient, BrokerNode]]:
    """The cluster, a client, and the owner of TOPIC."""
    async with (
        PulsarCluster(bookies, brokers=count, settings=settings) as cluster,
        PulsarClient(cluster.pulsar_url, cluster.runtime.entropy) as client,
    ):
        yield cluster, client, await cluster.owner_of(TOPIC)


async def other_broker_stores(cluster: PulsarCluster, owner: BrokerNode) -> None:
    """Takes longer than a send to the owner would, if it could be answered."""
    other = next(node for node in cluster.brokers if node is not owner)
    service = other.running.service
    await service.topics.get_persistent(await topic_owned_by(cluster, other), create=True)


async def topic_owned_by(cluster: PulsarCluster, node: BrokerNode) -> TopicName:
    for number in range(100):
        topic = TopicName.parse(f"public/default/{number}")
        if (await node.running.service.ownership.owner_of(topic, is_authoritative=True)).is_here:
            return topic
    raise AssertionError(f"{node.broker_id} owns nothing")


async def stored(client: PulsarClient, count: int) -> list[bytes]:
    async with asyncio.timeout(20):
        reader = await client.reader(str(TOPIC), EARLIEST)
        return [(await reader.read()).payload for _ in range(count)]


async def test_another_broker_serves_the_topics_of_a_killed_one() -> None:
    async with brokers() as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        await producer.send(b"before")
        await cluster.kill(owner.broker_id)
        await producer.send(b"after")
        assert await cluster.owner_of(TOPIC) is not owner
        assert await stored(client, 2) == [b"before", b"after"]


async def test_a_killed_broker_comes_back_with_its_addresses() -> None:
    async with brokers(1) as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        await producer.send(b"before")
        addresses = owner.broker_id, owner.pulsar_url
        await cluster.kill(owner.broker_id)
        assert not owner.is_running
        await cluster.restart(owner.broker_id)
        await producer.send(b"after")
        assert (owner.broker_id, owner.pulsar_url) == addresses
        assert await stored(client, 2) == [b"before", b"after"]


async def test_a_paused_broker_answers_when_it_is_resumed_in_time() -> None:
    async with brokers() as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        cluster.pause(owner.broker_id)
        sending = asyncio.ensure_future(producer.send(b"late"))
        await other_broker_stores(cluster, owner)
        assert not sending.done()
        cluster.resume(owner.broker_id)
        await sending
        assert await stored(client, 1) == [b"late"]


async def test_the_topics_of_a_broker_that_pauses_for_longer_than_its_session_move() -> None:
    async with brokers(settings=SHORT_SESSION) as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        await producer.send(b"before")
        cluster.pause(owner.broker_id)
        other = await cluster.owner_of(TOPIC)
        assert other is not owner
        cluster.resume(owner.broker_id)
        await producer.send(b"after")
        await until(lambda: not owner.running.service.topics.find(TOPIC), "the former owner unloads the topic")
        assert await stored(client, 2) == [b"before", b"after"]


async def test_a_broker_with_an_expired_session_owns_its_topics_again() -> None:
    async with brokers() as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        await cluster.expire_session(owner.broker_id)
        await producer.send(b"after")
        assert await cluster.owner_of(TOPIC) is owner


async def test_a_broker_whose_policy_is_to_shut_down_stops_when_its_session_expires() -> None:
    async with brokers(settings=("broker.session_expired_policy=shutdown",)) as (cluster, client, owner):
        await cluster.expire_session(owner.broker_id)
        await until(lambda: not owner.is_running, "the broker stops")
        producer = await client.producer(str(TOPIC))
        await producer.send(b"elsewhere")
        assert await cluster.owner_of(TOPIC) is not owner


async def test_a_bookie_with_an_expired_session_is_registered_again() -> None:
    async with brokers(1, bookies=3) as (cluster, client, _):
        await cluster.expire_session(0)
        await cluster.kill(1)
        producer = await client.producer(str(TOPIC))
        await producer.send(b"on the other two")
        assert await stored(client, 1) == [b"on the other two"]


async def test_nothing_passes_between_a_broker_and_a_bookie_that_are_separated() -> None:
    async with brokers() as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        cluster.partition(owner.broker_id, 0)
        sending = asyncio.ensure_future(producer.send(b"late"))
        await other_broker_stores(cluster, owner)
        assert not sending.done()
        cluster.heal()
        await sending
        assert await stored(client, 1) == [b"late"]


async def test_a_broker_without_metadata_loses_its_topics_with_its_session() -> None:
    async with brokers(settings=SHORT_SESSION) as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        await producer.send(b"before")
        cluster.partition(METADATA, owner.broker_id)
        assert await cluster.owner_of(TOPIC) is not owner
        cluster.heal()
        await producer.send(b"after")
        assert await stored(client, 2) == [b"before", b"after"]


async def test_a_partition_outlives_a_pause() -> None:
    async with brokers() as (cluster, client, owner):
        producer = await client.producer(str(TOPIC))
        cluster.partition(owner.broker_id, 0)
        cluster.pause(owner.broker_id)
        cluster.resume(owner.broker_id)
        sending = asyncio.ensure_future(producer.send(b"late"))
        await other_broker_stores(cluster, owner)
        assert not sending.done()
        await cluster.make_whole()
        await sending


async def test_members_without_a_connection_are_not_separated() -> None:
    async with brokers(2, bookies=2) as (cluster, _, _owner):
        with pytest.raises(LookupError, match="bookies have no connections"):
            cluster.partition(0, 1)
        with pytest.raises(LookupError, match="are separated by `pause` only"):
            cluster.partition(*[node.broker_id for node in cluster.brokers])
        with pytest.raises(LookupError, match=r"no bookie .*; its brokers are 127"):
            await cluster.kill("127.0.0.1:1")
