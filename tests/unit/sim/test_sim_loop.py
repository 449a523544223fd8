"""The simulated loop: virtual time, processes, crashes that run no `finally`, failures that stop the run."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from magnetar.sim.loop import SimLoop, SimulationError, new_sim_loop
from magnetar.sim.process import Process, bound

Main = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = new_sim_loop("1")
    yield made
    made.close()


def _start(loop: SimLoop, main: Main, name: str = "node", rate: float = 1.0) -> Process:
    process = loop.add_process(name, rate=rate)
    loop.create_task(main(), context=process.context.copy())
    return process


async def _turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- time ---


def test_waiting_takes_no_real_time_and_the_clock_shows_what_was_waited(loop: SimLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert loop.run_until_complete(main()) == 86_400


def test_process_that_spins_does_not_stop_the_clock(loop: SimLoop) -> None:
    async def main() -> float:
        due = asyncio.Event()
        loop.call_later(0.5, due.set)
        while not due.is_set():  # noqa: ASYNC110 - it spins on purpose
            await asyncio.sleep(0)
        return loop.time()

    assert loop.run_until_complete(main()) == 0.5


def test_many_steps_at_once_do_not_make_a_far_timer_fire(loop: SimLoop) -> None:
    async def main() -> None:
        loop.call_later(100, lambda: None)
        await asyncio.gather(*(_turns(3) for _ in range(3_000)))

    loop.run_until_complete(main())
    assert loop.now < 1


def test_cancelled_timers_neither_move_the_clock_nor_fill_the_heap(loop: SimLoop) -> None:
    async def main() -> None:
        for _ in range(5_000):
            async with asyncio.timeout(1_000):
                await asyncio.sleep(0)
        assert len(loop._timers) < 300
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert loop.now < 2


@pytest.mark.parametrize("rate", [0.99, 1.0, 1.01, 1.0037])
def test_process_with_a_wrong_clock_sees_its_own_time_pass(loop: SimLoop, rate: float) -> None:
    seen: list[float] = []

    async def node() -> None:
        for _ in range(1_000):
            deadline = loop.time() + 0.1
            fired = loop.create_future()
            loop.call_at(deadline, fired.set_result, None)
            await fired
            assert loop.time() >= deadline, "a timer never comes early, or code that checks again would spin"
        seen.append(loop.time())

    async def main() -> None:
        _start(loop, node, rate=rate)
        await asyncio.sleep(200)

    loop.run_until_complete(main())
    assert seen == [pytest.approx(100)]
    assert loop.now == 200


# --- order ---


def _order(seed: str, shuffle: float = 0.0) -> tuple[list[str], int]:
    loop, order = new_sim_loop(seed, shuffle=shuffle), []

    async def node(name: str) -> None:
        for number in range(5):
            order.append(f"{name}{number}")
            await asyncio.sleep(0)

    async def main() -> None:
        for name in ("a", "b", "c"):
            _start(loop, lambda name=name: node(name), name)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.close()
    return order, loop.digest.value


def test_seed_decides_the_order_between_processes() -> None:
    assert _order("1") == _order("1")
    orders = {tuple(_order(str(seed))[0]) for seed in range(20)}
    assert len(orders) == 20
    assert len({_order(str(seed))[1] for seed in range(20)}) == 20


def test_shuffle_lets_tasks_of_one_process_overtake_each_other_and_callbacks_not() -> None:
    def run(shuffle: float) -> tuple[list[int], list[int]]:
        loop, tasks, calls = new_sim_loop("1", shuffle=shuffle), [], []

        async def work(number: int) -> None:
            await asyncio.sleep(0)
            tasks.append(number)

        async def main() -> None:
            for number in range(30):
                loop.call_soon(calls.append, number)
            await asyncio.gather(*map(work, range(30)))

        loop.run_until_complete(main())
        loop.close()
        return tasks, calls

    assert run(0.0) == (list(range(30)), list(range(30)))
    tasks, calls = run(0.5)
    assert sorted(tasks) == list(range(30)) != tasks
    assert calls == list(range(30))


def test_sets_of_tasks_and_futures_are_walked_in_the_order_of_birth(loop: SimLoop) -> None:
    async def main() -> None:
        tasks = [asyncio.ensure_future(asyncio.sleep(1, number)) for number in range(20)]
        done, _ = await asyncio.wait(tasks)
        assert [task.result() for task in sorted(done, key=hash)] == list(range(20))
        futures = [loop.create_future() for _ in range(20)]
        assert sorted(futures, key=hash) == futures

    loop.run_until_complete(main())


DIGEST = """
import asyncio
from magnetar.sim.loop import new_sim_loop

