"""Directory: names as everybody sees them now, and as the medium has them.

Pending:   creating, renaming and removing are changes in the order they were made; `sync_dir` makes all of a
           directory's changes durable. A power loss leaves a prefix of them, chosen per directory.
Rename:    within one directory it is one change: old or new, never neither. Between two directories it is an addition
           and a removal, and the removal is never durable without the addition: old, both, or new.
Lost:      after a failed `sync_dir` the pending changes are still seen and will never be durable, nor will a removal
           whose addition is among them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from random import Random
from typing import TypeAlias

from magnetar.sim.image import FileImage
from magnetar.sim.survival import survived_count

Node: TypeAlias = "FileImage | Directory"


class NameChange:
    """Equal only to itself: two removals of one name are two changes."""

    def __init__(self, directory: Directory, names: Mapping[str, Node | None], needs: NameChange | None) -> None:
        self.directory = directory
        self.names = names  # None: the name goes.
        self.needs = needs
        self.is_lost = False

    @property
    def is_pending(self) -> bool:
        return self in self.directory.pending

    def apply(self, entries: dict[str, Node]) -> None:
        for name, node in self.names.items():
            entries.pop(name, None)
            if node is not None:
                entries[name] = node


class Directory:
    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: deque[NameChange] = deque()

    def change(self, names: Mapping[str, Node | None], *, needs: NameChange | None = None) -> NameChange:
        change = NameChange(self, names, needs)
        change.apply(self.entries)
        self.pending.append(change)
        return change

    def commit(self) -> None:
        if self.pending:
            self._commit_through(self.pending[-1])

    def commit_some(self, random: Random) -> None:
        """What a power loss happens to find on the medium already; `settle` forgets the rest."""
        if self.pending and (count := survived_count(len(self.pending), random)):
            self._commit_through(self.pending[count - 1])

    def lose(self) -> None:
        for change in self.pending:
            change.is_lost = True
        self.pending.clear()

    def settle(self) -> None:
        self.pending.clear()
        self.entries = dict(self.durable)

    def is_sure(self, name: str) -> bool:
        """Every power loss would leave this name, and for what `durable` says."""
        return name in self.durable and all(name not in change.names for change in self.pending)

    def _commit_through(self, last: NameChange) -> None:
        while last.is_pending:
            change = self.pending.popleft()
            if change.needs is not None and change.needs.is_lost:
                change.is_lost = True
                continue
            change.apply(self.durable)
            if change.needs is not None:
                change.needs.directory._commit_through(change.needs)
