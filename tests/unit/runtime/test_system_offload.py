"""The thread lane against the contract, and what only a thread can get wrong."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from magnetar.runtime.system import SystemOffload
from magnetar.testing.waiting import until
from tests.contracts.offload import OffloadContract, OffloadHarness

DEADLINE_S = 10


class ThreadHarness(OffloadHarness):
    def __init__(self) -> None:
        self.lane = SystemOffload("test-lane")
        self._gate = threading.Event()

    def hold(self) -> asyncio.Future[None]:
        held = asyncio.ensure_future(self.lane(self._gate.wait, DEADLINE_S))
        return asyncio.ensure_future(_checked(held))

    def release(self) -> None:
        self._gate.set()


async def _checked(held: asyncio.Future[bool]) -> None:
    assert await held, "nobody released the held call"


class TestSystemOffload(OffloadContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[ThreadHarness]:
        harness = ThreadHarness()
        yield harness
        harness.release()
        await harness.lane.aclose()
        assert not threads_named("test-lane")

    async def test_thread_starts_with_the_first_call_and_has_the_name(self, harness: ThreadHarness) -> None:
        assert not threads_named("test-lane")
        name = await harness.lane(lambda: threading.current_thread().name)
        assert name == "test-lane"
        assert len(threads_named("test-lane")) == 1

    async def test_closing_ends_the_thread(self, harness: ThreadHarness) -> None:
        await harness.lane(len, "x")
        await harness.lane.aclose()
        assert not threads_named("test-lane")

    async def test_calls_that_finish_together_wake_the_loop_once(
        self, harness: ThreadHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wakes: list[Callable[[], None]] = []
        await harness.lane(len, "started")
        monkeypatch.setattr(harness.lane, "_tell", wakes.append)  # The loop hears nothing until it is woken below.
        waiting = [asyncio.ensure_future(harness.lane(pow, number, 2)) for number in range(50)]
        last = threading.Event()
        waiting.append(asyncio.ensure_future(harness.lane(last.set)))
        await asyncio.sleep(0)
        assert last.wait(DEADLINE_S)
        await until(lambda: len(harness.lane._finished) == 51, "all calls finished")
        assert len(wakes) == 1
        wakes[0]()
        monkeypatch.undo()
        assert await asyncio.gather(*waiting) == [number**2 for number in range(50)] + [None]

    async def test_idle_lane_holds_nothing_of_a_finished_call(self, harness: ThreadHarness) -> None:
        class Big:
            pass

        big = Big()
        gone = weakref.ref(big)
        await harness.lane(id, big)
        del big
        await until(lambda: gc.collect() >= 0 and gone() is None, "the argument was let go")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_loop_that_closes_under_a_running_call_loses_nothing_and_hangs_nobody(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    lane = SystemOffload("orphan-lane")
    begun, gate, second_ran = threading.Event(), threading.Event(), threading.Event()

    def held() -> None:
        begun.set()
        assert gate.wait(DEADLINE_S)

    async def leave() -> None:
        first = asyncio.ensure_future(lane(held))
        second = asyncio.ensure_future(lane(second_ran.set))
        await until(begun.is_set, "the first call began")
        for waiting in (first, second):
            waiting.cancel()
        await asyncio.gather(first, second, return_exceptions=True)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(leave())
    (thread,) = threads_named("orphan-lane")
    gate.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert second_ran.is_set()


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]
