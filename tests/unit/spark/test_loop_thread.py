"""Synchronous callers and the one event loop of a process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import pytest

from magnetar.errors import BrokerTimeoutError
from magnetar.spark.loop_thread import is_loop_thread, iterate, loop, run
from magnetar.testing.processes.child import wait_for


async def _where() -> tuple[int, asyncio.AbstractEventLoop]:
    return threading.get_ident(), asyncio.get_running_loop()


def test_everything_runs_on_one_thread_and_one_loop() -> None:
    assert run(_where(), 5) == run(_where(), 5)
    assert run(_where(), 5)[0] != threading.get_ident()
    assert run(_where(), 5)[1] is loop()


def test_what_it_raises_is_raised_here() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(fail(), 5)


def test_a_timeout_of_its_own_is_not_taken_for_ours() -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        run(fail(), 5)


def test_what_takes_too_long_is_cancelled() -> None:
    ended = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    with pytest.raises(BrokerTimeoutError, match=r"0\.01 s"):
        run(hang(), 0.01)
    assert ended.wait(5)


def test_waiting_for_oneself_is_an_error_and_not_a_deadlock() -> None:
    async def outer() -> None:
        assert is_loop_thread()
        run(_where(), 5)

    with pytest.raises(RuntimeError, match="wait for itself"):
        run(outer(), 5)


async def _count(up_to: int, pulled: list[int] | None = None) -> AsyncIterator[int]:
    for number in range(up_to):
        if pulled is not None:
            pulled.append(number)
        yield number


def test_items_come_in_order_and_then_it_ends() -> None:
    assert list(iterate(_count(100))) == list(range(100))
    assert list(iterate(_count(0))) == []


def test_it_pulls_so_far_ahead_and_no_further() -> None:
    pulled: list[int] = []
    items = iterate(_count(100, pulled), depth=3)
    assert next(items) == 0
    wait_for(lambda: len(pulled) == 4, what="three items ahead of the one that was taken")
    for _ in range(20):  # Turns of the loop in which it could continue.
        run(asyncio.sleep(0), 5)
    assert len(pulled) == 4
    assert list(items) == list(range(1, 100))


def test_an_error_comes_behind_the_items_before_it() -> None:
    async def fail() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise KeyError("x")

    items = iterate(fail())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError):
        next(items)


def test_closing_ends_what_pulls() -> None:
    ended = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(0)
                yield 1
        finally:
            ended.set()

    items = iterate(endless())
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]  # It is a generator.
    assert ended.wait(5)


def test_an_item_that_does_not_come_is_an_error() -> None:
    async def hang() -> AsyncIterator[int]:
        await asyncio.get_running_loop().create_future()
        yield 1

    with pytest.raises(BrokerTimeoutError, match="nothing more came"):
        list(iterate(hang(), timeout=0.01))


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    run(_where(), 5)
    child = os.fork()
    if child == 0:
        try:
            code = 0 if run(_where(), 5)[1] is loop() else 1
        except BaseException:
            code = 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
