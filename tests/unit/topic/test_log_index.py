"""Positions by index and by time, on entries with and without an index."""

from __future__ import annotations

from dataclasses import replace

from magnetar.topic.chain import LedgerSpan
from magnetar.topic.info import TopicInfo
from magnetar.topic.info_store import NO_NODE, TopicInfoStore
from magnetar.topic.log import TopicLog
from magnetar.topic.position import EARLIEST, LATEST, Position
from tests.unit.topic.log_world import TOPIC, LogWorld, drop_tail, log_world, message, read_all
from tests.unit.topic.test_log_reading import three_ledgers


async def apache_ledger(world: LogWorld, batches: list[int]) -> LedgerSpan:
    """As a broker writes it that adds no header: so many messages in each entry."""
    async with await world.client.create(ensemble_size=1) as writer:
        for number, batch in enumerate(batches):
            await writer.add(message(f"a{number}", batch=batch, publish_ms=1_000 * number))
    return LedgerSpan(writer.ledger_id, len(batches), writer.length, 1)


async def apache_topic(world: LogWorld, *ledgers: list[int], properties: dict[str, str] | None = None) -> None:
    spans = [await apache_ledger(world, batches) for batches in ledgers]
    infos = TopicInfoStore(world.cluster.store, world.parts.entropy)
    await infos.write(TOPIC, TopicInfo(tuple(spans), properties or {}), NO_NODE)


async def check_index(log: TopicLog, batches: list[int], first: int = 0) -> None:
    """Every entry's index, and every index's entry."""
    entries = await read_all(log)
    assert [entry.messages for entry in entries] == batches
    index = first
    for entry in entries:
        assert await log.index_of(entry.position) == index
        for number in range(index, index + entry.messages):
            assert await log.position_at_index(number) == entry.position
        index += entry.messages
    assert await log.index_of(LATEST) == index == log.next_confirmed_index
    assert await log.position_at_index(index) == log.chain.end
    assert await log.position_at_index(-5) == entries[0].position


async def test_every_index_is_found_over_ledgers() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        for batch in (1, 3, 2):
            await world.written(log, heard, 3, batch=batch)
            await log.roll()
        await check_index(log, [1, 1, 1, 3, 3, 3, 2, 2, 2])
        drop_tail(log)
        await check_index(log, [1, 1, 1, 3, 3, 3, 2, 2, 2])


async def test_entries_without_an_index_are_counted() -> None:
    async with log_world() as world:
        await apache_topic(world, [1, 4, 2], [3, 1])
        log, heard = await world.open()
        assert log.next_index == 11
        await world.written(log, heard, 2, batch=2)
        assert (await read_all(log))[-1].head.index == 14
        await check_index(log, [1, 4, 2, 3, 1, 2, 2])


async def test_counted_index_does_not_change_when_older_ledgers_are_trimmed() -> None:
    async with log_world() as world:
        await apache_topic(world, [1, 4, 2], [3, 1])
        log, heard = await world.open()
        await world.written(log, heard, 1)
        await log.trim(Position(log.chain.spans[0].ledger_id, 2))
        await check_index(log, [3, 1, 1], first=7)
        await log.aclose()
        log, _ = await world.open()
        await check_index(log, [3, 1, 1], first=7)


async def test_ledgers_without_an_index_between_others_are_counted_from_the_one_before() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 2, batch=5)
        await log.aclose()
        infos = TopicInfoStore(world.cluster.store, world.parts.entropy)
        stored = await infos.read(TOPIC)
        assert stored is not None
        ours = replace(log.chain.spans[0], closed_ms=1)
        theirs = await apache_ledger(world, [2, 1, 4])
        await infos.write(TOPIC, TopicInfo((ours, theirs), stored.value.properties), stored.version)
        again, heard = await world.open()
        assert again.next_index == 17
        await world.written(again, heard, 1)
        await check_index(again, [5, 5, 2, 1, 4, 1])


async def test_noted_index_counts_where_nothing_else_is_left() -> None:
    async with log_world() as world:
        await apache_topic(world, properties={"index": "41", "other": "kept"})
        log, _ = await world.open()
        assert log.next_index == 42
        assert log.properties["other"] == "kept"


async def test_position_at_a_time_is_the_first_entry_that_is_not_older() -> None:
    now = [10_000]
    async with log_world(wall_ms=lambda: now[0]) as world:
        log, heard = await world.open()
        for _ in range(10):
            await world.written(log, heard, 3)
            now[0] += 1_000
            if len(heard.appended) == 15:
                await log.roll()
        for _ in range(2):
            assert await log.position_at_time(0) == heard.positions[0]
            assert await log.position_at_time(12_000) == heard.positions[6]
            assert await log.position_at_time(12_001) == heard.positions[9]
            assert await log.position_at_time(99_999) == log.chain.end
            drop_tail(log)


async def test_publish_time_counts_for_entries_without_a_broker_time() -> None:
    async with log_world() as world:
        await apache_topic(world, [1] * 10)
        log, _ = await world.open()
        ledger_id = log.chain.spans[0].ledger_id
        assert await log.position_at_time(3_500) == Position(ledger_id, 4)
        assert await log.position_at_time(4_000) == Position(ledger_id, 4)


async def test_empty_topic_has_no_positions_but_its_end() -> None:
    async with log_world() as world:
        log, _ = await world.open()
        assert await log.position_at_time(0) == await log.position_at_index(0) == log.chain.end
        assert await log.index_of(EARLIEST) == 0


async def test_index_search_reads_few_entries() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        drop_tail(log)
        reads = 0
        read_one = log._reads.read_one

        async def counted(position: Position) -> object:
            nonlocal reads
            reads += 1
            return await read_one(position)

        log._reads.read_one = counted  # type: ignore[method-assign, assignment]
        assert (await log.position_at_index(17)).entry_id == 7
        assert reads <= 8
