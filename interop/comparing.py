"""Compares what ours and Apache's give."""

from __future__ import annotations


def same(what: str, ours: object, theirs: object) -> None:
    """Raises AssertionError that names what differs; dictionaries are compared key by key."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            same(f"{what}.{key}", ours.get(key, "(absent)"), theirs.get(key, "(absent)"))
    elif ours != theirs:
        raise AssertionError(f"{what}: ours {ours!r}, Apache's {theirs!r}")
