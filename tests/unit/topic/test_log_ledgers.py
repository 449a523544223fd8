"""Ledgers follow each other: full, old, or failed."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from magnetar.config.topic import TopicConfig
from magnetar.errors import AddTimeoutError, NotEnoughBookiesError, TopicFencedError, TopicTerminatedError
from magnetar.testing.waiting import until
from magnetar.topic.log.log import TopicLog
from tests.unit.topic.log_world import IMPATIENT, SINGLE, drop_tail, log_world, message, read_all, text_of

pytestmark = pytest.mark.virtual_time

AT_ONCE = dataclasses.replace(SINGLE, ledger_minutes_min=0)
PAIR = TopicConfig(ensemble_size=2, write_quorum=2, ack_quorum=2)


async def check_whole(log: TopicLog, count: int) -> None:
    """Everything exists once, in order, with indexes without a gap: from the tail cache and from bookies."""
    for _ in range(2):
        entries = await read_all(log, entries_max=100)
        assert [text_of(entry) for entry in entries] == [f"m{number}" for number in range(count)]
        assert [entry.head.index for entry in entries] == list(range(count))
        drop_tail(log)


async def test_full_ledger_is_followed_by_another_without_a_gap() -> None:
    async with log_world(config=AT_ONCE) as world:
        log, heard = await world.open(ledger_entries_max=100)
        for _ in range(10):
            await world.written(log, heard, 50)
        await until(lambda: len(log.chain.spans) >= 4, "ledgers to be rolled")
        assert heard.tokens == list(range(500))
        assert all(span.closed_ms for span in log.chain.spans[:-1])
        await check_whole(log, 500)


async def test_ledger_is_rolled_by_size() -> None:
    async with log_world(config=AT_ONCE) as world:
        log, _ = await world.open(ledger_bytes_max=10_000)
        log.append(message("x" * 20_000), 1, "large")
        await until(lambda: len(log.chain.spans) == 2, "the ledger to be rolled")
        assert log.chain.spans[0].size_bytes > 20_000


async def test_young_ledger_is_not_rolled_however_full() -> None:
    async with log_world() as world:
        log, heard = await world.open(ledger_entries_max=10, ledger_minutes_min=1)
        await world.written(log, heard, 50)
        assert not await log.roll_if_due()
        assert len(log.chain.spans) == 1


async def test_old_ledger_is_rolled_when_its_owner_asks_if_it_has_entries() -> None:
    async with log_world(config=AT_ONCE) as world:
        log, heard = await world.open(ledger_minutes_max=1)
        log._roller.begun_s -= 61
        assert not await log.roll_if_due()
        await world.written(log, heard, 1)
        await until(lambda: len(log.chain.spans) == 2, "the append to find it old")
        await world.written(log, heard, 1)
        log._roller.begun_s -= 61
        assert await log.roll_if_due()
        assert len(log.chain.spans) == 3


async def test_appends_during_a_roll_wait_and_are_written_in_order() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 10)
        rolling = asyncio.ensure_future(log.roll())
        number = 10
        while not rolling.done():
            world.append(log, 1, first=number)
            number += 1
            await asyncio.sleep(0)
        await heard.until(number)
        assert heard.tokens == list(range(number))
        await check_whole(log, number)


async def test_rolling_twice_at_once_rolls_once() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 1)
        await asyncio.gather(log.roll(), log.roll(), log.roll())
        assert len(log.chain.spans) == 2
        await log.roll()
        assert len(log.chain.spans) == 2


async def test_while_no_new_ledger_can_be_made_the_old_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with log_world(config=AT_ONCE) as world:
        log, heard = await world.open(ledger_entries_max=10)
        create, refused = world.client.create, [0]

        async def refuse(**_choices: Any) -> Any:
            refused[0] += 1
            raise NotEnoughBookiesError(needed=1, known=1, writable=0, quarantined=0)

        monkeypatch.setattr(world.client, "create", refuse)
        await world.written(log, heard, 30)
        await until(lambda: refused[0] == 1, "a new ledger to be asked for")
        await world.written(log, heard, 30)
        assert refused[0] == 1  # The next try is for later.
        monkeypatch.setattr(world.client, "create", create)
        await log.roll()
        await world.written(log, heard, 1)
        await check_whole(log, 61)


# --- failed ledgers ---------------------------------------------------------------------------------------------------


def break_ledger(log: TopicLog) -> None:
    """As if its bookies had failed for good."""
    ledger = log._roller.ledger
    assert ledger is not None
    ledger._engine.fail(AddTimeoutError("planted"))


async def test_ledger_that_fails_is_replaced_and_what_it_owed_is_written_again_in_order() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 10)
        world.append(log, 20, first=10)
        break_ledger(log)
        world.append(log, 20, first=30)
        await heard.until(50)
        assert heard.tokens == list(range(50))
        assert heard.fenced is None
        await check_whole(log, 50)
        await log.aclose()
        again, _ = await world.open()
        await check_whole(again, 50)
        assert again.next_index == 50


async def test_what_waited_for_room_comes_after_what_a_failed_ledger_owed() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        count = world.cluster.config.ledger.adds_in_flight_max + 300
        world.append(log, count)
        break_ledger(log)
        assert log.appends_waiting == count
        await heard.until(count)
        assert heard.tokens == list(range(count))
        assert heard.rooms == 0  # No publisher had waited for room.


async def test_ledgers_that_fail_again_and_again_lose_nothing() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        number = 0
        for _ in range(5):
            world.append(log, 7, first=number)
            await asyncio.sleep(0)
            break_ledger(log)
            world.append(log, 7, first=number + 7)
            number += 14
            await heard.until(number)
        assert heard.tokens == list(range(number))
        await check_whole(log, number)


async def test_ledger_may_fail_while_it_is_rolled() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 5)
        world.append(log, 5, first=5)
        rolling = asyncio.ensure_future(log.roll())
        await asyncio.sleep(0)
        break_ledger(log)
        await rolling
        await heard.until(10)
        assert heard.tokens == list(range(10))
        await world.written(log, heard, 5)
        await check_whole(log, 15)


async def test_lost_bookie_is_survived_with_another() -> None:
    async with log_world(bookies=3, config=PAIR) as world:
        log, heard = await world.open()
        await world.written(log, heard, 20)
        ledger = log._roller.ledger
        assert ledger is not None
        await world.cluster.kill(ledger.metadata.fragments[-1].ensemble[0])
        await world.written(log, heard, 200)
        assert heard.tokens == list(range(220))
        await check_whole(log, 220)


async def test_log_is_over_when_no_ledger_can_be_had() -> None:
    async with log_world(ledger=IMPATIENT) as world:
        log, heard = await world.open(ledger_wait_ms=50)
        await world.written(log, heard, 3)
        await world.cluster.kill(0)
        world.append(log, 3, first=3)
        await heard.until_fenced()
        assert heard.failed == [3, 4, 5]
        with pytest.raises(TopicFencedError):
            world.append(log, 1)
        await world.cluster.restart(0)
        again, _ = await world.open()
        assert [text_of(entry) for entry in await read_all(again)][:3] == ["m0", "m1", "m2"]


# --- terminate --------------------------------------------------------------------------------------------------------


async def test_terminated_topic_takes_no_more_and_stays_so() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 5)
        end = await log.terminate()
        assert end == heard.positions[-1]
        assert await log.terminate() == end
        with pytest.raises(TopicTerminatedError):
            world.append(log, 1)
        await log.aclose()
        again, _ = await world.open()
        assert again.is_terminated
        assert again.last_confirmed == end
        with pytest.raises(TopicTerminatedError):
            world.append(again, 1)
        await check_whole(again, 5)
        assert await again.terminate() == end


async def test_what_is_in_flight_when_a_topic_is_terminated_is_acknowledged() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        world.append(log, 20)
        await log.terminate()
        assert heard.tokens == list(range(20))
        assert log.last_confirmed == heard.positions[-1]


async def test_topic_without_a_message_can_be_terminated() -> None:
    async with log_world() as world:
        log, _ = await world.open()
        end = await log.terminate()
        assert end.entry_id == -1
        await log.aclose()
        again, _ = await world.open()
        assert again.is_terminated
        assert await read_all(again) == []


async def test_empty_ledger_goes_when_a_topic_is_terminated() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 5)
        await log.roll()
        assert await log.terminate() == heard.positions[-1]
        assert await world.ledgers() == [span.ledger_id for span in log.chain.spans]
