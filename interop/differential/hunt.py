"""`python -m interop.differential`: runs programs on both servers until the seeds or the minutes are used up.

Servers:   both stay up over all programs; each program has a namespace of its own. WORKERS programs run at a time, so
           that the waits of one are the work of others.
Verdict:   a program that differs runs twice more. If it differs each time it is a finding, which is made shorter and
           printed; otherwise it is printed as not repeatable and counted.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar

from interop.differential.pair import Difference, run_program
from interop.differential.program import Program
from interop.differential.shrink import shrink
from interop.differential.side import MESSAGE_BYTES_MAX, OPERATION_TIMEOUT_S, Admin, NotPreparedError, Side
from interop.java_program import QUICK_JVM
from interop.pulsar.apache import ApacheStandalone
from interop.pulsar.servers import MagnetarStandalone, Standalone

WORKERS = 10
_ATTEMPTS = 3  # A busy Apache fails to create a topic now and then.
_REPORT_S = 60
_APACHE = {
    "maxMessageSize": MESSAGE_BYTES_MAX,
    "brokerDeleteInactiveTopicsEnabled": "false",
    "forceDeleteNamespaceAllowed": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "topicLevelPoliciesEnabled": "false",  # A reader for each namespace, which costs more than the programs do.
    "systemTopicEnabled": "false",
    "defaultNumberOfNamespaceBundles": 1,
    "delayedDeliveryTickTimeMillis": 100,
    "activeConsumerFailoverDelayTimeMillis": 0,
}
_MAGNETAR = (
    f"pulsar.message_bytes_max={MESSAGE_BYTES_MAX}",
    "broker.inactive_topics_delete=false",
    "dispatch.delayed_tick_ms=100",
    "dispatch.failover_delay_ms=0",
)


@dataclass(slots=True)
class Counts:
    programs: int = 0
    steps: int = 0
    differing: int = 0
    unrepeated: int = 0
    broken: int = 0
    """Could not be run to their end."""


class Tally(Counts):
    """Counts that several threads add to."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.problems: dict[str, str] = {}
        """By program: what it shows, if that fails a run; otherwise nothing."""

    def add(
        self, program: Program, problem: str = "", *, differing: int = 0, unrepeated: int = 0, broken: int = 0
    ) -> None:
        with self._lock:
            self.problems[program.name] = problem
            self.programs += 1
            self.steps += len(program.steps)
            self.differing += differing
            self.unrepeated += unrepeated
            self.broken += broken


class Servers:
    """Both servers, and clients of each that programs borrow, one pair for a program at a time."""

    def __init__(self, apache: Standalone, magnetar: Standalone) -> None:
        self._apache, self._magnetar = apache, magnetar
        self._free: list[tuple[_Connected, _Connected]] = []
        self._lock = threading.Lock()
        self.trace = _no_trace
        """Is given a line for each thing that a program shows."""
        self._numbers = itertools.count(1)
        self._run = f"{os.getpid()}-{int(time.time())}"

    def run(self, program: Program) -> Difference | None:
        with self._lock:
            pair = self._free.pop() if self._free else None
        pair = pair or (_connected(self._apache), _connected(self._magnetar))
        try:
            for attempt in range(_ATTEMPTS):
                namespace = f"public/d-{self._run}-{next(self._numbers)}"
                sides = [
                    Side(make, *connected, namespace, program.setup)
                    for make, connected in zip(("Apache", "magnetar"), pair, strict=True)
                ]
                try:
                    return run_program(program, *sides, self.trace)
                except NotPreparedError:
                    if attempt == _ATTEMPTS - 1:
                        raise
            raise AssertionError("not reached")
        finally:
            with self._lock:
                self._free.append(pair)

    def close(self) -> None:
        for pair in self._free:
            for client, admin in pair:
                client.shutdown()
                admin.close()


def _no_trace(_line: str) -> None:
    pass


_Connected = tuple[Any, Admin]


def _connected(server: Standalone) -> _Connected:
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(server.url, logger=silent, operation_timeout_seconds=OPERATION_TIMEOUT_S)
    return client, Admin(server.admin_url)


@contextmanager
def open_servers(directory: Path) -> Iterator[Servers]:
    with (
        ApacheStandalone(directory / "apache", _APACHE, jvm=(QUICK_JVM,)) as apache,
        MagnetarStandalone(directory / "magnetar", *_MAGNETAR) as magnetar,
    ):
        magnetar.wait_ready()
        apache.wait_ready()
        servers = Servers(apache, magnetar)
        try:
            yield servers
        finally:
            servers.close()


def hunt(
    servers: Servers, programs: Iterator[Program], goes_on: Callable[[], bool], *, shrinking: bool = True
) -> Tally:
    """Runs programs until there are no more, or until it is time to stop."""
    tally = Tally()
    reported = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        running: set[Future[None]] = set()
        while True:
            while len(running) < WORKERS and goes_on() and (program := next(programs, None)) is not None:
                running.add(pool.submit(_judge, servers, program, tally, shrinking=shrinking))
            if not running:
                return tally
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                print(f"... {tally.programs} programs, {tally.steps} steps so far", flush=True)


def _judge(servers: Servers, program: Program, tally: Tally, *, shrinking: bool) -> None:
    try:
        difference = servers.run(program)
        again = [servers.run(program) for _ in range(2)] if difference is not None else []
    except Exception:
        problem = f"{program.name} could not be run:\n{program}\n{traceback.format_exc()}"
        tally.add(program, problem, broken=1)
        print(f"\n=== {problem}", flush=True)
        return
    if difference is None:
        tally.add(program)
        return
    if any(found is None or found.kind != difference.kind for found in again):
        tally.add(program, unrepeated=1)
        print(f"\n=== {program.name} differed once, and not again:\n{program}\n{difference}", flush=True)
        return
    if shrinking:
        program, difference = shrink(program, difference, servers.run)
    problem = f"{program.name} differs:\n{program}\n{difference}"
    tally.add(program, problem, differing=1)
    print(f"\n=== {problem}", flush=True)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="magnetar-differential-") as temporary:
        yield Path(temporary)
