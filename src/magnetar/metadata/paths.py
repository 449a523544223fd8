"""Paths of the metadata tree: ZooKeeper's rules, checked before anything is sent."""

from __future__ import annotations

import re

from magnetar.errors import InvalidPathError

ROOT = "/"

# Characters that ZooKeeper refuses: control characters, surrogates and private use, the specials block, and everything
# beyond the basic plane, which its server sees as surrogates.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def check_path(path: str) -> None:
    """Raises InvalidPathError unless the path is absolute, normalised and made of allowed characters."""
    if not path.startswith(ROOT):
        raise InvalidPathError(f"a metadata path begins with '/': {path!r}")
    if path == ROOT:
        return
    for segment in path[1:].split("/"):
        if not segment:
            raise InvalidPathError(f"a metadata path has no empty segment and no trailing '/': {path!r}")
        if segment in (".", ".."):
            raise InvalidPathError(f"a metadata path has no relative segment: {path!r}")
    if found := _FORBIDDEN.search(path):
        raise InvalidPathError(f"character U+{ord(found[0]):04X} is not allowed in a metadata path: {path!r}")


def parent_of(path: str) -> str:
    assert path != ROOT, "the root has no parent"
    return path[: path.rindex("/")] or ROOT


def name_of(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def join(parent: str, name: str) -> str:
    return f"/{name}" if parent == ROOT else f"{parent}/{name}"


def ancestors_of(path: str) -> list[str]:
    """Returns the proper ancestors below the root, outermost first."""
    found = []
    while path != ROOT and (path := parent_of(path)) != ROOT:
        found.append(path)
    return found[::-1]
