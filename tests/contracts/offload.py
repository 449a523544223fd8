"""The contract of `Offload`, for the real machine and for the simulator alike."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest

from magnetar.errors import ClosedError, DiskFullError
from magnetar.runtime.runtime import Offload


class OffloadHarness(ABC):
    """The lane under test, and the means to keep it busy."""

    lane: Offload

    @abstractmethod
    def hold(self) -> asyncio.Future[None]:
        """Hands over a call that stays unfinished until `release`; the future is its caller."""

    @abstractmethod
    def release(self) -> None:
        """Lets the held call finish."""


class OffloadContract:
    @pytest.fixture
    def harness(self) -> Iterator[OffloadHarness]:
        raise NotImplementedError("a subclass brings the implementation; it closes the lane afterwards")

    async def test_result_comes_back(self, harness: OffloadHarness) -> None:
        assert await harness.lane(divmod, 17, 5) == (3, 2)

    async def test_call_without_arguments_runs(self, harness: OffloadHarness) -> None:
        assert await harness.lane(list) == []

    async def test_exception_travels_to_the_caller(self, harness: OffloadHarness) -> None:
        def fail() -> None:
            raise DiskFullError("no room")

        with pytest.raises(DiskFullError, match="no room"):
            await harness.lane(fail)
        assert await harness.lane(len, "ok") == 2

    async def test_stop_iteration_does_not_end_the_caller_silently(self, harness: OffloadHarness) -> None:
        with pytest.raises(RuntimeError):
            await harness.lane(next, iter(()))

    async def test_calls_run_one_after_the_other_in_order(self, harness: OffloadHarness) -> None:
        events: list[str] = []

        def work(number: int) -> int:
            events.append(f"begin {number}")
            events.append(f"end {number}")
            return number

        results = await asyncio.gather(*(harness.lane(work, number) for number in range(100)))
        assert results == list(range(100))
        assert events == [f"{what} {number}" for number in range(100) for what in ("begin", "end")]

    async def test_loop_goes_on_while_a_call_runs(self, harness: OffloadHarness) -> None:
        held = harness.hold()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not held.done()
        harness.release()
        await held

    async def test_call_of_a_cancelled_caller_still_runs_in_its_turn(self, harness: OffloadHarness) -> None:
        events: list[str] = []
        held = harness.hold()
        waiting = asyncio.ensure_future(harness.lane(events.append, "cancelled"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        harness.release()
        await held
        await harness.lane(events.append, "next")
        assert events == ["cancelled", "next"]

    async def test_failure_of_a_cancelled_caller_is_nobodys_problem(self, harness: OffloadHarness) -> None:
        def fail() -> None:
            raise DiskFullError("unheard")

        held = harness.hold()
        waiting = asyncio.ensure_future(harness.lane(fail))
        await asyncio.sleep(0)
        waiting.cancel()
        harness.release()
        await held
        assert await harness.lane(len, "ok") == 2

    async def test_closing_waits_for_what_was_handed_over(self, harness: OffloadHarness) -> None:
        events: list[str] = []
        held = harness.hold()
        waiting = asyncio.ensure_future(harness.lane(events.append, "done"))
        closing = asyncio.ensure_future(harness.lane.aclose())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        harness.release()
        await closing
        assert events == ["done"]
        await asyncio.gather(held, waiting)

    async def test_call_after_closing_is_refused(self, harness: OffloadHarness) -> None:
        await harness.lane(len, "used")
        await harness.lane.aclose()
        with pytest.raises(ClosedError):
            await harness.lane(len, "late")

    async def test_call_during_closing_is_refused(self, harness: OffloadHarness) -> None:
        held = harness.hold()
        closing = asyncio.ensure_future(harness.lane.aclose())
        await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await harness.lane(len, "late")
        harness.release()
        await asyncio.gather(held, closing)

    async def test_closing_twice_and_closing_unused_are_harmless(self, harness: OffloadHarness) -> None:
        await asyncio.gather(harness.lane.aclose(), harness.lane.aclose())
        await harness.lane.aclose()

    async def test_a_closing_that_was_cancelled_can_be_waited_for_again(self, harness: OffloadHarness) -> None:
        held = harness.hold()
        closing = asyncio.ensure_future(harness.lane.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        harness.release()
        await held
        await harness.lane.aclose()
