"""When deduplication writes down what it knows. Time is virtual, but for the broker's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.broker.publishing.dedup import CURSOR_NAME, Deduplication
from magnetar.broker.publishing.producers import Producer, ProducerOptions, Publish
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import CursorConfig
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from tests.unit.broker.pulsar.broker_world import broker_world

pytestmark = pytest.mark.virtual_time

SINK: Any = None
PRODUCER = Producer(ProducerOptions(producer_id=1, name="p"), SINK)


class FakeCursor:
    """Counts what it would store."""

    def __init__(self) -> None:
        self.mark_delete = Position(1, -1)
        self.long_properties: Mapping[str, int] = {}
        self.saves: list[tuple[float, int]] = []
        """When, and the highest sequence id of the producer."""

    def acknowledge_to(self, position: Position) -> None:
        self.mark_delete = position

    def set_long_properties(self, properties: Mapping[str, int]) -> None:
        self.long_properties = dict(properties)
        self.saves.append((asyncio.get_running_loop().time(), properties["p"]))

    def flush_soon(self) -> None: ...

    async def flush(self) -> None: ...


class FakeLog:
    chain = LedgerChain([LedgerSpan(1)])
    last_confirmed = Position(1, -1)

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        raise AssertionError("there is nothing to read")


async def learned(snapshot_s: int, snapshot_entries: int = 1_000) -> tuple[Deduplication, FakeCursor]:
    cursor = FakeCursor()
    dedup = Deduplication(cursor, snapshot_s=snapshot_s, snapshot_entries=snapshot_entries, producers_max=10)
    await dedup.learn(FakeLog(), 0.0)
    return dedup, cursor


def persist(dedup: Deduplication, sequence_id: int) -> None:
    publish: Publish = (PRODUCER, sequence_id, 0, 1, 100, 0.0)
    dedup.judge(publish, counts=True)
    dedup.on_appended([publish], Position(1, sequence_id))


async def test_it_is_written_down_once_in_an_interval_and_not_if_nothing_came() -> None:
    dedup, cursor = await learned(10)
    await asyncio.sleep(100)
    assert cursor.saves == []
    for number in range(25):
        persist(dedup, number)
        await asyncio.sleep(1)
    await asyncio.sleep(100)
    assert cursor.saves == [(110.0, 9), (120.0, 19), (130.0, 24)]
    assert cursor.mark_delete == Position(1, 24)


async def test_an_interval_that_is_changed_counts_from_then_on() -> None:
    dedup, cursor = await learned(1_000)
    persist(dedup, 0)
    await asyncio.sleep(5)
    dedup.set_snapshot_s(10)
    await asyncio.sleep(20)
    assert cursor.saves == [(15.0, 0)]
    persist(dedup, 1)
    dedup.set_snapshot_s(0)  # Never by time: only after a number of entries.
    await asyncio.sleep(1_000)
    assert len(cursor.saves) == 1


async def test_what_many_entries_have_saved_is_not_saved_again_when_the_interval_is_over() -> None:
    dedup, cursor = await learned(10, snapshot_entries=2)
    persist(dedup, 0)
    await asyncio.sleep(1)
    persist(dedup, 1)
    await asyncio.sleep(100)
    assert cursor.saves == [(1.0, 1)]


async def test_nothing_is_written_down_behind_its_end() -> None:
    dedup, cursor = await learned(10)
    persist(dedup, 0)
    dedup.close()
    await asyncio.sleep(100)
    assert cursor.saves == []


async def test_the_interval_of_a_topics_own_policies_counts() -> None:
    broker, cursor_ = (
        BrokerConfig(deduplication=True, deduplication_snapshot_s=3600),
        CursorConfig(mark_delete_interval_ms=1),
    )
    async with broker_world(broker=broker, cursor=cursor_) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="p")
        await talker.published(1, 7, b"x")
        topic = await world.topic("t")
        cursor = topic.cursors.get(CURSOR_NAME)
        assert cursor is not None
        assert cursor.long_properties == {}
        await world.broker.service.policies.update_topic(
            TopicName.parse("t"), lambda document: document | {"deduplicationSnapshotIntervalSeconds": 1}
        )
        await until(lambda: cursor.long_properties == {"p": 7}, "it is written down")
        await until(lambda: cursor.is_stored, "it is stored")
