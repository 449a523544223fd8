"""How fast the disk is that the servers write to: their own files read in sequence, none of them in the page cache."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_BLOCK: Final = 2**20


def drop_cached(directory: Path) -> None:
    """The page cache forgets all files below. It keeps what is not on the disk yet, so that is written first."""
    for file in _files(directory):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_all(directory: Path) -> tuple[int, float]:
    """Bytes and seconds, one file after the other."""
    buffer = bytearray(_BLOCK)
    total, began = 0, time.monotonic()
    for file in _files(directory):
        with file.open("rb", buffering=0) as opened:
            while count := opened.readinto(buffer):
                total += count
    return total, time.monotonic() - began


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
