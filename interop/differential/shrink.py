"""Makes a program that differs shorter, as long as it differs in the same way.

Order:     chunks of steps are left out, half of them first, then smaller ones, down to single steps; then arguments
           are left out, one at a time. Each round tries its candidates side by side, and takes the first that differs.
Limits:    SECONDS_MAX in all; what is found until then is the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from interop.differential.pair import Difference
from interop.differential.program import Program, Step

SECONDS_MAX = 150
_WIDTH = 6  # Candidates that run at a time.


def shrink(
    program: Program, difference: Difference, run: Callable[[Program], Difference | None]
) -> tuple[Program, Difference]:
    deadline = time.monotonic() + SECONDS_MAX
    program = program.with_steps(program.steps[: difference.number + 1])
    with ThreadPoolExecutor(_WIDTH) as pool:
        while time.monotonic() < deadline:
            found = _first_that_differs(program, difference, run, pool, deadline)
            if found is None:
                break
            program, difference = found
    return program, difference


def _first_that_differs(
    program: Program,
    difference: Difference,
    run: Callable[[Program], Difference | None],
    pool: ThreadPoolExecutor,
    deadline: float,
) -> tuple[Program, Difference] | None:
    candidates = [*_shorter(program), *_simpler(program)]
    for start in range(0, len(candidates), _WIDTH):
        if time.monotonic() > deadline:
            return None
        group = candidates[start : start + _WIDTH]
        for candidate, found in zip(group, pool.map(run, group), strict=True):
            if found is not None and found.kind == difference.kind:
                return candidate.with_steps(candidate.steps[: found.number + 1]), found
    return None


def _shorter(program: Program) -> Iterator[Program]:
    steps, size = program.steps, len(program.steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield program.with_steps(steps[:start] + steps[start + size :])
        size //= 2


def _simpler(program: Program) -> Iterator[Program]:
    for number, step in enumerate(program.steps):
        for name, value in step.arguments.items():
            if name in ("c", "sub", "kind", "seconds", "to", "start", "name", "value", "ms", "m"):
                continue
            yield program.with_steps(_replaced(program.steps, number, step, name, None))
            if name == "n" and isinstance(value, int) and value > 2:
                yield program.with_steps(_replaced(program.steps, number, step, name, value // 2))
    for name in program.setup.arguments:
        rest = {key: value for key, value in program.setup.arguments.items() if key != name}
        yield Program(Step("setup", rest), program.steps, program.name)


def _replaced(steps: tuple[Step, ...], number: int, step: Step, name: str, value: object) -> tuple[Step, ...]:
    """With another value of an argument, or without it."""
    arguments = dict(step.arguments)
    if value is None:
        del arguments[name]
    else:
        arguments[name] = value
    return (*steps[:number], Step(step.verb, arguments), *steps[number + 1 :])
