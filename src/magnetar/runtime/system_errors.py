"""Where `OSError` becomes an error of ours: one place, so that every message names the file and the reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magnetar.errors import DiskError, DiskFullError, FileMissingError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def translated(action: str, path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(action, path, error) from error


def translate(action: str, path: str | Path, error: OSError) -> DiskError:
    text = f"cannot {action} {path}: {reason(error)}"
    if error.errno in _FULL:
        return DiskFullError(f"{text}; free some room on that device or move the directory to a larger one")
    if error.errno == errno.ENOENT:
        return FileMissingError(text)
    return DiskError(text)


def reason(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