def seed(number):
    loop = new_sim_loop(str(number), shuffle=0.2)
    seen = []

    async def node(name):
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(asyncio.sleep(number % 3 / 100))
        waiting = {asyncio.ensure_future(asyncio.sleep(n % 4, n)) for n in range(20)}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            seen.extend(f"{name} {task.result()}" for task in done)
        seen.extend(task.get_name() for task in asyncio.all_tasks())

    async def main():
        for name in ("a", "b", "c"):
            loop.create_task(node(name), context=loop.add_process(name).context.copy())
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    loop.note(repr(seen))
    loop.close()
    return loop.digest.value

print([seed(number) for number in range(5)])
"""


def test_run_does_not_depend_on_the_hash_seed() -> None:
    assert _output("1") == _output("2")


def _output(hash_seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, timeout=60, check=True)
    return ran.stdout


# --- crashes and pauses ---


class _Victim:
    """Waits in every way in which a node can wait."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.events: list[str] = []
        self.ticks = 0

    async def main(self) -> None:
        self.loop.call_soon(self._tick)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wait(asyncio.sleep(5), "timer"))
            group.create_task(self._wait(asyncio.Event().wait(), "event"))
            group.create_task(self._wait(self._generate(), "generator"))
            group.create_task(self._stubborn())

    def _tick(self) -> None:
        self.ticks += 1
        self.loop.call_later(0.1, self._tick)

    async def _wait(self, what: Coroutine[Any, Any, object], name: str) -> None:
        try:
            await what
        finally:
            self.events.append(f"finally {name}")

    async def _generate(self) -> None:
        async for _ in self._numbers():
            await asyncio.sleep(100)

    async def _numbers(self) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            self.events.append("finally inside the generator")

    async def _stubborn(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            asyncio.get_running_loop().create_task(self._wait(asyncio.sleep(1), "late"))
            await self._wait(asyncio.sleep(1), "after another wait")


def test_crash_runs_no_finally_block_not_even_when_garbage_is_collected(loop: SimLoop) -> None:
    victim = _Victim(loop)

    async def main() -> None:
        process = _start(loop, victim.main)
        await asyncio.sleep(1.05)
        assert victim.ticks == 11
        loop.crash(process)
        await asyncio.sleep(100)
        gc.collect()
        assert (victim.ticks, victim.events) == (11, [])
        assert not process.is_alive
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(loop.tasks_of(process)) == 5

    loop.run_until_complete(main())
    assert victim.events == []


def _abandon(loop: SimLoop) -> weakref.ref[_Victim]:
    victim = _Victim(loop)

    async def main() -> None:
        process = _start(loop, victim.main)
        await asyncio.sleep(1)
        _start(loop, victim.main, "still alive at the end")
        await asyncio.sleep(1)
        loop.crash(process)
        loop.call_soon(loop.create_task, asyncio.sleep(1))  # Never begun: the loop stops before.

    loop.run_until_complete(main())
    return weakref.ref(victim)


def test_what_a_crash_left_is_disposed_of_in_silence_when_the_loop_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    loop = new_sim_loop("1")
    victim = _abandon(loop)
    before = (loop.now, loop.events)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loop.close()
        gc.collect()
    assert warned == []
    assert victim() is None, "a seed that is over holds no memory"
    assert (loop.now, loop.events) == before
    assert caplog.records == []


def test_dead_process_is_not_woken_by_what_it_waited_for(loop: SimLoop) -> None:
    events: list[str] = []
    answer: asyncio.Future[str] = loop.create_future()

    async def node() -> None:
        events.append("asks")
        events.append(await answer)

    async def main() -> None:
        process = _start(loop, node)
        await _turns()
        loop.crash(process)
        answer.set_result("answered")
        await asyncio.sleep(1)
        assert events == ["asks"]

    loop.run_until_complete(main())


def test_paused_process_stands_still_and_then_goes_on_with_all_that_was_due(loop: SimLoop) -> None:
    times: list[float] = []

    async def node() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            times.append(loop.time())

    async def main() -> None:
        process = _start(loop, node)
        await asyncio.sleep(1.5)
        loop.pause(process)
        await asyncio.sleep(10)
        assert times == [1]
        loop.resume(process)
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert times == [1, 11.5, 12.5]


def test_tasks_timers_and_callbacks_belong_to_the_process_that_made_them(loop: SimLoop) -> None:
    names: list[str] = []

    def note() -> None:
        names.append(loop.current().name)

    async def child() -> None:
        note()
        loop.call_later(0.1, note)
        loop.call_soon(note)

    async def node() -> None:
        await asyncio.gather(child(), child())

    async def main() -> None:
        note()
        _start(loop, node)
        await asyncio.sleep(1)
        note()

    loop.run_until_complete(main())
    assert names == ["world", *["node"] * 6, "world"]


def test_callback_bound_to_a_process_runs_as_that_process_and_dies_with_it(loop: SimLoop) -> None:
    names: list[str] = []
    watchers: list[Callable[[str], None]] = []

    async def node() -> None:
        watchers.append(bound(lambda what: names.append(f"{loop.current().name} hears of {what}")))

    async def main() -> None:
        process = _start(loop, node)
        await _turns()
        watchers[0]("one")
        await _turns()
        loop.crash(process)
        watchers[0]("two")
        await _turns()

    loop.run_until_complete(main())
    assert names == ["node hears of one"]


# --- failures ---


def test_exception_in_a_callback_fails_the_run_at_once(loop: SimLoop) -> None:
    async def main() -> None:
        loop.call_later(1, lambda: 1 / 0)
        await asyncio.sleep(100)

    with pytest.raises(SimulationError, match=r"seed 1, at 1\.0.*division by zero") as failure:
        loop.run_until_complete(main())
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


def test_task_whose_error_nobody_took_fails_the_run(loop: SimLoop) -> None:
    async def fail() -> None:
        raise ValueError("on purpose")

    async def main() -> None:
        task = asyncio.ensure_future(fail())
        await _turns()
        del task
        await asyncio.sleep(100)

    with pytest.raises(SimulationError, match=r"never retrieved.*on purpose"):
        loop.run_until_complete(main())


def test_run_that_never_ends_is_stopped_and_says_where_it_was() -> None:
    loop = new_sim_loop("1", events_max=10_000)

    async def main() -> None:
        while True:  # noqa: ASYNC110 - it spins on purpose
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match=r"no end after 1\d{4} events.*test_sim_loop.py:.*sleep"):
        loop.run_until_complete(main())
    loop.close()


