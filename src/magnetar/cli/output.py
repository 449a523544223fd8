"""What a command prints and asks: tables for people, JSON for programs, one line for an error, and confirmation.

A table is drawn on a terminal. In a pipe it is plain columns that are never wrapped, one line a row, so that grep and
awk see whole rows. What is printed may come from anywhere, so characters that would steer a terminal are shown escaped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import typer

from magnetar.errors import ArgumentError, MagnetarError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SHOW_EVERY_S = 0.1

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def print_json(value: Any) -> None:
    """One JSON document; only ASCII, so that no terminal or locale can spoil it."""
    print(json.dumps(value, indent=2))


def print_names(names: Sequence[str], as_json: bool) -> None:
    """One a line; JSON for programs."""
    if as_json:
        print_json(names)
    else:
        for name in names:
            print(printable(name))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, cells)
    else:
        _align([name.upper() for name in columns], cells)


def print_fields(fields: dict[str, Any], as_json: bool) -> None:
    """A table of names and values; JSON for programs."""
    if as_json:
        print_json(fields)
    else:
        print_table(("field", "value"), [(name, _cell(value)) for name, value in fields.items()])


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case list():
            return ", ".join(map(_cell, value)) or "-"
        case dict():
            return ", ".join(f"{name}={_cell(item)}" for name, item in value.items()) or "-"
    return printable(value)


def print_error(error: MagnetarError) -> int:
    """Prints one line to standard error, and returns the exit code."""
    print(f"magnetar: error: {printable(error)}", file=sys.stderr)
    return EXIT_USAGE if error.asked_wrongly else EXIT_FAILED


def printable(value: object) -> str:
    """The value as text on one line, with what is not printable escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


class Listing:
    """Rows as they come, however many: JSON lines for programs, columns of fixed width for people."""

    def __init__(self, kind: str, widths: dict[str, int], as_json: bool) -> None:
        self._kind = kind
        self._widths = widths
        self._as_json = as_json
        self.rows = 0

    def row(self, values: Sequence[object]) -> None:
        assert len(values) == len(self._widths), f"{self._kind} has {len(self._widths)} columns"
        if self._as_json:
            print_line({"type": self._kind, **dict(zip(self._widths, values, strict=True))})
        else:
            if not self.rows:
                self._print([name.upper().replace("_", " ") for name in self._widths])
            self._print(["-" if value is None else printable(value) for value in values])
        self.rows += 1

    def _print(self, cells: list[str]) -> None:
        widths = self._widths.values()
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def print_line(value: dict[str, Any]) -> None:
    print(json.dumps(value))


def note(text: str) -> None:
    """To people and programs alike, beside the output: nothing is wrong, but it should be known."""
    print(f"note: {printable(text)}", file=sys.stderr)


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # Only a terminal pays for importing rich.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")  # Folded, not cut: a key or an id must be there whole.
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # As Text, since brackets in a value are no markup.
    Console().print(table)


def _align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for use by programs.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Returns only if `--yes` was given, or a person at a terminal agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ArgumentError(f"{question} There is no terminal to ask on: give --yes to confirm")
    if not typer.confirm(question, err=True):
        raise typer.Exit(EXIT_FAILED)


class Bar:
    """Is a `Reporter` (spark/pipelines/jobs.py): draws on a terminal, and erases the bar when the work is done."""

    def __init__(self) -> None:
        self._shown: Progress | None = None
        self._task: TaskID | None = None
        self._next = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._start()
        return self

    def _start(self) -> None:
        from rich.console import Console  # Only a terminal pays for importing rich.
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
        )
        self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._shown.add_task("", total=None, count="")
        self._shown.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def show(self, what: str, done: int, total: int | None) -> None:
        """Cheap enough to be called for each."""
        if self._shown is None or self._task is None or (done and time.monotonic() < self._next):
            return
        self._next = time.monotonic() + _SHOW_EVERY_S
        count = f"{done:,}/{total:,}" if total else f"{done:,}" if done else ""
        self._shown.update(self._task, description=what, completed=done, total=total, count=count)

    def tell(self, what: str) -> None:
        self.show(what, 0, None)
