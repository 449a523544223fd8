"""The life of one seed, whatever its kind: made, lived through under faults, healed, settled, judged, reported.

    report = LEDGERS.run(17)                    one seed, with the options that it draws; TOPICS and STAGING likewise
    report.violations                           what was broken: the invariant's id, what, when
    LEDGERS.run(17, {"faults": ("part",)})      some options replaced by name
    LEDGERS.run(17, without=("part",), mutant=planted_bug, trace=print)

- scenario: what differs between the kinds, as hooks: how options are drawn; the classes of the watch, the cluster, the
  workload and the nemesis; how the world settles when it is healed.
- observed: a context manager around the life: what the watch has to see from inside production classes.
- mutant: a callable without arguments that returns a context manager. It is entered before the world is made and left
  after it: while it is entered, production classes are patched.
- repeat: the same call gives the same report, digest included, in any process.

Read next: scenarios.py, ledgers/watch.py, ledgers/cluster.py, ledgers/nemesis.py
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from magnetar.sim.ledgers.options import Options
from magnetar.sim.ledgers.watch import Invariant, Violation, Watch
from magnetar.sim.loop import SimulationError
from magnetar.sim.world import World

Planted: TypeAlias = Callable[[], AbstractContextManager[object]]
Script: TypeAlias = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
W = TypeVar("W", bound=Watch)


@dataclass(slots=True)
class Report:
    """What one seed did and what was found."""

    seed: int
    options: str
    violations: list[Violation] = field(default_factory=list)
    failure: str | None = None
    """The run itself broke: an uncaught exception, an endless run."""
    events: int = 0
    virtual_s: float = 0.0
    digest: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.violations and self.failure is None

    @property
    def caught(self) -> list[str]:
        """Ids of the invariants that were violated, in the order of their first violation."""
        found = list(dict.fromkeys(violation.invariant for violation in self.violations))
        return found if self.failure is None else [*found, "run"]


class Drawn(Protocol):
    """The options of one seed."""

    @property
    def base(self) -> Options:
        """Those that every world has."""

    def summary(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A kind of worlds."""

    name: str
    world_seed: str
    """Text from which a world draws, with the seed's number for `{}`."""
    faults: Mapping[str, str]
    """By the name that `--without` knows."""
    must_happen: tuple[str, ...]
    """Counters that are above zero over any batch worth its name."""
    invariants: Sequence[type[Invariant]]
    events_max: int
    draw: Callable[..., Drawn]
    watch: Callable[[World, Any, Sequence[type[Invariant]]], Watch]
    cluster: Callable[[World, Any, Any], Any]
    workload: Callable[[Any, Any], Any]
    nemesis: Callable[[Any, Any, Any], Any]
    settle: Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
    """Everything is healed: clients come to their end, and what they were promised is audited."""
    end: Callable[[Any], Coroutine[Any, Any, None]]
    """Ends what is left besides the bookies."""
    observed: Callable[[Any], AbstractContextManager[object]] = contextlib.nullcontext

    def run(
        self,
        seed: int,
        override: Mapping[str, Any] | None = None,
        *,
        without: tuple[str, ...] = (),
        mutant: Planted | None = None,
        trace: Callable[[str], None] | None = None,
        script: Script | None = None,
    ) -> Report:
        """`override` replaces options by name, `without` takes classes of faults away, `script` takes the place of the
        workload's director and of the nemesis."""
        options = self.draw(seed, override, without=without)
        name, base = self.world_seed.format(seed), options.base
        return live(
            Report(seed, options.summary()),
            lambda: World(name, shuffle=base.shuffle, delay=base.delay, events_max=self.events_max, trace=trace),
            lambda world: self.watch(world, options, self.invariants),
            lambda world, watch: self._life(world, options, watch, script),
            mutant=mutant,
            observed=self.observed,
        )

    async def _life(self, world: World, options: Drawn, watch: Watch, script: Script | None) -> None:
        cluster = self.cluster(world, options, watch)
        await cluster.start()
        workload = self.workload(cluster, watch)
        nemesis = self.nemesis(cluster, workload, watch)
        if script is not None:
            await script(cluster, workload, watch)
        else:
            workload.begin()
            until_s = world.loop.now + options.base.duration_s
            breaking = world.loop.create_task(nemesis.run(until_s), name="nemesis")
            await workload.direct(until_s)
            await breaking
        watch.note("everything heals")
        nemesis.stop()
        workload.on_healed()
        await cluster.wait_healed(cluster.bookies_up, "V1", "bookies that were healed do not come back")
        await self.settle(cluster, workload, watch)
        await nemesis.end_hostile()
        await self.end(cluster)
        await cluster.end_bookies()
        watch.look_at_disks()
        watch.tell("at_end")


def live(
    report: Report,
    make_world: Callable[[], World],
    make_watch: Callable[[World], W],
    life: Callable[[World, W], Coroutine[Any, Any, None]],
    *,
    mutant: Planted | None = None,
    observed: Callable[[W], AbstractContextManager[object]] = contextlib.nullcontext,
) -> Report:
    """What happened goes to the report, which is returned."""
    began = time.process_time()
    with _muted(), mutant() if mutant is not None else contextlib.nullcontext(), make_world() as world:
        watch = make_watch(world)
        with observed(watch):
            try:
                world.run(life(world, watch))
            except Exception as error:  # Whatever broke the run: a planted bug may break anything.
                report.failure = _described(error)
        report.violations, report.counters, report.faults = watch.violations, watch.counters, watch.faults
        report.events, report.virtual_s, report.digest = world.loop.events, world.loop.now, world.loop.digest.value
    report.cpu_s = time.process_time() - began
    return report


def _described(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, SimulationError) else error
    lines = traceback.format_exception(cause)[-8:] if cause is not None else []
    return "\n".join([str(error), *[line.rstrip() for line in lines]])


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """A broken world has much to log."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
