"""Changes of a topic's node: one at a time, and to their end, even if no caller waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.errors import MetadataUnavailableError, TopicFencedError
from magnetar.testing.waiting import until
from magnetar.topic.log import ledger_roller
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import LATEST
from tests.unit.topic.log_world import LogWorld, log_world, read_all
from tests.unit.topic.test_log_reading import three_ledgers

pytestmark = pytest.mark.virtual_time


class SlowStore:
    """The metadata store as one topic sees it: its writes wait until `come_back`, or fail when a test wants it."""

    def __init__(self, log: TopicLog) -> None:
        self._store = log._node._store
        self._write = self._store.write
        self.waiting = 0
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._store.write = self._wait  # type: ignore[method-assign]

    async def _wait(self, *args: Any) -> int:
        self.waiting += 1
        try:
            await asyncio.shield(self._answer)
        finally:
            self.waiting -= 1
        return await self._write(*args)

    async def until_asked(self) -> None:
        await until(lambda: self.waiting > 0, "the node to be written")

    def come_back(self) -> None:
        self._answer.set_result(None)

    def fail(self) -> None:
        self._answer.set_exception(MetadataUnavailableError("away"))


async def give_up(store: SlowStore, work: Coroutine[Any, Any, object]) -> None:
    """Cancels the caller that waits for this while the node is written, as a timeout would."""
    task = asyncio.ensure_future(work)
    await store.until_asked()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def rolled_halfway(world: LogWorld) -> tuple[TopicLog, Any, SlowStore]:
    log, heard = await world.open()
    await world.written(log, heard, 5)
    store = SlowStore(log)
    await give_up(store, log.roll())
    world.append(log, 3, first=5)
    return log, heard, store


async def test_a_roll_that_nobody_waits_for_any_more_is_done_when_the_store_is_back() -> None:
    async with log_world() as world:
        log, heard, store = await rolled_halfway(world)
        store.come_back()
        await heard.until(8)
        assert heard.tokens == list(range(8))
        assert len(log.chain.spans) == 2
        await log.roll()
        await world.written(log, heard, 1)
        assert len(await read_all(log)) == 9


async def test_a_roll_that_nobody_waits_for_any_more_and_that_fails_ends_the_log() -> None:
    async with log_world() as world:
        log, heard, store = await rolled_halfway(world)
        store.fail()
        await heard.until_fenced()
        assert heard.failed == [5, 6, 7]
        with pytest.raises(TopicFencedError):
            await log.roll()


async def test_whatever_leaves_a_topic_without_a_ledger_ends_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 1)

        async def broken(*_args: Any) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(log._node._store, "write", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            await log.roll()
        await heard.until_fenced()


CHANGES: dict[str, Callable[[TopicLog], Coroutine[Any, Any, object]]] = {
    "property": lambda log: log.set_property("a", "b"),
    "trim": lambda log: log.trim(LATEST),
    "roll": lambda log: log.roll(),
    "terminate": lambda log: log.terminate(),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_nobody_waits_for_any_more_leaves_the_log_as_if_it_had_been_awaited(change: str) -> None:
    async with log_world() as world:
        log, heard = await three_ledgers(world)
        store = SlowStore(log)
        await give_up(store, CHANGES[change](log))
        store.come_back()
        await log.set_property("c", "d")  # The next change knows the node's version.
        assert not log.is_fenced
        assert ("a" in log.properties, log.is_terminated) == (change == "property", change == "terminate")
        assert await world.ledgers() == [span.ledger_id for span in log.chain.spans]
        assert len(log.chain.spans) == {"trim": 1, "roll": 4}.get(change, 3)
        if change != "terminate":
            await world.written(log, heard, 1)


async def test_who_is_cancelled_before_its_turn_changes_nothing() -> None:
    async with log_world() as world:
        log, _ = await world.open()
        store = SlowStore(log)
        first, second, third = (asyncio.ensure_future(log.set_property(key, "x")) for key in "abc")
        await store.until_asked()
        second.cancel()
        store.come_back()
        await first
        await third
        assert second.cancelled()
        assert {key for key in log.properties if key in "abc"} == {"a", "c"}


async def test_a_change_that_takes_too_long_does_not_keep_a_log_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_roller, "_CLOSE_WAIT_S", 0.05)
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 1)
        store = SlowStore(log)
        changing, in_line = (asyncio.ensure_future(log.set_property(key, "x")) for key in "ab")
        await store.until_asked()
        await log.aclose()
        for task in (changing, in_line):
            with pytest.raises(TopicFencedError, match="not served here any more"):
                await task
        assert store.waiting == 0


async def test_a_close_that_is_given_up_leaves_nothing_that_goes_on() -> None:
    async with log_world() as world:
        log, heard = await world.open()
        await world.written(log, heard, 1)
        store = SlowStore(log)
        roller = log._roller
        assert roller.ledger is not None
        roller._begin_work(roller._roll_full(roller.ledger))
        await store.until_asked()
        closing = asyncio.ensure_future(log.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([closing])
        assert closing.cancelled()
        assert roller._working is None
        assert store.waiting == 0
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("topic-")]
