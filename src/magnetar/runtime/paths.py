"""Paths below the root of a disk, checked alike in both worlds."""

from __future__ import annotations

import posixpath

from magnetar.errors import DiskError


def checked_path(path: str) -> str:
    """The normal form of a path below the root; "" is the root itself."""
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise DiskError(f"{path!r} is not a path below the root of this disk: it must be relative and without '..'")
    normal = posixpath.normpath(path)
    return "" if normal == "." else normal


def checked_file_path(path: str) -> str:
    normal = checked_path(path)
    if not normal:
        raise DiskError(f"{path!r} names the root of this disk, where a file's name is wanted")
    return normal
