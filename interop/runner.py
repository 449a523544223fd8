"""Runs checks: coroutine functions whose names are sentences, given what their part has opened.

A check passes when it returns. One that fails does not stop the others; a part that cannot be opened counts as one
failure. The last line of the output is `N passed, M failed`, and running nothing is a failure, too.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from magnetar.errors import MagnetarError

CHECK_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    open: Callable[[], AbstractAsyncContextManager[Any]]
    """What the checks work with: servers, Java programs."""
    checks: Sequence[Callable[[Any], Awaitable[None]]]


@dataclass(slots=True)
class Tally:
    passed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Suite:
    """Checks that run by themselves, and are reported in the same way."""

    name: str
    run: Callable[[str, Tally], None]
    """Those whose name has these words in it."""


def run_parts(parts: Sequence[Part | Suite], words: str = "") -> int:
    """Returns the exit code."""
    tally = Tally()
    for part in parts:
        if isinstance(part, Suite):
            print(f"{part.name}:", flush=True)
            part.run(words, tally)
        else:
            asyncio.run(_run_part(part, words, tally))
    print(f"{tally.passed} passed, {tally.failed} failed", flush=True)
    return 0 if tally.passed and not tally.failed else 1


async def _run_part(part: Part, words: str, tally: Tally) -> None:
    chosen = [check for check in part.checks if words.replace("_", " ") in sentence(check)]
    if not chosen:
        return
    print(f"{part.name}:", flush=True)
    try:
        async with part.open() as opened:
            for check in chosen:
                await _run_check(check, opened, tally)
    except MagnetarError as error:
        print(f"interop: {part.name} cannot be checked: {error}", file=sys.stderr)
        tally.failed += 1


async def _run_check(check: Callable[[Any], Awaitable[None]], opened: Any, tally: Tally) -> None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check(opened)
    except Exception as error:
        tally.failed += 1
        print(f"  FAILED  {sentence(check)}\n{_indented(error)}", flush=True)
    else:
        tally.passed += 1
        print(f"  passed  {sentence(check)} ({time.monotonic() - began:.1f} s)", flush=True)


def sentence(check: Callable[[Any], Awaitable[None]]) -> str:
    return getattr(check, "__name__", str(check)).replace("_", " ")


def _indented(error: Exception) -> str:
    lines = "".join(traceback.format_exception(error, limit=-4)).splitlines()
    return "\n".join(f"          {line}" for line in lines)


def same(what: str, ours: object, theirs: object) -> None:
    """Raises AssertionError that names what differs; dictionaries are compared key by key."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            same(f"{what}.{key}", ours.get(key, "(absent)"), theirs.get(key, "(absent)"))
    elif ours != theirs:
        raise AssertionError(f"{what}: ours {ours!r}, Apache's {theirs!r}")
