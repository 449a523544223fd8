"""Reading a topic: from memory at the tail, from bookies before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.errors import LedgerOffloadedError
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.testing.waiting import until
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log.managed_ledger import decode_managed_ledger, encode_managed_ledger
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.topic.proto.managed_ledger_pb2 import ManagedLedgerInfo
from tests.unit.topic.log_world import TOPIC, Heard, LogWorld, drop_tail, log_world, read_all, text_of

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def bookie_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Every range that is asked of bookies: ledger, first, last."""
    reads: list[tuple[int, int, int]] = []
    read_some = LedgerReader.read_some

    async def counted(self: LedgerReader, first: int, last: int) -> Any:
        reads.append((self.ledger_id, first, last))
        return await read_some(self, first, last)

    monkeypatch.setattr(LedgerReader, "read_some", counted)
    return reads


async def three_ledgers(world: LogWorld, **settings: Any) -> tuple[TopicLog, Heard]:
    """Ten entries in each."""
    log, heard = await world.open(**settings)
    for _ in range(2):
        await world.written(log, heard, 10)
        await log.roll()
    await world.written(log, heard, 10)
    return log, heard


async def test_reader_at_the_tail_never_touches_a_bookie(bookie_reads: list[Any]) -> None:
    async with log_world() as world:
        log, heard = await world.open()
        place = log.chain.end
        seen: list[str] = []
        for _ in range(5):
            await world.written(log, heard, 20)
            while entries := log.read_nowait(place, 7, 2**20):
                seen += map(text_of, entries)
                place = log.chain.next_position(entries[-1].position)
        assert seen == [f"m{number}" for number in range(100)]
        assert log.read_nowait(place, 7, 2**20) == []
        assert bookie_reads == []


async def test_reads_go_over_ledgers_from_memory_and_from_bookies_alike(bookie_reads: list[Any]) -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        expected = [f"m{number}" for number in range(30)]
        assert [text_of(entry) for entry in await read_all(log)] == expected
        assert bookie_reads == []
        drop_tail(log)
        assert [text_of(entry) for entry in await read_all(log)] == expected
        assert {ledger for ledger, _, _ in bookie_reads} == {span.ledger_id for span in log.chain.spans}


async def test_read_skips_to_the_next_existing_position() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        first, second, third = (span.ledger_id for span in log.chain.spans)
        for _ in range(2):
            for place in (Position(first, 10), Position(first, 99), Position(second, -1), Position(second, 0)):
                assert [tuple(entry.position) for entry in await log.read(place, 1, 2**20)] == [(second, 0)]
            assert text_of((await log.read(EARLIEST, 1, 2**20))[0]) == "m0"
            assert await log.read(LATEST, 1, 2**20) == []
            assert await log.read(Position(third, 10), 1, 2**20) == []
            drop_tail(log)


async def test_ledger_that_is_written_is_read_from_bookies_up_to_what_is_confirmed() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 20)
        drop_tail(log)
        assert len(await log.read(EARLIEST, 100, 2**20)) == 20
        await world.written(log, heard, 20)
        drop_tail(log)
        assert len(await log.read(EARLIEST, 100, 2**20)) == 40
        world.append(log, 10)  # Not confirmed before the loop turns.
        assert log.read_nowait(log.chain.end, 100, 2**20) == []


async def test_reads_are_limited_by_entries_and_by_bytes() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 30)
        size = len((await read_all(log))[0].data)
        for _ in range(2):
            assert len(await log.read(EARLIEST, 4, 2**20)) == 4
            assert 1 <= len(await log.read(EARLIEST, 30, 3 * size)) <= 3
            assert len(await log.read(EARLIEST, 30, 1)) == 1
            drop_tail(log)


async def test_reader_that_goes_through_old_entries_has_them_read_ahead(bookie_reads: list[Any]) -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 100)
        drop_tail(log)
        place = EARLIEST
        for _ in range(2):
            place = log.chain.next_position((await log.read(place, 10, 2**20))[-1].position)
        await until(lambda: len(bookie_reads) == 3, "what follows to be read ahead")
        assert bookie_reads[2][1:] == (20, 99)
        assert [text_of(entry) for entry in await read_all(log, place)] == [f"m{number}" for number in range(20, 100)]
        assert len(bookie_reads) == 3


async def test_read_ahead_is_bounded_and_may_be_off(bookie_reads: list[Any]) -> None:
    async with log_world() as world:
        log, heard = await world.open(read_aheads_max=2)
        await world.written(log, heard, 300)
        drop_tail(log)
        places = [Position(log.last_confirmed.ledger_id, first) for first in range(0, 300, 50)]
        for _ in range(2):
            places = [log.chain.next_position((await log.read(place, 3, 2**20))[-1].position) for place in places]
        assert len(log._reads._ahead) <= 2
        await log.aclose()
        bookie_reads.clear()
        again, _ = await world.open(read_ahead_bytes=0)
        assert len(await read_all(again, entries_max=50)) == 300
        assert all(last - first < 50 for _, first, last in bookie_reads)


async def test_number_of_open_ledgers_is_bounded() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world, ledgers_read_max=2)
        drop_tail(log)
        assert len(await read_all(log)) == 30
        assert len(log._reads._readers) == 2


async def test_many_readers_at_once_each_read_everything() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        drop_tail(log)
        results = await asyncio.gather(*(read_all(log, entries_max=1 + number) for number in range(10)))
        expected = [f"m{number}" for number in range(30)]
        assert all([text_of(entry) for entry in entries] == expected for entries in results)


async def test_tail_cache_is_given_back_when_a_topic_is_closed() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 10)
        assert world.context.tail_cache.bytes_held
        await log.aclose()
        assert world.context.tail_cache.bytes_held == 0


async def test_ledger_in_tiered_storage_is_a_clear_error() -> None:
    async with log_world() as world:
        log, _ = await three_ledgers(world)
        await log.aclose()
        store, path = world.cluster.store, f"/managed-ledgers/{TOPIC}"
        node = await store.get(path)
        assert node is not None
        message = ManagedLedgerInfo.FromString(encode_managed_ledger(decode_managed_ledger(node.value)))
        message.ledger_info[0].offload_context.complete = True
        message.ledger_info[0].offload_context.bookkeeper_deleted = True
        await store.put(path, message.SerializeToString())
        await world.client.delete(message.ledger_info[0].ledger_id)
        again, _ = await world.open()
        with pytest.raises(LedgerOffloadedError):
            await again.read(EARLIEST, 1, 1)
        second = again.chain.spans[1].ledger_id
        assert text_of((await again.read(Position(second, 0), 1, 1))[0]) == "m10"
