"""The metadata store as its users see it: a tree of versioned nodes, with sessions and watches.

Model:     ZooKeeper's. A node has a value, a version that grows by one with every put, and children. An ephemeral node
           lives as long as the session that made it. A sequential node gets a ten-digit number that only grows.
Promise:   an operation raises `OutcomeUnknownError` when it may or may not have been done, and any other error only
           when it was not done. Changes made through one store are seen in their order; a read may be behind what
           another client wrote until `sync` was awaited.
Watches:   one-shot. A read that is given a watcher arms it in the same instant, so that no change falls between the
           two. The watcher is called once, on the event loop: for a change, or with INTERRUPTED when the connection or
           the session was lost and changes may be missed from here on. `follow.py` turns this into a stream.
Sessions:  states are delivered in order, on the event loop, to every listener (`session.py`).
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
"""Given as the expected version: do it whatever the version is."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a read returns: a value and what the store knows about it."""

    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: int = 0
    """Id of the session an ephemeral node belongs to; 0 for a persistent node."""


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
    """Only in a transaction: the node exists and has this version."""

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
        """The node, or None. The watcher hears of CREATED, CHANGED and DELETED, also when there is no node yet."""

    @abstractmethod
    async def children(self, path: str, *, watch: Watcher | None = None) -> list[str]:
        """Sorted names. No node: NoNodeError, and nothing is watched. The watcher hears of CHILDREN and DELETED."""

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
        """All operations in one step, or none of them and TransactionFailedError."""

    @abstractmethod
    async def sync(self) -> None:
        """After this, reads see everything that any client was told is done before the call."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the session and with it its ephemeral nodes. What was handed over before is still answered, or unknown;
        what waits for a connection fails with StoreClosedError."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
