"""Backlogs in messages, against a count of every message of the log."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from magnetar.config.topic import TopicConfig
from magnetar.errors import EntryUnavailableError
from magnetar.topic.backlog import PARTS_MAX, MessageCount
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckState, words_of
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import EARLIEST, Position
from tests.unit.topic.log_world import SINGLE, drop_tail, log_world, read_all
from tests.unit.topic.test_log_index import apache_topic

pytestmark = pytest.mark.virtual_time

COLD = TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1, tail_cache_bytes_max=0)


async def backlog(log: TopicLog, acks: AckState, after: Position | None = None) -> int | None:
    return await MessageCount(log, acks.acked_parts(PARTS_MAX)).unacknowledged(after or acks.mark_delete)


async def by_hand(log: TopicLog, acks: AckState, after: Position = EARLIEST) -> int:
    found = 0
    for entry in await read_all(log):
        if entry.position > after and not acks.is_acknowledged(entry.position):
            left = acks.batches.get(entry.position)
            found += entry.messages if left is None else left.bit_count()
    return found


async def test_a_batch_counts_its_messages() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        acks = AckState(log.chain, log.chain.previous_position(EARLIEST))
        assert await backlog(log, acks) == 0
        await world.written(log, heard, 1, batch=995)
        assert (await backlog(log, acks), acks.backlog_entries()) == (995, 1)
        acks.acknowledge_batch(heard.positions[0], words_of((1 << 995) - (1 << 900)), 995)
        assert (await backlog(log, acks), acks.backlog_entries()) == (95, 1)
        acks.acknowledge(heard.positions)
        assert await backlog(log, acks) == 0


async def test_an_entry_without_a_batch_is_one_message() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 7)
        acks = AckState(log.chain, heard.positions[1])
        assert await backlog(log, acks) == 5


@pytest.mark.parametrize("seed", range(8))
async def test_any_state_is_counted_as_by_hand(seed: int) -> None:
    chance = random.Random(seed)
    async with log_world(config=COLD if seed % 2 else SINGLE) as world:
        log, heard = await world.open()
        for _ in range(4):
            await world.written(log, heard, chance.randint(1, 6), batch=chance.randint(0, 5))
            await world.written(log, heard, chance.randint(1, 6), batch=chance.randint(0, 5))
            await log.roll()
        acks = AckState(log.chain, log.chain.previous_position(EARLIEST))
        entries = await read_all(log)
        for _ in range(25):
            entry = chance.choice(entries)
            match chance.randint(0, 5):
                case 0:
                    acks.acknowledge([entry.position])
                case 1:
                    acks.acknowledge([each.position for each in chance.sample(entries, 2)])
                case 2 if chance.random() < 0.2:
                    acks.acknowledge_to(entry.position)
                case _:
                    left = chance.getrandbits(entry.messages)
                    acks.acknowledge_batch(entry.position, words_of(left), chance.choice([0, entry.messages]))
            assert await backlog(log, acks) == await by_hand(log, acks)
            after = max(acks.mark_delete, chance.choice(entries).position)
            assert await backlog(log, acks, after) == await by_hand(log, acks, after)


class CountingLog:
    """An IndexedLog that counts what is asked of it; entry n holds n + 1 messages."""

    def __init__(self, entries: int, unreadable: Sequence[int] = ()) -> None:
        self.chain = LedgerChain()
        self.chain.begin(1)
        self.chain.grow(entries, entries)
        self.next_confirmed_index = entries * (entries + 1) // 2
        self.asked: list[int] = []
        self._unreadable = unreadable

    async def index_bounds(self, position: Position) -> tuple[int, int] | None:
        number = position.entry_id
        self.asked.append(number)
        if number in self._unreadable:
            raise EntryUnavailableError("its bookies do not answer")
        return number * (number + 1) // 2, (number + 1) * (number + 2) // 2

    async def backlog(self, acks: AckState) -> int | None:
        return await MessageCount(self, acks.acked_parts(PARTS_MAX)).unacknowledged(acks.mark_delete)


async def test_only_the_entries_at_the_ends_of_gaps_are_looked_at() -> None:
    log = CountingLog(100_000)
    acks = AckState(log.chain, Position(1, 99))
    acks.acknowledge([Position(1, number) for number in range(200, 90_000)])
    assert await log.backlog(acks) == sum(range(101, 201)) + sum(range(90_001, 100_001))
    assert set(log.asked) == {100, 200, 89_999}


async def test_a_subscription_without_a_backlog_looks_at_nothing() -> None:
    log = CountingLog(10)
    assert await log.backlog(AckState(log.chain, Position(1, 9))) == 0
    assert log.asked == []


async def test_the_entry_before_helps_where_the_next_one_cannot_be_read() -> None:
    log = CountingLog(10, unreadable=[5])
    assert await log.backlog(AckState(log.chain, Position(1, 4))) == 6 + 7 + 8 + 9 + 10
    log = CountingLog(10, unreadable=[4, 5])
    assert await log.backlog(AckState(log.chain, Position(1, 4))) is None


async def test_what_happens_while_it_reads_does_not_count() -> None:
    log = CountingLog(10)
    count = MessageCount(log, AckState(log.chain, Position(1, 7)).acked_parts(PARTS_MAX))
    log.chain.grow(12, 12)
    log.next_confirmed_index = 12 * 13 // 2
    assert await count.unacknowledged(Position(1, 7)) == 9 + 10
    assert await count.unacknowledged(Position(1, 9)) == 0


async def test_it_is_unknown_when_too_much_is_acknowledged_out_of_order() -> None:
    log = CountingLog(2 * PARTS_MAX + 10)
    acks = AckState(log.chain, Position(1, -1))
    acks.acknowledge([Position(1, 2 * number + 1) for number in range(PARTS_MAX)])
    assert await log.backlog(acks) is not None
    acks.acknowledge([Position(1, 2 * PARTS_MAX + 5)])
    assert await log.backlog(acks) is None


async def test_entries_without_an_index_are_known_as_long_as_their_ledgers_are_counted() -> None:
    async with log_world() as world:
        await apache_topic(world, [1, 4, 2], [3, 1])
        log, heard = await world.open()  # It counts the topic, to know which index is the next.
        first, last = log.chain.first_position, log.last_confirmed
        await world.written(log, heard, 2, batch=6)
        drop_tail(log)
        acks = AckState(log.chain, first)
        acks.acknowledge([last])
        assert await backlog(log, acks) == await by_hand(log, acks) == 21
        await log.aclose()

        log, heard = await world.open()  # Now the last ledger has indexes, so nothing is counted.
        acks = AckState(log.chain, first)
        acks.acknowledge([last])
        assert await backlog(log, acks) is None
        assert await backlog(log, AckState(log.chain, last)) == 12
        assert await backlog(log, AckState(log.chain, log.last_confirmed)) == 0


async def test_a_ledger_without_an_index_is_known_by_one_before_or_after_it() -> None:
    async with log_world() as world:
        await apache_topic(world, [1, 4, 2], [3, 1], [5, 5])
        log, heard = await world.open()
        spans = log.chain.spans
        await world.written(log, heard, 2, batch=6)
        counted = log._index._counted
        acks = [AckState(log.chain, Position(span.ledger_id, 0)) for span in spans[:3]]
        del counted[spans[0].ledger_id]
        assert [await backlog(log, each) for each in acks] == [None, 1 + 10 + 12, 5 + 12]
        del counted[spans[1].ledger_id]
        log._index._bounds.clear()
        assert [await backlog(log, each) for each in acks] == [None, None, 5 + 12]


async def test_an_entry_is_read_once() -> None:
    async with log_world(config=COLD) as world:
        log, heard = await world.open()
        await world.written(log, heard, 3, batch=2)
        acks = AckState(log.chain, heard.positions[0])
        assert await backlog(log, acks) == 4
        await world.cluster.kill(0)
        assert await backlog(log, acks) == 4
        acks.acknowledge([heard.positions[1]])
        assert await backlog(log, acks) == 2, "the entry before the next one is known"
        assert await backlog(log, AckState(log.chain, EARLIEST)) is None
