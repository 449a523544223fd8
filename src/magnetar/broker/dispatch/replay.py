"""ReplayQueue: positions that were read and have to be handed out again, in the order of the topic.

They are here because a consumer gave them back or left, because their delivery time has come, or because their key's
consumer could not take them. Kept as positions only: the log or its cache has the entries.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from magnetar.topic.position import Position

_FEW: Final = 64  # So many are put in their places one by one; more are sorted in.
_SLACK: Final = 256  # Positions that are gone and still in the list, besides as many as there are others.


class ReplayQueue:
    """Sorted when it is read, not when it is written: consumers leave with thousands of positions at once."""

    def __init__(self) -> None:
        self._hashes: dict[Position, int] = {}  # Position → key hash, 0 if it is not known.
        self._ordered: list[Position] = []  # Some may be gone from the dict, or here twice: skipped when met.
        self._added: list[Position] = []
        self._per_hash: dict[int, int] = {}
        self._with_hash = 0

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, position: Position) -> bool:
        return position in self._hashes

    @property
    def shape(self) -> tuple[int, int]:
        """Changes whenever a position comes or goes, or its hash becomes known."""
        return len(self._hashes), self._with_hash

    @property
    def first(self) -> Position | None:
        return next(iter(self), None)

    def add(self, position: Position, key_hash: int = 0) -> None:
        known = self._hashes.get(position)
        if known is None:
            self._added.append(position)
        elif known == key_hash or not key_hash:
            return
        elif known:
            self._less(known)
        self._hashes[position] = key_hash
        if key_hash:
            self._with_hash += 1
            self._per_hash[key_hash] = self._per_hash.get(key_hash, 0) + 1

    def remove(self, position: Position) -> None:
        key_hash = self._hashes.pop(position, None)
        if key_hash:
            self._less(key_hash)

    def has_hash(self, key_hash: int) -> bool:
        """Whether an entry of this key waits here."""
        return key_hash in self._per_hash

    def hash_of(self, position: Position) -> int:
        return self._hashes[position]

    def __iter__(self) -> Iterator[Position]:
        """In order. Removing while iterating is fine, adding is not."""
        self._settle()
        hashes = self._hashes
        before: Position | None = None
        for position in self._ordered:
            if position in hashes and position != before:
                yield position
                before = position

    def drop_through(self, last: Position) -> list[Position]:
        """Removes all up to and including `last`; returns them."""
        dropped = list(takewhile(lambda position: position <= last, self))
        for position in dropped:
            self.remove(position)
        return dropped

    def clear(self) -> None:
        self._hashes.clear()
        self._ordered.clear()
        self._added.clear()
        self._per_hash.clear()
        self._with_hash = 0

    def _less(self, key_hash: int) -> None:
        self._with_hash -= 1
        left = self._per_hash.get(key_hash, 0) - 1
        if left > 0:
            self._per_hash[key_hash] = left
        else:
            self._per_hash.pop(key_hash, None)

    def _settle(self) -> None:
        if len(self._ordered) + len(self._added) > 2 * len(self._hashes) + _SLACK:
            self._ordered = sorted(self._hashes)
            self._added.clear()
        elif len(self._added) <= _FEW:
            for position in self._added:
                insort(self._ordered, position)
            self._added.clear()
        else:
            self._ordered += self._added
            self._added.clear()
            self._ordered.sort()
