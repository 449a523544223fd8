"""A lock for each key: who waits for whom, for how long, and what is left of it."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import ServiceNotReadyError
from magnetar.runtime.keyed_lock import KeyedLock

LATE = ServiceNotReadyError("others held it for too long")
LONG_S = 60.0


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Users:
    """Those who hold a key until the test lets them go."""

    def __init__(self, locks: KeyedLock) -> None:
        self._locks = locks
        self.holding: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def begin(self, name: str, key: str) -> asyncio.Task[None]:
        self._ends[name] = asyncio.Event()
        return asyncio.create_task(self._hold(name, key))

    async def _hold(self, name: str, key: str) -> None:
        async with self._locks.hold(key, LONG_S, LATE):
            self.holding.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.holding.remove(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await turns()


async def test_those_with_the_same_key_come_one_after_the_other_in_order() -> None:
    users = Users(KeyedLock())
    tasks = [users.begin(name, "same") for name in "abc"]
    for name in "abc":
        await turns()
        assert users.holding == [name]
        await users.end(name)
    await asyncio.gather(*tasks)


async def test_another_key_does_not_wait() -> None:
    users = Users(KeyedLock())
    tasks = [users.begin("a", "one"), users.begin("b", "other")]
    await turns()
    assert users.holding == ["a", "b"]
    await users.end("a")
    await users.end("b")
    await asyncio.gather(*tasks)


async def test_a_wait_that_is_too_long_raises_the_callers_error_and_leaves_the_holder_alone() -> None:
    locks = KeyedLock()
    users = Users(locks)
    task = users.begin("a", "same")
    await turns()
    with pytest.raises(ServiceNotReadyError) as raised:
        async with locks.hold("same", 0.01, LATE):
            pytest.fail("another one holds it")
    assert raised.value is LATE
    assert users.holding == ["a"]
    await users.end("a")
    await task
    async with locks.hold("same", LONG_S, LATE):
        assert len(locks) == 1


async def test_an_error_while_it_is_held_releases_it_and_travels_on() -> None:
    locks = KeyedLock()
    with pytest.raises(ValueError, match="of the work"):
        async with locks.hold("key", LONG_S, LATE):
            raise ValueError("of the work")
    assert len(locks) == 0


async def test_a_timeout_of_the_work_itself_is_not_taken_for_a_late_lock() -> None:
    locks = KeyedLock()
    with pytest.raises(TimeoutError):
        async with locks.hold("key", LONG_S, LATE):
            raise TimeoutError("of the work")


async def test_one_who_is_cancelled_while_waiting_is_passed_over() -> None:
    locks = KeyedLock()
    users = Users(locks)
    tasks = [users.begin(name, "same") for name in "abc"]
    await turns()
    tasks[1].cancel()
    await turns()
    await users.end("a")
    assert users.holding == ["c"]
    await users.end("c")
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(locks) == 0


async def test_a_key_takes_no_memory_once_nobody_holds_it_or_waits_for_it() -> None:
    locks = KeyedLock()
    users = Users(locks)
    tasks = [users.begin(name, "same") for name in "ab"]
    await turns()
    assert len(locks) == 1
    await users.end("a")
    assert len(locks) == 1
    await users.end("b")
    assert len(locks) == 0
    await asyncio.gather(*tasks)
