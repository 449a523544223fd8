"""How far long work has come: a line that changes, on a terminal only, and gone when the work is done."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SHOW_EVERY_S: Final = 0.1


class WorkProgress:
    """`with WorkProgress("entries", total) as progress: progress.show(count)`."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._shown: Progress | None = None
        self._task: TaskID | None = None
        self._next = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._start()
        return self

    def _start(self) -> None:
        from rich.console import Console  # Only a terminal pays for importing rich.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._shown.add_task(self._what, total=self._total)
        self._shown.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def show(self, completed: int, what: str | None = None) -> None:
        """Cheap enough to be called for each."""
        if self._shown is None or self._task is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + _SHOW_EVERY_S
        self._shown.update(self._task, completed=completed, description=what or self._what)
