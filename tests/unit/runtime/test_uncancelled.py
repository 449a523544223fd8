"""Work that runs to its end although its caller leaves, and outcomes that are never fetched."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from magnetar.errors import ServiceNotReadyError
from magnetar.runtime.uncancelled import UncancelledTasks, ignore_outcome


class Work:
    """Ends when the test says so."""

    def __init__(self) -> None:
        self.end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_begun = self.is_ended = False

    async def run(self) -> int:
        self.is_begun = True
        try:
            return await self.end
        finally:
            self.is_ended = True


def given_up() -> ServiceNotReadyError:
    return ServiceNotReadyError("the owner was closed")


def complaints() -> list[dict[str, Any]]:
    """Collects what the loop reports as errors that were never retrieved."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_caller_that_waits_gets_the_result() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    caller = asyncio.create_task(tasks.run(work.run()))
    await turns()
    work.end.set_result(7)
    assert await caller == 7
    assert len(tasks) == 0


async def test_a_caller_that_waits_gets_the_error() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    work.end.set_exception(ValueError("of the work"))
    with pytest.raises(ValueError, match="of the work"):
        await tasks.run(work.run())


async def test_work_goes_to_its_end_although_its_caller_is_cancelled() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    caller = asyncio.create_task(tasks.run(work.run()))
    await turns()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not work.is_ended
    assert len(tasks) == 1
    work.end.set_result(7)
    await tasks.wait()
    assert work.is_ended


async def test_several_callers_share_one_task_and_one_that_leaves_does_not_disturb_the_others() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    task = tasks.begin(work.run(), name="shared")
    callers = [asyncio.create_task(tasks.result_of(task)) for _ in range(3)]
    await turns()
    callers[0].cancel()
    await turns()
    work.end.set_result(7)
    assert await asyncio.gather(*callers[1:]) == [7, 7]
    assert task.get_name() == "shared"


async def test_the_result_of_a_task_that_has_ended_can_still_be_asked_for() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    task = tasks.begin(work.run())
    work.end.set_result(7)
    await tasks.wait()
    assert await tasks.result_of(task) == 7


async def test_work_that_was_given_up_raises_the_owners_error_and_not_a_cancellation() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    caller = asyncio.create_task(tasks.run(work.run()))
    await turns()
    await tasks.give_up()
    assert work.is_ended
    with pytest.raises(ServiceNotReadyError, match="the owner was closed"):
        await caller


async def test_cancelling_does_not_wait_for_the_end() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    tasks.begin(work.run())
    await turns()
    tasks.cancel()
    assert not work.is_ended
    await tasks.wait()
    assert work.is_ended
    assert len(tasks) == 0


async def test_waiting_ends_with_its_timeout_and_the_work_continues() -> None:
    tasks, work = UncancelledTasks(given_up), Work()
    tasks.begin(work.run())
    await tasks.wait(timeout_s=0.01)
    assert work.is_begun
    assert len(tasks) == 1
    await tasks.give_up()


async def test_waiting_for_nothing_returns() -> None:
    tasks = UncancelledTasks(given_up)
    await tasks.wait()
    await tasks.give_up()


async def test_an_error_that_nobody_waits_for_is_not_reported() -> None:
    reported = complaints()
    tasks, work = UncancelledTasks(given_up), Work()
    tasks.begin(work.run())
    work.end.set_exception(ValueError("nobody fetches it"))
    await tasks.wait()
    del work
    gc.collect()
    assert not reported


async def test_an_ignored_future_may_fail_be_cancelled_or_succeed_without_a_report() -> None:
    reported = complaints()
    loop = asyncio.get_running_loop()
    for end in (
        lambda future: future.set_exception(ValueError("nobody fetches it")),
        lambda future: future.cancel(),
        lambda future: future.set_result(None),
    ):
        future: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(ignore_outcome)
        end(future)
        await turns()
        del future
        gc.collect()
    assert not reported


async def test_a_caller_of_an_ignored_future_still_gets_its_error() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(ignore_outcome)
    future.set_exception(ValueError("fetched"))
    with pytest.raises(ValueError, match="fetched"):
        await future
