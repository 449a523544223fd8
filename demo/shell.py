"""What the demonstrations share: how they report what they do, and the way from a run to an exit code."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import pulsar
from rich.console import Console
from rich.table import Table

from magnetar.errors import MagnetarError


class Narrator:
    """Prints what the demonstration does, each line with the seconds since it began."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def step(self, title: str) -> None:
        self._console.print(f"\n{title}", style="bold", highlight=False, markup=False)

    def say(self, what: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.1f} s  {what}", highlight=False, markup=False)


class Verdict(Protocol):
    @property
    def passed(self) -> bool: ...


Found = TypeVar("Found", bound=Verdict)


def print_figures(title: str, figures: Mapping[str, int], notes: Sequence[str], console: Console) -> None:
    table = Table(title=title)
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(*(f"{figure:,}" for figure in figures.values()))
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)


def run_demo(run: Callable[[Path, Console], Found], print_verdict: Callable[[Found, Console], None]) -> NoReturn:
    """In a directory that is removed afterwards; exits by the verdict."""
    signal.signal(signal.SIGTERM, _unwind)
    console = Console(soft_wrap=True)
    try:
        with tempfile.TemporaryDirectory(prefix="magnetar-demo-", ignore_cleanup_errors=True) as directory:
            found = run(Path(directory), console)
    except (MagnetarError, TimeoutError, pulsar.PulsarException) as error:
        sys.stderr.write(f"the demonstration could not be finished: {error}\n")
        _end_at_once(1)
    except KeyboardInterrupt:
        _end_at_once(128 + signal.SIGINT)
    except _TerminatedError:
        _end_at_once(128 + signal.SIGTERM)
    print_verdict(found, console)
    sys.exit(0 if found.passed else 1)


class _TerminatedError(BaseException):
    """SIGTERM came: processes are ended, and the directory is removed, on the way out."""


def _unwind(_number: int, _frame: object) -> NoReturn:
    raise _TerminatedError


def _end_at_once(code: int) -> NoReturn:
    """The official client may still be running: its threads abort an interpreter that ends in the usual way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
