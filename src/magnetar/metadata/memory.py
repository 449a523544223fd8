"""The store in memory: for tests, for the simulator, and for a process that needs no durability.

Several components of one process share one `MemoryServer`; each connects its own session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.local import Engine, Job, LocalServer, Outcome, run_job
from magnetar.metadata.paths import ROOT, name_of, parent_of
from magnetar.metadata.store import Node
from magnetar.metadata.tree import NodeTable, Tree
from magnetar.runtime.runtime import Entropy

GROUP_OPERATIONS_MAX = 1_000  # This many requests are answered in one turn of the loop; then other tasks run.


class MemoryTable(NodeTable):
    """Keeps nodes in dictionaries, with an undo list while a savepoint is open."""

    def __init__(self, now_ms: int) -> None:
        self._nodes: dict[str, Node] = {ROOT: Node(b"", 0, now_ms, now_ms)}
        self._names: dict[str, dict[str, None]] = {}
        self._sequences: dict[str, int] = {}
        self._owned: dict[int, dict[str, None]] = {}
        self._undo: list[Callable[[], None]] | None = None

    def find(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def insert(self, path: str, node: Node) -> None:
        self._put_in(path, node)
        self._on_rollback(lambda: self._take_out(path))

    def update(self, path: str, node: Node) -> None:
        before = self._nodes[path]
        self._nodes[path] = node
        self._on_rollback(lambda: self._nodes.__setitem__(path, before))

    def remove(self, path: str) -> None:
        before = self._nodes[path]
        sequence = self._sequences.pop(path, 0)
        self._take_out(path)

        def undo() -> None:
            self._put_in(path, before)
            self._sequences[path] = sequence

        self._on_rollback(undo)

    def children(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))

    def has_children(self, path: str) -> bool:
        return bool(self._names.get(path))

    def owned_by(self, session_id: int) -> list[str]:
        return sorted(self._owned.get(session_id, ()))

    def next_sequence(self, path: str) -> int:
        number = self._sequences.get(path, 0)
        self._sequences[path] = number + 1
        self._on_rollback(lambda: self._sequences.__setitem__(path, number))
        return number

    def savepoint(self) -> None:
        assert self._undo is None, "savepoints do not nest"
        self._undo = []

    def rollback(self) -> None:
        undo, self._undo = self._undo, None
        assert undo is not None
        for step in reversed(undo):
            step()

    def release(self) -> None:
        self._undo = None

    def _put_in(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        self._names.setdefault(parent_of(path), {})[name_of(path)] = None
        if node.owner:
            self._owned.setdefault(node.owner, {})[path] = None

    def _take_out(self, path: str) -> None:
        node = self._nodes.pop(path)
        names = self._names[parent_of(path)]
        del names[name_of(path)]
        if not names:
            del self._names[parent_of(path)]
        if node.owner:
            owned = self._owned[node.owner]
            del owned[path]
            if not owned:
                del self._owned[node.owner]

    def _on_rollback(self, step: Callable[[], None]) -> None:
        if self._undo is not None:
            self._undo.append(step)


class MemoryEngine(Engine):
    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._tree = Tree(MemoryTable(entropy.wall_ms()))

    async def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        now_ms = self._entropy.wall_ms()
        return [run_job(self._tree, job, now_ms) for job in jobs]

    async def aclose(self) -> None:
        """Does nothing."""


class MemoryServer(LocalServer):
    """Made on a running loop; lives until `aclose`."""

    def __init__(self, entropy: Entropy, config: MetadataConfig) -> None:
        super().__init__(MemoryEngine(entropy), entropy, config, group_operations_max=GROUP_OPERATIONS_MAX)
