"""Makes the sink fail once, at a named point of a named epoch: with an error, not with a kill (that is kill_hook.py).

    with hooked(file): ...             a session that is started here has the hook in its Python processes for good
    fail_at(file, "published", 1)      the next of them that gets there raises, and takes the file away

How:      as in kill_hook.py: hooks/ is on the PYTHONPATH of the session's JVM, and of all that it starts. What the
          test's own process starts besides knows nothing of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from interop.spark.kill_hook import HOOKS, PYTHONPATH

_FILE = "SINK_FAULT_FILE"


class PlannedError(Exception):
    """Asked for by a test."""


@contextlib.contextmanager
def hooked(file: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", _FILE)}
    os.environ["PYTHONPATH"] = f"{HOOKS}{os.pathsep}{PYTHONPATH}"
    os.environ[_FILE] = str(file)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def install() -> None:
    """In a process that was started with it."""
    if _FILE in os.environ:
        from magnetar.spark import failpoints

        failpoints.set_hook(_reached)


def fail_at(file: Path, point: str, epoch: int) -> None:
    file.write_text(f"{point}:{epoch}")


def _reached(point: str, epoch: int) -> None:
    file = Path(os.environ[_FILE])
    try:
        wanted = file.read_text()
        if wanted != f"{point}:{epoch}":
            return
        file.unlink()
    except FileNotFoundError:
        return  # Nothing is planned, or another process was first.
    raise PlannedError(f"{point} of epoch {epoch}")
