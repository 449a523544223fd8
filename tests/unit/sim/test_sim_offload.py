"""The lane without a thread against the contract, and what a crash does to it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from magnetar.errors import ClosedError
from magnetar.sim.offload import SimOffload
from magnetar.sim.seeds import Delay
from tests.contracts.offload import OffloadContract, OffloadHarness


class SimLaneHarness(OffloadHarness):
    def __init__(self) -> None:
        self.lane: SimOffload = SimOffload("test-lane", seed="contract")

    def hold(self) -> asyncio.Future[None]:
        self.lane.pause()
        return asyncio.ensure_future(self.lane(lambda: None))

    def release(self) -> None:
        self.lane.resume()


class TestSimOffload(OffloadContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[SimLaneHarness]:
        harness = SimLaneHarness()
        yield harness
        harness.release()
        await harness.lane.aclose()


async def test_call_takes_its_delay_in_the_loops_time() -> None:
    lane = SimOffload("lane", delay=Delay(0.01, 0.02))
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await lane(len, "x")
    assert loop.time() - begin >= 0.009  # Timers may come a clock tick early.
    await lane.aclose()


async def test_call_never_finishes_in_the_turn_in_which_it_was_made() -> None:
    lane = SimOffload("lane")
    ran: list[str] = []
    call = asyncio.ensure_future(lane(ran.append, "x"))
    await asyncio.sleep(0)
    assert not ran
    await call
    await lane.aclose()


async def test_dead_lane_runs_nothing_more_and_its_callers_stand_still() -> None:
    lane = SimOffload("lane")
    events: list[str] = []
    calls = [asyncio.ensure_future(_use(lane, events, name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    lane.die()
    calls.append(asyncio.ensure_future(_use(lane, events, "late")))
    closing = asyncio.ensure_future(lane.aclose())
    await _turns()
    gc.collect()
    assert events == []
    assert not any(call.done() for call in (*calls, closing))
    lane.release()
    await asyncio.gather(*calls, closing, return_exceptions=True)
    assert events == ["finally first", "finally second", "finally late"]
    with pytest.raises(ClosedError, match="crashed"):
        await lane(len, "x")


async def test_effect_may_be_done_while_the_caller_was_not_told() -> None:
    seen = {await _crash_in_the_middle(f"seed {number}") for number in range(20)}
    assert seen == {(), ("effect",)}


async def _crash_in_the_middle(seed: str) -> tuple[str, ...]:
    lane = SimOffload("lane", seed=seed, delay=Delay(0.002, 0.002))
    effects: list[str] = []
    call = asyncio.ensure_future(lane(effects.append, "effect"))
    crashed = asyncio.Event()

    def crash() -> None:
        lane.die()
        crashed.set()

    asyncio.get_running_loop().call_later(0.001, crash)
    await crashed.wait()
    assert not call.done()
    lane.release()
    await asyncio.gather(call, return_exceptions=True)
    return tuple(effects)


async def _use(lane: SimOffload, events: list[str], name: str) -> None:
    try:
        await lane(events.append, name)
    finally:
        events.append(f"finally {name}")


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
