"""Effort: how much work production code does, in numbers that are the same in every run.

    with measured() as effort:
        ...
    assert effort.lines < 1_000 + 0.1 * input_bytes

- lines: lines of production code that ran, the simulator's own left out. A loop over bytes that a client has chosen
  shows here, however quick the machine is.
- bytes: what a device handed out is counted by the device (`SimDevice.bytes_read`): work inside one C call, such as a
  search, costs no line, but its input has to be read.
- cost: a traced line takes ten times as long as an untraced one, so this is for scenes, not for every seed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import magnetar

_PRODUCTION: Final = str(Path(magnetar.__file__).parent) + "/"
_NOT_COUNTED: Final = (f"{_PRODUCTION}sim/", f"{_PRODUCTION}testing/")


class Effort:
    def __init__(self) -> None:
        self.lines = 0
        self._counted: dict[CodeType, bool] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """For `sys.settrace`."""
        if event == "line":
            self.lines += 1
            return self.trace
        code = frame.f_code
        counts = self._counted.get(code)
        if counts is None:
            name = code.co_filename
            counts = self._counted[code] = name.startswith(_PRODUCTION) and not name.startswith(_NOT_COUNTED)
        return self.trace if counts else None


@contextmanager
def measured() -> Iterator[Effort]:
    """Counts while the block runs. Code that is not production's is not slowed down by much."""
    effort = Effort()
    before = sys.gettrace()
    sys.settrace(effort.trace)
    try:
        yield effort
    finally:
        sys.settrace(before)
