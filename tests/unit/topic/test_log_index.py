"""Positions by index and by time, on entries with and without an index."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest

from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log.managed_ledger import NO_NODE, ManagedLedger, ManagedLedgerStore
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.topic.proto.managed_ledger_pb2 import ZLIB, InfoMetadata, ManagedLedgerInfo
from tests.unit.topic.log_world import TOPIC, LogWorld, drop_tail, log_world, message, read_all
from tests.unit.topic.test_log_reading import three_ledgers

pytestmark = pytest.mark.virtual_time


async def apache_ledger(world: LogWorld, batches: list[int]) -> LedgerSpan:
    """A ledger of a broker that adds no header, with these numbers of messages in its entries."""
    async with await world.client.create(ensemble_size=1) as writer:
        for number, batch in enumerate(batches):
            await writer.add(message(f"a{number}", batch=batch, publish_ms=1_000 * number))
    return LedgerSpan(writer.ledger_id, len(batches), writer.length, 1)


async def apache_topic(world: LogWorld, *ledgers: list[int], properties: dict[str, str] | None = None) -> None:
    spans = [await apache_ledger(world, batches) for batches in ledgers]
    ledgers = ManagedLedgerStore(world.cluster.store, world.context.entropy)
    await ledgers.write(TOPIC, ManagedLedger(tuple(spans), properties or {}), NO_NODE)


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
        ledgers = ManagedLedgerStore(world.cluster.store, world.context.entropy)
        stored = await ledgers.read(TOPIC)
        assert stored is not None
        ours = replace(log.chain.spans[0], closed_ms=1)
        theirs = await apache_ledger(world, [2, 1, 4])
        await ledgers.write(TOPIC, ManagedLedger((ours, theirs), stored.value.properties), stored.version)
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


async def test_node_that_apache_compressed_keeps_what_we_do_not_know_through_our_writes() -> None:
    async with log_world() as world:
        unknown = b"\xfa\x06\x03abc"  # Field 111, of a later release.
        span = await apache_ledger(world, [1, 2])
        ledger = ManagedLedgerInfo.LedgerInfo(ledger_id=span.ledger_id, entries=2, size=span.size_bytes, timestamp=1)
        ledger.offload_context.uid_msb = 77
        message_bytes = ManagedLedgerInfo(ledger_info=[ledger]).SerializeToString() + unknown
        message_bytes += ManagedLedgerInfo(properties=[{"key": "pulsar.topic.epoch", "value": "3"}]).SerializeToString()
        head = InfoMetadata(compression_type=ZLIB, uncompressed_size=len(message_bytes)).SerializeToString()
        value = struct.pack(">Hi", 0x4778, len(head)) + head + zlib.compress(message_bytes)
        store, path = world.cluster.store, f"/managed-ledgers/{TOPIC}"
        await store.create(path, value, make_parents=True)
        log, heard = await world.open()
        await world.written(log, heard, 1)
        await log.roll()
        await check_index(log, [1, 2, 1])
        node = await store.get(path)
        assert node is not None
        written = ManagedLedgerInfo.FromString(node.value)
        assert [info.ledger_id for info in written.ledger_info] == [span.ledger_id for span in log.chain.spans]
        assert written.ledger_info[0].offload_context.uid_msb == 77
        assert {item.key: item.value for item in written.properties} == {"pulsar.topic.epoch": "3", "index": "3"}
        assert unknown in node.value


async def test_index_goes_on_behind_an_entry_that_is_no_message() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 2)
        log.append(b"no message at all", 5, None)
        await heard.until(3)
        await log.aclose()
        again, heard = await world.open()
        assert again.next_index == 7
        await world.written(again, heard, 1)
        assert await again.index_of(heard.positions[-1]) == 7
        assert await again.position_at_index(1) == again.chain.position_after(EARLIEST, 2)
        assert await again.position_at_time(2**60) == again.chain.end
