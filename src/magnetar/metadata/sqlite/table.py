"""The table of nodes in SQLite. Blocking; for the engine's lane. Every row read is checked against its CRC."""

from __future__ import annotations

import zlib

from magnetar.errors import StoreCorruptError
from magnetar.metadata.paths import ROOT, name_of, parent_of
from magnetar.metadata.sqlite.database import Connection
from magnetar.metadata.store import Node
from magnetar.metadata.tree import NodeTable

_NO_PARENT = ""


class SqliteTable(NodeTable):
    def __init__(self, connection: Connection, path: str) -> None:
        self._execute = connection.execute
        self._path = path

    def prepare(self, now_ms: int) -> None:
        """Makes the root, and ends the sessions of the process that had the file before."""
        if self.find(ROOT) is None:
            self._insert(ROOT, _NO_PARENT, Node(b"", 0, now_ms, now_ms))
        self._execute("DELETE FROM nodes WHERE owner != 0")

    def find(self, path: str) -> Node | None:
        row = self._execute(
            'SELECT value, version, created_ms, modified_ms, owner, "check" FROM nodes WHERE path = ?', (path,)
        ).fetchone()
        if row is None:
            return None
        node = Node(*row[:5])
        if row[5] != _check(path, node):
            raise StoreCorruptError(
                f"{self._path}: the value of {path} is damaged; restore the file from a backup, or delete this node"
            )
        return node

    def insert(self, path: str, node: Node) -> None:
        self._insert(path, parent_of(path), node)

    def _insert(self, path: str, parent: str, node: Node) -> None:
        self._execute(
            'INSERT INTO nodes (path, parent, value, version, created_ms, modified_ms, owner, "check")'
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (path, parent, node.value, node.version, node.created_ms, node.modified_ms, node.owner, _check(path, node)),
        )

    def update(self, path: str, node: Node) -> None:
        self._execute(
            'UPDATE nodes SET value = ?, version = ?, modified_ms = ?, "check" = ? WHERE path = ?',
            (node.value, node.version, node.modified_ms, _check(path, node), path),
        )

    def remove(self, path: str) -> None:
        self._execute("DELETE FROM nodes WHERE path = ?", (path,))

    def children(self, path: str) -> list[str]:
        rows = self._execute("SELECT path FROM nodes WHERE parent = ?", (path,)).fetchall()
        return sorted(name_of(row[0]) for row in rows)

    def has_children(self, path: str) -> bool:
        return self._execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone() is not None

    def owned_by(self, session_id: int) -> list[str]:
        rows = self._execute("SELECT path FROM nodes WHERE owner = ? ORDER BY path", (session_id,)).fetchall()
        return [row[0] for row in rows]

    def next_sequence(self, path: str) -> int:
        number: int = self._execute("SELECT sequence FROM nodes WHERE path = ?", (path,)).fetchone()[0]
        self._execute("UPDATE nodes SET sequence = ? WHERE path = ?", (number + 1, path))
        return number

    def savepoint(self) -> None:
        self._execute("SAVEPOINT step")

    def rollback(self) -> None:
        self._execute("ROLLBACK TO step")
        self._execute("RELEASE step")

    def release(self) -> None:
        self._execute("RELEASE step")


def _check(path: str, node: Node) -> int:
    return zlib.crc32(node.value, zlib.crc32(f"{node.version} {path}".encode()))
