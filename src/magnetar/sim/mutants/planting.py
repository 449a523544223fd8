"""Planting: a function of production code gets other code for a while, in this process alone.

- mutant: production code with one bug that was planted on purpose: the edits, and what must notice them.
- edit: names a function, a piece of its source, and what replaces it. The piece must exist exactly once: when
  production code changes, the edit fails loudly (TargetVanishedError) and does not silently do nothing.
- how: the edited source is compiled and its code object put into the function, so that all code that has imported the
  function before gets the bug, too. Nothing is written to a file.
- undo: the old code comes back, whatever happens meanwhile.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any, Self


class TargetVanishedError(Exception):
    """Production code is not what the planted bug was written for: write the bug anew."""


@dataclass(frozen=True, slots=True)
class Edit:
    target: Callable[..., Any]
    """A function or a method, as its class has it. Several edits may have the same target."""
    before: str
    """A piece of the source, indented as in a function at the beginning of a line."""
    after: str
    names: Mapping[str, object] = field(default_factory=dict)
    """What the new lines use and the function's module does not have."""

    @property
    def where(self) -> str:
        function = function_of(self)
        return f"{function.__module__}.{function.__qualname__}"


def function_of(edit: Edit) -> FunctionType:
    found: object = inspect.unwrap(edit.target)
    if isinstance(found, MethodType):
        found = found.__func__
    if not isinstance(found, FunctionType):
        raise TargetVanishedError(f"{edit.target!r} is no function of Python")
    return found


@contextlib.contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[None]:
    """Not inside of itself. TargetVanishedError before anything was changed."""
    by_function: dict[FunctionType, list[Edit]] = {}
    for edit in edits:
        by_function.setdefault(function_of(edit), []).append(edit)
    codes = {function: edited(its_edits) for function, its_edits in by_function.items()}
    with contextlib.ExitStack() as undo:
        for function, code in codes.items():
            undo.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        for edit in edits:
            module = function_of(edit).__globals__
            for name, value in edit.names.items():
                if name in module:
                    raise TargetVanishedError(f"{edit.where}: its module has a name {name!r} of its own")
                module[name] = value
                undo.callback(module.pop, name)
        yield


def edited(edits: Sequence[Edit]) -> CodeType:
    """The code of one function with these edits in it."""
    function, where = function_of(edits[0]), edits[0].where
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        found = source.count(edit.before)
        if found != 1:
            raise TargetVanishedError(f"{where} has this {found} times, not once: {edit.before!r}")
        source = source.replace(edit.before, edit.after)
    return _compiled(function, source, where)


def _compiled(function: FunctionType, source: str, where: str) -> CodeType:
    """Line numbers stay those of the file, so that a traceback can be read."""
    above = "\n" * (function.__code__.co_firstlineno - 1)
    filename = function.__code__.co_filename
    flags = __future__.annotations.compiler_flag
    module = compile(above + source, filename, "exec", flags=flags, dont_inherit=True)
    code = next(
        const for const in module.co_consts if isinstance(const, CodeType) and const.co_name == function.__name__
    )
    if code.co_freevars != function.__code__.co_freevars:
        raise TargetVanishedError(f"{where} uses names of a function around it, or super()")
    return code


class Mutant:
    """Declared as `Mutant(4, "…", ("L11",), budget=300).edit(function, "a piece of it", "what replaces it")`."""

    def __init__(
        self,
        number: int,
        sentence: str,
        caught_by: tuple[str, ...],
        *,
        budget: int,
        kind: str = "ledgers",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.number = number
        """As in docs/simulation.md."""
        self.sentence = sentence
        self.caught_by = caught_by
        """The invariants that exist for it. If another one catches it, that is as good, and is reported as such."""
        self.budget = budget
        """The number of seeds that may pass before it is caught; 0: only its scene looks for it."""
        self.kind = kind
        """The kind of the seeds that look for it (sim/scenarios.py)."""
        self.options = dict(options or {})
        """Replaced in what a seed draws, where the bug is out of reach of most worlds."""
        self.edits: list[Edit] = []

    def edit(self, target: Callable[..., Any], before: str, after: str, **names: object) -> Self:
        """One more piece of source; `names` as in `Edit`."""
        self.edits.append(Edit(target, before, after, names))
        return self

    def plant(self) -> AbstractContextManager[None]:
        return planted(self.edits)
