"""Samples of two contestants in turn, each in a process of its own that stays warm between its samples.

A worker is a program that prints `ready`, and then answers every line `SECONDS` on its standard input with one line
of JSON: {"value": the figure measured, "cpu": CPU seconds it used per second}. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bench.report import Better, Row, Side

ROUNDS = 3
WARM_UP_S = 2.0
SAMPLE_S = 5.0
PATIENCE_S = 60.0  # A worker that is silent for longer than its sample and this has failed.


class Worker:
    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._read() != "ready":
            self._fail("did not get ready")

    def sample(self, seconds: float) -> tuple[float, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = json.loads(self._read(seconds))
        return answer["value"], answer["cpu"]

    def _read(self, seconds: float = 0.0) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds + PATIENCE_S)
        if not ready:
            self._fail(f"was silent for {seconds + PATIENCE_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            self._fail("ended by itself")
        return line.strip()

    def _fail(self, what: str) -> None:
        self._process.kill()
        raise SystemExit(f"the benchmark worker `{' '.join(self._command)}` {what}; its error is above")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def serve_samples(sample: Callable[[float], tuple[float, float]]) -> None:
    """The worker's half."""
    print("ready", flush=True)
    for line in sys.stdin:
        value, cpu = sample(float(line))
        print(json.dumps({"value": value, "cpu": cpu}), flush=True)


def measure(
    name: str,
    unit: str,
    ours: Worker,
    peer: str,
    theirs: Worker,
    *,
    better: Better = "higher",
    goal: float | None = None,
) -> Row:
    print(f"  {name} …", file=sys.stderr, flush=True)
    for worker in (ours, theirs):
        worker.sample(WARM_UP_S)
    taken: dict[Worker, list[tuple[float, float]]] = {ours: [], theirs: []}
    for _ in range(ROUNDS):
        for worker in (ours, theirs):
            taken[worker].append(worker.sample(SAMPLE_S))
    return Row(name, unit, better, _side(taken[ours]), peer, _side(taken[theirs]), goal)


def _side(taken: list[tuple[float, float]]) -> Side:
    return Side(tuple(value for value, _ in taken), tuple(cpu for _, cpu in taken))
