"""ProcessUsage: what this process takes of its machine: processor time of the calling thread, and memory.

Limits:    Memory is known on Linux only; elsewhere it is 0.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_MEGABYTE: Final = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    thread_percent: float
    """Processor time of the thread since the call before; 100 is one core."""
    memory_mb: float
    """Memory that the process has in RAM."""
    machine_mb: float
    """Memory of the machine."""


class ProcessUsage:
    """Used by one thread, which is the one that is measured."""

    def __init__(self) -> None:
        self._cpu_s = time.thread_time()
        self._at_s = time.monotonic()

    def measure(self) -> Measured:
        cpu_s, at_s = time.thread_time(), time.monotonic()
        elapsed_s = at_s - self._at_s
        percent = 100 * (cpu_s - self._cpu_s) / elapsed_s if elapsed_s > 0 else 0.0
        self._cpu_s, self._at_s = cpu_s, at_s
        resident, machine = _memory()
        return Measured(percent, resident / _MEGABYTE, machine / _MEGABYTE)


def _memory() -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        page = os.sysconf("SC_PAGE_SIZE")
        return int(_STATM.read_text().split()[1]) * page, os.sysconf("SC_PHYS_PAGES") * page
    return 0, 0
