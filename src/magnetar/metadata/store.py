"""The metadata store as its users see it: a tree of versioned nodes, with sessions and watches; and its requests.

Purpose:   ZooKeeper's model. A node has a value, a version that grows by one with every put, and children. An ephemeral
           node lives as long as the session that made it. A sequential node gets a ten-digit number that only grows.
           Requests are values, so that a link can lose one or carry it to any kind of store.
Invariant: an operation raises `OutcomeUnknownError` when it may or may not have been done, and any other error only
           when it was not done.
Order:     changes made through one store are seen in their order; a read may not show another client's latest writes
           until `sync` was awaited. States of a session are delivered in order to every listener (`session.py`).
           Watches are one-shot. A read with a watcher arms it in the same instant, so that no change falls between the
           two. The watcher is called once, on the event loop: for a change, or with INTERRUPTED when the connection or
           the session was lost and changes may be missed from then on. `follow.py` turns this into a stream.
Read next: local.py (memory, SQLite), zookeeper/store.py; magnetar/testing/contracts/metadata_store.py
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from magnetar.metadata.session import Session

ANY_VERSION = -1
"""Given as the expected version: any version is accepted."""


@dataclass(frozen=True, slots=True)
class Node:
    """The result of a read: a value and what the store knows about it."""

    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: int = 0
    """The id of the session an ephemeral node belongs to; 0 for a persistent node."""


class CreateMode(enum.Enum):
    PERSISTENT = "persistent"
    EPHEMERAL = "ephemeral"
    PERSISTENT_SEQUENTIAL = "persistent sequential"
    EPHEMERAL_SEQUENTIAL = "ephemeral sequential"

    @property
    def is_ephemeral(self) -> bool:
        return self in (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)

    @property
    def is_sequential(self) -> bool:
        return self in (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)


class WatchKind(enum.Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: WatchKind
    path: str


Watcher: TypeAlias = Callable[[WatchEvent], None]


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    value: bytes = b""
    mode: CreateMode = CreateMode.PERSISTENT


@dataclass(frozen=True, slots=True)
class Put:
    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Requires that the node exists and has this version; only in a transaction."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = Create | Put | Delete | Check
OperationResult: TypeAlias = str | int | None
"""Create: the path made. Put: the new version. Delete and Check: nothing."""


class MetadataStore(ABC):
    """One session with a store. Made connected, by `open_store` or by a server's `connect`; ended by `aclose`."""

    session: Session

    @abstractmethod
    async def get(self, path: str, *, watch: Watcher | None = None) -> Node | None:
        """Returns the node, or None. The watcher sees CREATED, CHANGED and DELETED, also when the node does not exist
        yet."""

    @abstractmethod
    async def children(self, path: str, *, watch: Watcher | None = None) -> list[str]:
        """Returns sorted names. NoNodeError: the node is missing, and not watched. The watcher sees CHILDREN and
        DELETED."""

    @abstractmethod
    async def create(
        self, path: str, value: bytes = b"", *, mode: CreateMode = CreateMode.PERSISTENT, make_parents: bool = False
    ) -> str:
        """Returns the path made, completed by a sequential mode. Missing parents are made persistent and empty."""

    @abstractmethod
    async def put(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        """Replaces the value if the node has this version; returns the new version."""

    @abstractmethod
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Deletes the node if it has this version and no children."""

    @abstractmethod
    async def transact(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Does all operations in one step, or none of them and raises TransactionFailedError."""

    @abstractmethod
    async def sync(self) -> None:
        """Makes later reads see every change that was confirmed to any client before the call."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the session and with it its ephemeral nodes. Requests that were sent are still answered, or unknown;
        requests that wait for a connection fail with StoreClosedError."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


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
    """Reads everything that is done so far."""


@dataclass(frozen=True, slots=True)
class Transact:
    operations: tuple[Operation, ...]


Read: TypeAlias = Get | Children | Sync
Write: TypeAlias = Create | Put | Delete | Transact
Request: TypeAlias = Read | Write


def describe(request: Request) -> str:
    """Returns the request without its value, for messages."""
    name = type(request).__name__.lower()
    path = getattr(request, "path", "")
    return f"{name} {path}".strip()
