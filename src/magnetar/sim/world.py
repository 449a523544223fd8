"""World: one seed's loop, network and machines, and the processes that start and end on them.

    with World("17") as world:
        world.run(main(world))          the driver: it runs as a process of its own, on the host "world"

- node: a host of the network and a machine with disks, of the same name. It has one process at a time.
- start: `start(node, main)` calls `main(runtime)` as the new process, on its host; a host without power gets it back.
- crash: loop, network and machine stop together. Kill: the kernel continues. Power loss: nothing does.
- exit: a process ends with its main coroutine; what it left open, its kernel closes. A main that raises fails the seed,
  unless `on_exit` takes it.
- garbage: not collected while the world runs, so that nothing depends on when that happens. Collections leave out what
  the process had before its first world: that is more than a world makes.

Read next: loop.py, network.py, machine.py; docs/simulation.md
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from magnetar.sim.device import Crash, DiskTiming
from magnetar.sim.loop import EVENTS_MAX, new_sim_loop
from magnetar.sim.machine import SimEntropy, SimMachine, SimRuntime, WallClock
from magnetar.sim.network import LinkDelay, SimNetwork
from magnetar.sim.process import Process
from magnetar.sim.seeds import NO_DELAY, Delay

T = TypeVar("T")

Main: TypeAlias = Callable[[SimRuntime], Coroutine[Any, Any, object]]
OnExit: TypeAlias = Callable[[Process, BaseException | None], None]


@dataclass(slots=True)
class Node:
    name: str
    machine: SimMachine
    rate: float
    process: Process | None = None
    main: asyncio.Task[object] | None = None


class World(AbstractContextManager["World"]):
    def __init__(
        self,
        seed: str,
        *,
        shuffle: float = 0.0,
        delay: LinkDelay | None = None,
        events_max: int = EVENTS_MAX,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.loop = new_sim_loop(seed, shuffle=shuffle, events_max=events_max, trace=trace)
        self.network = SimNetwork(self.loop, seed, delay=delay)
        self.entropy = SimEntropy(f"{seed}/world", WallClock(time=self._time))
        self.on_crash: list[Callable[[Process], None]] = []
        """Others that look after a process's belongings, such as the metadata store after its session."""
        self._nodes: dict[str, Node] = {}
        self._collects_garbage = gc.isenabled()
        gc.disable()
        _leave_out_what_is_imported()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Raises SimulationError if a failure is not handled."""
        return self.loop.run_until_complete(main)

    def close(self) -> None:
        """Every process stops where it is; then all that it held is disposed of."""
        self.loop.close()
        if self._collects_garbage:
            gc.enable()

    # --- nodes --------------------------------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        disk_timing: DiskTiming | None = None,
        offload_delay: Delay = NO_DELAY,
        clock_offset_ms: float = 0.0,
        clock_drift: float = 0.0,
        rate: float = 1.0,
    ) -> SimMachine:
        """`rate`: how fast its processes see `loop.time()` pass. `clock_*`: what is wrong with its wall clock."""
        assert name not in self._nodes, f"there is a node {name!r} already"
        clock = WallClock(offset_ms=clock_offset_ms, drift=clock_drift, time=self._time)
        machine = SimMachine(f"{self.seed}/{name}", clock=clock, disk_timing=disk_timing, offload_delay=offload_delay)
        self._nodes[name] = Node(name, machine, rate)
        self.network.add_host(name)
        return machine

    def machine(self, name: str) -> SimMachine:
        return self._nodes[name].machine

    def process(self, name: str) -> Process | None:
        """The one that runs there, if one does."""
        return self._nodes[name].process

    def start(self, name: str, main: Main, *, on_exit: OnExit | None = None) -> Process:
        node = self._nodes[name]
        assert node.process is None, f"a process runs on {name} already"
        self.loop.note(f"{name} starts")
        if not self.network.host(name).is_up:
            self.network.on_power_back(name)
        process = node.process = self.loop.add_process(name, rate=node.rate)
        runtime = node.machine.start()
        coroutine = process.context.run(main, runtime)
        node.main = self.loop.create_task(coroutine, name=f"main of {name}", context=process.context.copy())
        node.main.add_done_callback(
            lambda done: self._exit(node, process, done, on_exit), context=self.loop.root.context
        )
        return process

    def crash(self, name: str, kind: Crash = Crash.POWER_LOSS) -> None:
        """The machine too, if there is no process: what was not synced may still be lost."""
        node = self._nodes[name]
        self.loop.note(f"{name}: {kind.value}")
        process, node.process = node.process, None
        if process is not None:
            self.loop.crash(process)
        if kind is not Crash.KILL:
            self.network.on_power_lost(name)
        elif process is not None:
            self.network.on_killed(process)
        node.machine.crash(kind)
        if process is not None:
            self._tell(process)

    def pause(self, name: str) -> None:
        """As SIGSTOP: the kernel continues, and accepts connections and bytes for it."""
        process = self._nodes[name].process
        assert process is not None, f"no process runs on {name}"
        self.loop.pause(process)

    def resume(self, name: str) -> None:
        """Harmless if the process has crashed meanwhile."""
        process = self._nodes[name].process
        if process is not None:
            self.loop.resume(process)

    async def wait_exit(self, name: str) -> None:
        """Until the process there has ended by itself. The caller brings the timeout."""
        node = self._nodes[name]
        if node.process is not None and node.main is not None:
            await asyncio.wait([node.main])

    # --- inside -------------------------------------------------------------------------------------------------------

    def _exit(self, node: Node, process: Process, done: asyncio.Task[object], on_exit: OnExit | None) -> None:
        if node.process is not process:
            return  # It ended, and crashed in the same moment.
        error = None if done.cancelled() else done.exception()
        node.process = None
        self.loop.crash(process)
        self.network.on_killed(process)
        node.machine.crash(Crash.KILL)
        self._tell(process)
        if on_exit is not None:
            on_exit(process, error)
        elif error is not None:
            self.loop.fail(f"{node.name} ended with {error!r}", error)

    def _tell(self, process: Process) -> None:
        for callback in self.on_crash:
            callback(process)

    def _time(self) -> float:
        return self.loop.now


_has_left_out = False


def _leave_out_what_is_imported() -> None:
    """Once per process: what a world leaves stays in sight of the collections after it."""
    global _has_left_out
    if not _has_left_out:
        _has_left_out = True
        gc.freeze()
