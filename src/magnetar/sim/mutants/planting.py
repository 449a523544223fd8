"""Planting: a function of production code gets other code for a while, in this process alone.

Edit:      names a function, and which lines of its source are replaced by which. The lines must be there exactly once:
           when production code moves on, the edit fails loudly (TargetVanishedError) and does not silently do nothing.
How:       the edited source is compiled and its code object put into the function, so that everybody who has imported
           the function before gets the bug, too. Nothing is written to a file.
Undo:      the old code comes back, whatever happens meanwhile.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any


class TargetVanishedError(Exception):
    """Production code is not what the planted bug was written for: write the bug anew."""


@dataclass(frozen=True, slots=True)
class Edit:
    target: Callable[..., Any]
    """A function or a method, as its class has it."""
    changes: Sequence[tuple[str, str]]
    """What stands there, and what shall. Indented as in a function at the beginning of a line."""
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
    codes = [(function_of(edit), edited(edit), edit) for edit in edits]
    with contextlib.ExitStack() as undo:
        for function, code, edit in codes:
            undo.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
            for name, value in edit.names.items():
                if name in function.__globals__:
                    raise TargetVanishedError(f"{edit.where}: its module has a name {name!r} of its own")
                function.__globals__[name] = value
                undo.callback(function.__globals__.pop, name)
        yield


def edited(edit: Edit) -> CodeType:
    """The function's code with the edit in it."""
    function = function_of(edit)
    source = textwrap.dedent(inspect.getsource(function))
    for before, after in edit.changes:
        found = source.count(before)
        if found != 1:
            raise TargetVanishedError(f"{edit.where} has this {found} times, not once: {before!r}")
        source = source.replace(before, after)
    return _compiled(function, source, edit.where)


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