def test_run_in_which_nothing_is_left_to_do_says_who_waits_and_where(loop: SimLoop) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match=r"nothing is left to do.*Event\.wait"):
        loop.run_until_complete(main())


def test_clock_does_not_jump_for_timers_that_do_nothing(loop: SimLoop) -> None:
    async def main() -> None:
        process = _start(loop, lambda: asyncio.sleep(50))
        loop.call_later(100, lambda: None).cancel()
        await _turns()
        loop.crash(process)
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match=r"at 0\.000000 s.*nothing is left to do"):
        loop.run_until_complete(main())


def test_own_exception_handler_takes_errors_instead(loop: SimLoop) -> None:
    taken: list[str] = []
    loop.set_exception_handler(lambda _, context: taken.append(context["message"]))

    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert len(taken) == 1


def test_what_is_not_simulated_raises(loop: SimLoop) -> None:
    with pytest.raises(NotImplementedError):
        loop.run_in_executor(None, len, "")
    with pytest.raises(NotImplementedError):
        loop.add_signal_handler(15, lambda: None)
    with pytest.raises(NotImplementedError, match="no network"):
        loop.run_until_complete(loop.create_connection(asyncio.Protocol, "host", 1))


def test_trace_names_time_process_and_task() -> None:
    lines: list[str] = []
    loop = new_sim_loop("1", trace=lines.append)

    async def main() -> None:
        process = _start(loop, lambda: asyncio.sleep(5), "bookie-1")
        await asyncio.sleep(1)
        loop.crash(process)

    loop.run_until_complete(main())
    loop.close()
    assert lines[-1] == "1.000000 * bookie-1 dies"
    assert any(line.startswith("0.000000 bookie-1: task") for line in lines)
