"""The rules of the tree, pure: what an operation does to a table of nodes, and which watches it concerns.

Invariant: an operation either raises before it changed a node, or is done whole; a refused sequential create may use up
           a number. A transaction is undone by the table's savepoint.
Order:     a change gives an event for its node (CREATED, CHANGED, DELETED) and, when a name was added or removed, for
           its parent (CHILDREN).
Read next: local.py (sessions and watches above these rules), memory.py and metadata/sqlite.py (the two tables)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from magnetar.errors import (
    BadVersionError,
    MetadataError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    TransactionFailedError,
)
from magnetar.metadata.paths import ROOT, parent_of
from magnetar.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Node,
    Operation,
    OperationResult,
    Put,
    WatchEvent,
    WatchKind,
)

SEQUENCE_DIGITS = 10


class NodeTable(Protocol):
    """The table of nodes. The root always exists."""

    def find(self, path: str) -> Node | None: ...
    def insert(self, path: str, node: Node) -> None: ...
    def update(self, path: str, node: Node) -> None: ...
    def remove(self, path: str) -> None: ...
    def children(self, path: str) -> list[str]:
        """Returns sorted names."""
        ...

    def has_children(self, path: str) -> bool: ...
    def owned_by(self, session_id: int) -> list[str]:
        """Returns the sorted paths of a session's ephemeral nodes."""
        ...

    def next_sequence(self, path: str) -> int:
        """Counts the sequential children ever made below the node, from 0."""
        ...

    def savepoint(self) -> None: ...
    def rollback(self) -> None:
        """Undoes everything since the savepoint."""
        ...

    def release(self) -> None: ...


@dataclass(slots=True)
class Tree:
    """Does one operation at a time, for a session."""

    table: NodeTable

    def apply(self, operation: Operation, session_id: int, now_ms: int, events: list[WatchEvent]) -> OperationResult:
        match operation:
            case Create():
                return self._create(operation, session_id, now_ms, events)
            case Put():
                return self._put(operation, now_ms, events)
            case Delete():
                self._delete(operation, events)
            case Check():
                self._find_version(operation.path, operation.version)
        return None

    def transact(
        self, operations: tuple[Operation, ...], session_id: int, now_ms: int, events: list[WatchEvent]
    ) -> list[OperationResult]:
        results: list[OperationResult] = []
        collected: list[WatchEvent] = []
        self.table.savepoint()
        for index, operation in enumerate(operations):
            try:
                results.append(self.apply(operation, session_id, now_ms, collected))
            except MetadataError as error:
                self.table.rollback()
                raise TransactionFailedError(index, error) from error
        self.table.release()
        events += collected
        return results

    def get(self, path: str) -> Node | None:
        return self.table.find(path)

    def children(self, path: str) -> list[str]:
        self._find(path)
        return self.table.children(path)

    def end_session(self, session_id: int, events: list[WatchEvent]) -> None:
        """Removes the session's ephemeral nodes."""
        for path in self.table.owned_by(session_id):
            self._remove(path, events)

    def _create(self, operation: Create, session_id: int, now_ms: int, events: list[WatchEvent]) -> str:
        if operation.path == ROOT:
            raise NodeExistsError("the root exists already")
        parent_path = parent_of(operation.path)
        parent = self.table.find(parent_path)
        if parent is None:
            raise NoNodeError(f"{parent_path} does not exist, so {operation.path} cannot be created below it")
        if parent.owner:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and cannot have children")
        path = operation.path
        if operation.mode.is_sequential:
            path += f"{self.table.next_sequence(parent_path):0{SEQUENCE_DIGITS}d}"
        if self.table.find(path) is not None:
            raise NodeExistsError(f"{path} exists already")
        owner = session_id if operation.mode.is_ephemeral else 0
        self.table.insert(path, Node(operation.value, 0, now_ms, now_ms, owner))
        events += WatchEvent(WatchKind.CREATED, path), WatchEvent(WatchKind.CHILDREN, parent_path)
        return path

    def _put(self, operation: Put, now_ms: int, events: list[WatchEvent]) -> int:
        node = self._find_version(operation.path, operation.version)
        version = node.version + 1
        self.table.update(operation.path, replace(node, value=operation.value, version=version, modified_ms=now_ms))
        events.append(WatchEvent(WatchKind.CHANGED, operation.path))
        return version

    def _delete(self, operation: Delete, events: list[WatchEvent]) -> None:
        self._find_version(operation.path, operation.version)
        if self.table.has_children(operation.path):
            raise NotEmptyError(f"{operation.path} has children; delete them first")
        self._remove(operation.path, events)

    def _remove(self, path: str, events: list[WatchEvent]) -> None:
        self.table.remove(path)
        events += WatchEvent(WatchKind.DELETED, path), WatchEvent(WatchKind.CHILDREN, parent_of(path))

    def _find(self, path: str) -> Node:
        node = self.table.find(path)
        if node is None:
            raise NoNodeError(f"{path} does not exist")
        return node

    def _find_version(self, path: str, version: int) -> Node:
        node = self._find(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}: it was changed since")
        return node
