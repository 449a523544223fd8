"""A marker for tests whose time is not the clock's: `virtual_time` runs a coroutine on the simulator's loop.

Purpose:   speed. When nothing is runnable, time jumps to the next timer. A test that waits for a minute takes no time.
Order:     follows from a seed that is always the same, so the test repeats exactly.
Limits:    servers and connections of the loop are simulated: tests with real sockets, files or threads cannot use it.
Failure:   an exception that no task and no callback handles fails the test, and so does a loop with nothing left to do.
Read next: src/magnetar/sim/loop.py
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import pytest

from magnetar.sim.loop import SimLoop, new_sim_loop
from magnetar.sim.network import SimNetwork

T = TypeVar("T")

SEED = "tests"

_Factories: TypeAlias = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual_time: runs the test on the simulator's loop, where time is virtual")


def pytest_collection_finish() -> None:
    """Collections of garbage leave out the modules and the tests: each simulated world ends with one."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Generator[None, _Factories | None, _Factories]:
    """The marker comes first, then a folder's own choice, then asyncio's loop."""
    chosen = yield
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": virtual_loop}
    return chosen if chosen is not None else {"asyncio": asyncio.new_event_loop}


def virtual_loop() -> SimLoop:
    loop = new_sim_loop(SEED)
    SimNetwork(loop, SEED)
    return loop


def run(scene: Coroutine[Any, Any, T], *, is_tolerant: bool = False) -> T:
    """Runs it on a virtual loop of its own, for tests that run several or that take no coroutine.

    It is tolerant of exceptions that nothing handles where the test kills processes: their tasks end as they like.
    """
    with asyncio.Runner(loop_factory=virtual_loop) as runner:
        if is_tolerant:
            runner.get_loop().set_exception_handler(lambda *_: None)
        return runner.run(scene)
