"""What the demonstrations share: the table of figures, and the way from a run to an exit code."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

from rich.console import Console
from rich.table import Table

from magnetar.errors import MagnetarError


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
    signal.signal(signal.SIGTERM, _end)
    console = Console(soft_wrap=True)
    try:
        with tempfile.TemporaryDirectory(prefix="magnetar-demo-", ignore_cleanup_errors=True) as directory:
            found = run(Path(directory), console)
    except (MagnetarError, TimeoutError) as error:
        sys.exit(f"the demonstration could not be finished: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    print_verdict(found, console)
    sys.exit(0 if found.passed else 1)


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)  # Unwinds: processes are ended, the directory is removed.
