"""A program is a list of steps, in a text form that people read and `--program` runs again.

Format:    one step a line, as a call with names: `subscribe(c="c0", sub="s0", kind="Shared")`. The first is `setup`.
Invariant: every sublist of a program's steps is a program, too: a step whose consumer does not exist does nothing.
           Messages are named by their number in the order of sending, and a number that is too high wraps around.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    verb: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)


@dataclass(frozen=True, slots=True)
class Program:
    setup: Step
    steps: tuple[Step, ...]
    name: str = ""

    def __str__(self) -> str:
        return "\n".join(map(str, (self.setup, *self.steps)))

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        return Program(self.setup, steps, self.name)


def parse(text: str, name: str = "") -> Program:
    """Raises ValueError for a line that is no step."""
    lines = [line.strip() for line in text.splitlines()]
    steps = [_parse_step(line) for line in lines if line and not line.startswith("#")]
    if not steps or steps[0].verb != "setup":
        raise ValueError(f"program {name}: the first step must be setup(...)")
    return Program(steps[0], tuple(steps[1:]), name)


def _parse_step(line: str) -> Step:
    try:
        call = ast.parse(line, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("a step is verb(name=value, ...)")
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"not a step: {line!r} ({error})") from None
    return Step(call.func.id, values)
