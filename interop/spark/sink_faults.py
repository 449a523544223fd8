"""Makes the sink fail once, at a named point of a named epoch: with an error, not with a kill (that is kill_hook.py).

    fail_at(file, "published", 1)       the next process that gets there raises, and takes the file away

Environment of driver and workers: SPARK_MAGNETAR_FAILPOINTS=interop.spark.sink_faults:reached, SINK_FAULT_FILE=file
"""

from __future__ import annotations

import os
from pathlib import Path

FILE = "SINK_FAULT_FILE"


class PlannedError(Exception):
    """Asked for by a test."""


def environment(file: Path) -> dict[str, str]:
    return {"SPARK_MAGNETAR_FAILPOINTS": "interop.spark.sink_faults:reached", FILE: str(file)}


def fail_at(file: Path, point: str, epoch: int) -> None:
    file.write_text(f"{point}:{epoch}")


def reached(point: str, epoch: int) -> None:
    file = Path(os.environ[FILE])
    try:
        wanted = file.read_text()
        if wanted != f"{point}:{epoch}":
            return
        file.unlink()
    except FileNotFoundError:
        return  # Nothing is planned, or another process was first.
    raise PlannedError(f"{point} of epoch {epoch}")


def users_environment() -> dict[str, str]:
    """Of this process as a user has it: what it starts on its own knows nothing of faults that are brought about."""
    return {name: value for name, value in os.environ.items() if name not in environment(Path())}
