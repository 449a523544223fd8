"""Measures the read speed of a disk on existing files, to compare the speed of a scrub with it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from magnetar.errors import ArgumentError

_PIECE_BYTES: Final = 4 * 2**20
_BYTES_MAX: Final = 2 * 2**30
_BYTES_MIN: Final = 2**20
_SECONDS_MAX: Final = 10.0


def read_speed(directory: Path) -> float:
    """Returns bytes a second, of the largest files below it, one after the other, none of them from memory. Raises
    ArgumentError if there is too little to measure."""
    try:
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        files.sort(key=lambda path: path.stat().st_size, reverse=True)
        return _measured(directory, files)
    except OSError as error:
        raise ArgumentError(f"the disk of {directory} cannot be measured: {error.strerror or error}") from None


def _measured(directory: Path, files: list[Path]) -> float:
    done, began = 0, time.monotonic()
    for path in files:
        if done >= _BYTES_MAX or time.monotonic() - began > _SECONDS_MAX:
            break
        done += _read(path, _BYTES_MAX - done)
    seconds = time.monotonic() - began
    if done < _BYTES_MIN:
        raise ArgumentError(f"{directory} has {done} bytes of files: too little to measure a disk by")
    return done / seconds


def _read(path: Path, bytes_max: int) -> int:
    buffer = bytearray(_PIECE_BYTES)
    done = 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while done < bytes_max and (count := file.readinto(buffer)):
            done += count
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return done
