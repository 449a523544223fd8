"""Lists the entries of a ledger that a bookie holds, as the answer to GET_LIST_OF_ENTRIES_OF_LEDGER.

Format:    version i32 (0) | number of groups i32 | zeros up to 64 bytes | groups of 24 bytes, ascending
           group: first i64 | last i64 | size i32 | period i32: runs of `size` entries that begin at first,
           first + period, … up to last. A single run has first = last and period 0. A ledger with Qw < E leaves the
           same gap repeatedly, so a million entries still fit one group. Apache's own encoder writes every run as a
           group of its own; its decoder reads both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from magnetar.errors import RemoteProtocolError
from magnetar.wire.bookkeeper.frames import Buffer

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_VERSION = 0
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Group:
    """`size` entries from `first`, again every `period`, up to the run that begins at `last`."""

    first: int
    last: int
    size: int
    period: int

    def __contains__(self, entry_id: int) -> bool:
        if not self.first <= entry_id < self.last + self.size:
            return False
        return self.period == 0 or (entry_id - self.first) % self.period < self.size

    def __iter__(self) -> Iterator[int]:
        """Yields the ids, which may be astronomically many, if the bookie says so: bound what you take."""
        for start in range(self.first, self.last + 1, self.period or 1):
            yield from range(start, start + self.size)

    @property
    def count(self) -> int:
        runs = 1 if self.period == 0 else (self.last - self.first) // self.period + 1
        return runs * self.size


class AvailabilityEncoder:
    """Takes the ids in parts, because a ledger may have millions: `add` … `add`, `encoded`."""

    __slots__ = ("_first", "_following", "_group", "_packed")

    def __init__(self) -> None:
        self._first = self._following = 0  # The run without a gap that is being looked at.
        self._group: Group | None = None
        self._packed: list[bytes] = []

    def add(self, entry_ids: Iterable[int]) -> None:
        """Takes ids in ascending order, also from one call to the next; a repeated one counts once."""
        first, following = self._first, self._following
        for entry_id in entry_ids:
            assert entry_id >= following - 1, "entry ids must ascend"
            if entry_id == following and following - first < _INT_MAX:
                following += 1
            elif entry_id >= following:
                self._add_run(first, following - first)
                first, following = entry_id, entry_id + 1
        self._first, self._following = first, following

    def encoded(self) -> bytes:
        """Returns everything that was added; nothing can be added after it."""
        self._add_run(self._first, self._following - self._first)
        if self._group is not None:
            self._pack(self._group)
        return _HEADER.pack(_VERSION, len(self._packed)) + b"".join(self._packed)

    def _add_run(self, first: int, size: int) -> None:
        if not size:
            return
        group = self._group
        step = 0 if group is None else first - group.last
        if group is not None and size == group.size and step <= _INT_MAX and group.period in (0, step):
            self._group = Group(group.first, first, size, step)
        else:
            if group is not None:
                self._pack(group)
            self._group = Group(first, first, size, 0)

    def _pack(self, group: Group) -> None:
        self._packed.append(_GROUP.pack(group.first, group.last, group.size, group.period))


def decode_availability(data: Buffer) -> Sequence[Group]:
    """Returns ascending groups that do not overlap."""
    if len(data) < _HEADER.size:
        raise RemoteProtocolError(f"a list of entries of {len(data)} bytes is cut short")
    version, count = _HEADER.unpack_from(data)
    if version > _VERSION:
        raise RemoteProtocolError(f"a list of entries of version {version} is newer than {_VERSION}")
    if not 0 <= count <= (len(data) - _HEADER.size) // _GROUP.size:
        raise RemoteProtocolError(f"a list of entries says {count} groups and has {len(data)} bytes")
    packed = memoryview(data)[_HEADER.size : _HEADER.size + count * _GROUP.size]
    groups = [Group(*fields) for fields in _GROUP.iter_unpack(packed)]
    end = 0
    for group in groups:
        _check(group, end)
        end = group.last + group.size
    return groups


def _check(group: Group, previous_end: int) -> None:
    repeats = group.last > group.first
    valid = (
        group.first >= previous_end
        and group.last >= group.first
        and group.size > 0
        and (group.size <= group.period and (group.last - group.first) % group.period == 0 if repeats else True)
    )
    if not valid:
        raise RemoteProtocolError(f"a list of entries has the impossible {group}")
