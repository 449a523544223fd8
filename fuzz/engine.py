"""Runs one target: input after input until the time or the number is over, watching what a decoder must not do.

Findings:  an exception that the target does not promise; an input that takes longer than `INPUT_SECONDS_MAX`; an input
           during which more than `INPUT_MEMORY_MAX` is taken; memory left behind that keeps growing over the run.
Replay:    the same target, seed and corpus give the same inputs; the one that failed is also kept as a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import resource
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz.mutate import mutated

INPUT_SECONDS_MAX = 2.0  # A pause of the machine is not a finding; a decoder that is not linear takes minutes.
INPUT_MEMORY_MAX = 64 << 20
GROWTH_MAX = 48 << 20  # Caches may fill up; a leak per input goes far beyond this.
_MEMORY_EVERY = 16  # Tracing an input makes it several times slower.
_MEMORY_OFTEN = 16_384  # For so many inputs; half as often for as many more, and so on.
_GROWTH_AFTER = 500


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    corpus: Sequence[bytes]
    """Valid inputs; at least one."""
    decode: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    passes_header: Callable[[bytes], bool] = lambda _data: True
    """Whether an input gets past the decoder's first check; tells how deep the mutations reach."""


@dataclass(slots=True)
class Report:
    target: str
    inputs: int = 0
    accepted: int = 0
    past_header: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = self.inputs / self.seconds if self.seconds else 0.0
        tried = max(1, self.inputs)
        shares = f"{self.past_header / tried:.0%} past the header, {self.accepted / tried:.0%} accepted"
        return f"{self.target}: {self.inputs} inputs, {rate:.0f} inputs/s, {shares}"


class FindingError(Exception):
    """An input did what no input may."""

    def __init__(self, target: str, data: bytes, what: str) -> None:
        super().__init__(f"{target}: {what} (input of {len(data)} bytes)")
        self.target = target
        self.data = data

    def keep(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.target}-{hashlib.sha256(self.data).hexdigest()[:12]}.bin"
        path.write_bytes(self.data)
        return path


def run(target: Target, seed: int, *, inputs: int | None = None, seconds: float | None = None) -> Report:
    """Raises FindingError at the first one. Stops after so many inputs or seconds, whichever comes first."""
    random = Random(f"{target.name}:{seed}")
    report = Report(target.name)
    began = time.monotonic()
    deadline = None if seconds is None else began + seconds
    floor = 0
    while (inputs is None or report.inputs < inputs) and (deadline is None or time.monotonic() < deadline):
        data = mutated(random, target.corpus)
        report.accepted += try_one(target, data, watch_memory=_is_traced(report.inputs))
        report.past_header += target.passes_header(data)
        report.inputs += 1
        if report.inputs == _GROWTH_AFTER:
            floor = _resident()
    report.seconds = time.monotonic() - began
    growth = _resident() - floor if floor else 0
    if growth > GROWTH_MAX:
        raise FindingError(target.name, b"", f"{growth} bytes more are held after {report.inputs} inputs")
    return report


def _is_traced(number: int) -> bool:
    """Rarer and rarer: each start of tracemalloc takes some kilobytes of native memory for good, in CPython 3.11."""
    return number % (_MEMORY_EVERY << (number // _MEMORY_OFTEN).bit_length()) == 0


def try_one(target: Target, data: bytes, *, watch_memory: bool = False) -> bool:
    """Whether the decoder took it; FindingError if it did what it must not."""
    if watch_memory:
        tracemalloc.start()
    began = time.perf_counter()
    try:
        target.decode(data)
        accepted = True
    except target.allowed:
        accepted = False
    except Exception as error:
        raise FindingError(target.name, data, f"unexpected {type(error).__name__}: {error}") from error
    finally:
        took = time.perf_counter() - began
        peak = tracemalloc.get_traced_memory()[1] if watch_memory else 0
        if watch_memory:
            tracemalloc.stop()
    if took > INPUT_SECONDS_MAX:
        raise FindingError(target.name, data, f"took {took:.1f} s")
    if peak > INPUT_MEMORY_MAX:
        raise FindingError(target.name, data, f"took {peak} bytes of memory")
    return accepted


def _resident() -> int:
    """Returns the bytes of memory that the process holds, including those that native code took.

    What was freed goes back to the kernel first: memory that is taken later would otherwise come out of it, and not be
    seen.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # Only glibc has it.
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
