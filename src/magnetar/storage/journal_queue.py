"""The journal's queue: records collect in groups, ready to be written as they are.

Invariant: a group that was taken does not change any more; what comes later goes to the next one.
Bounds:    records and bytes, counted from `add` until the group is done, so what is being written counts as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.runtime.disk import Buffer
from magnetar.storage.journal_format import (
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    RecordKind,
    group_header,
    record_header,
)


class Group:
    __slots__ = ("body_bytes", "chunks", "first_sequence", "tokens")

    def __init__(self, first_sequence: int) -> None:
        self.first_sequence = first_sequence
        self.chunks: list[Buffer] = [b""]  # The first is the place of the header.
        self.tokens: list[object] = []
        self.body_bytes = 0

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + len(self.tokens) - 1

    def seal(self, file_id: int) -> list[Buffer]:
        """What is to be written."""
        body = self.chunks[1:]
        self.chunks[0] = group_header(file_id, self.first_sequence, len(self.tokens), self.body_bytes, body)
        return self.chunks


class JournalQueue:
    def __init__(self, next_sequence: int, *, group_bytes_max: int, records_max: int, bytes_max: int) -> None:
        self.next_sequence = next_sequence
        self.records = 0
        self.bytes = 0
        self._group_bytes_max = group_bytes_max
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._groups: deque[Group] = deque()

    @property
    def has_room(self) -> bool:
        """For one more, whatever its size: a record larger than the bound must not wait for ever."""
        return self.records < self._records_max and self.bytes < self._bytes_max

    @property
    def is_empty(self) -> bool:
        """Nothing waits; a group may be with the writer."""
        return not self._groups

    def add(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int:
        length = sum(map(len, chunks))
        assert length <= RECORD_BYTES_MAX, "no frame that we accept makes such a record"
        size = length + RECORD_HEADER_BYTES
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        groups = self._groups
        if not groups or groups[-1].body_bytes + size > self._group_bytes_max:
            groups.append(Group(sequence))
        group = groups[-1]
        group.chunks.append(record_header(kind, length))
        group.chunks.extend(chunks)
        group.tokens.append(token)
        group.body_bytes += size
        self.records += 1
        self.bytes += size
        return sequence

    def take(self) -> Group:
        return self._groups.popleft()

    def done(self, group: Group) -> None:
        self.records -= len(group.tokens)
        self.bytes -= group.body_bytes

    def drop(self) -> None:
        """Nothing that waits will be written."""
        self._groups.clear()
        self.records = self.bytes = 0
