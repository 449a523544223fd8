"""What a store sends: each operation as a value, so that a link can lose it or carry it to any kind of store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from magnetar.metadata.store import Create, Delete, Operation, Put, Watcher


@dataclass(frozen=True, slots=True)
class Get:
    path: str
    watch: Watcher | None = None


@dataclass(frozen=True, slots=True)
class Children:
    path: str
    watch: Watcher | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """A read of everything that is done so far."""


@dataclass(frozen=True, slots=True)
class Transact:
    operations: tuple[Operation, ...]


Read: TypeAlias = Get | Children | Sync
Write: TypeAlias = Create | Put | Delete | Transact
Request: TypeAlias = Read | Write


def describe(request: Request) -> str:
    """For messages: what was asked, without its value."""
    name = type(request).__name__.lower()
    path = getattr(request, "path", "")
    return f"{name} {path}".strip()
