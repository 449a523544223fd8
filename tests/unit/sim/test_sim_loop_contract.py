"""Programs that use asyncio as production does, on asyncio's own loop and on the simulated one."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from magnetar.sim.loop import new_sim_loop

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def _run_on(factory: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main)

    return run


@pytest.fixture(params=["asyncio", "sim", "sim, shuffled"])
def run(request: pytest.FixtureRequest) -> Run:
    shuffle = 0.5 if request.param == "sim, shuffled" else 0.0
    return _run_on(asyncio.new_event_loop if request.param == "asyncio" else lambda: new_sim_loop(shuffle=shuffle))


def test_callbacks_of_one_process_run_in_the_order_they_were_asked_for(run: Run) -> None:
    async def main() -> list[int]:
        loop, order = asyncio.get_running_loop(), []
        ended = loop.create_future()
        for number in range(5):
            loop.call_soon(order.append, number)
        loop.call_soon(ended.set_result, None)
        cancelled = loop.call_soon(order.append, 99)
        cancelled.cancel()
        assert cancelled.cancelled()
        await ended
        return order

    assert run(main()) == [0, 1, 2, 3, 4]


def test_timers_fire_in_the_order_of_their_time_and_cancelled_ones_never(run: Run) -> None:
    async def main() -> list[str]:
        loop, order = asyncio.get_running_loop(), []
        begin = loop.time()
        loop.call_later(0.03, order.append, "third")
        loop.call_at(begin + 0.01, order.append, "first")
        loop.call_later(0.02, order.append, "never").cancel()
        handle = loop.call_later(0.02, order.append, "second")
        assert begin + 0.02 <= handle.when() < begin + 1
        await asyncio.sleep(0.04)
        assert loop.time() - begin >= 0.039
        return order

    assert run(main()) == ["first", "second", "third"]


def test_timeout_cancels_what_takes_too_long_and_nothing_else(run: Run) -> None:
    async def main() -> str:
        async with asyncio.timeout(10):
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.get_running_loop().create_future()
        return "went on"

    assert run(main()) == "went on"


def test_shielded_work_survives_the_timeout_of_its_caller(run: Run) -> None:
    async def main() -> str:
        work = asyncio.ensure_future(asyncio.sleep(0.03, "done"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(work), 0.01)
        return await work

    assert run(main()) == "done"


def test_queue_lock_event_and_condition_hand_over(run: Run) -> None:
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        lock, begun, condition, got = asyncio.Lock(), asyncio.Event(), asyncio.Condition(), []

        async def produce() -> None:
            await begun.wait()
            for number in range(10):
                await queue.put(number)

        async def consume() -> None:
            for _ in range(10):
                number = await queue.get()
                async with lock:
                    got.append(number)
            async with condition:
                condition.notify_all()

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
            begun.set()
            async with condition:
                await condition.wait_for(lambda: len(got) == 10)
        return got

    assert run(main()) == list(range(10))


def test_task_group_cancels_the_others_when_one_fails(run: Run) -> None:
    async def main() -> list[str]:
        events: list[str] = []

        async def wait_for_ever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                events.append("cancelled")

        async def fail() -> None:
            await asyncio.sleep(0.001)
            raise ValueError("on purpose")

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(wait_for_ever())
                group.create_task(fail())

        with pytest.raises(ExceptionGroup):
            await both()
        return events

    assert run(main()) == ["cancelled"]


def test_gather_and_wait_give_what_ended(run: Run) -> None:
    async def main() -> None:
        assert await asyncio.gather(asyncio.sleep(0.02, 1), asyncio.sleep(0.01, 2)) == [1, 2]
        fast, slow = (asyncio.ensure_future(asyncio.sleep(s)) for s in (0.001, 5))
        done, pending = await asyncio.wait([fast, slow], return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({fast}, {slow})
        assert slow in asyncio.all_tasks()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow

    run(main())


def test_context_variables_belong_to_their_task(run: Run) -> None:
    variable = contextvars.ContextVar("variable", default="none")

    async def child(value: str) -> str:
        variable.set(value)
        await asyncio.sleep(0)
        return variable.get()

    async def main() -> list[str]:
        return [*await asyncio.gather(child("a"), child("b")), variable.get()]

    assert run(main()) == ["a", "b", "none"]


def test_generator_that_is_let_go_is_closed_and_one_that_is_kept_is_closed_at_the_end(run: Run) -> None:
    events: list[str] = []
    kept: list[AsyncIterator[int]] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            events.append(f"{name} closed")

    async def main() -> None:
        async for _ in numbers("dropped"):
            break
        kept.append(numbers("kept"))
        await anext(kept[0])
        for _ in range(10):  # The turns of a loop that closing takes, and some more.
            await asyncio.sleep(0)
        assert events == ["dropped closed"]

    run(main())
    assert events == ["dropped closed", "kept closed"]


def test_tasks_that_are_left_are_cancelled_by_the_runner(run: Run) -> None:
    events: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            events.append("cancelled")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(background(), name="background")
        assert task.get_name() == "background"
        await asyncio.sleep(0.001)

    run(main())
    assert events == ["cancelled"]


def test_error_of_the_main_coroutine_reaches_the_caller(run: Run) -> None:
    async def main() -> None:
        with contextlib.suppress(KeyError):
            raise KeyError
        raise LookupError("main")

    with pytest.raises(LookupError, match="main"):
        run(main())
