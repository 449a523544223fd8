"""Which consumer is next: the choice of each type of subscription, made from the connected consumers alone.

Shared takes consumers in turn (`RoundRobin`): by priority, and within one priority the one that was served longest ago.
A lower number is a higher priority.

The active consumer of Failover (`choose_active`) is a pure choice, the same on every broker. Candidates are the
consumers of the highest priority, in the order of their names. A partition takes the one that its index points at, so
that the partitions of a topic are spread. A topic without partitions takes the one that follows it on a ring of hashes,
so that many topics are spread and one more consumer moves few of them.

On Key_Shared a `KeyAssignment` maps the hash of a key to a consumer, in one of three ways. All are Pulsar's, so a topic
that moves between magnetar and Pulsar keeps its assignment. Ring: each consumer has some points, made from its name; a
hash belongs to the next point, and one more consumer takes a little from each of the others. Split: a new consumer
takes the upper half of the largest range. Sticky: consumers name the ranges that they take; other hashes wait. The hash
of a key is computed as Pulsar does, so it is the same on every broker.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from magnetar.broker.subscriptions.consumer import Consumer, KeySharedMode
from magnetar.config.dispatch import DispatchConfig
from magnetar.errors import ConsumerAssignError
from magnetar.topic.entry_format.traits import ordering_key_of
from magnetar.topic.log_entry import LogEntry
from magnetar.words import counted

RANGE_SIZE: Final = 2**16
"""Key hashes are within 0 to 65,535."""
_MASK: Final = 0xFFFFFFFF


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 of 32 bits with seed 0, without its sign bit."""
    length = len(data)
    whole = length - length % 4
    h = 0
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * 0xCC9E2D51 & _MASK
        k = ((k << 15) | (k >> 17)) * 0x1B873593 & _MASK
        h ^= k
        h = ((h << 13) | (h >> 19)) & _MASK
        h = h * 5 + 0xE6546B64 & _MASK
    k = int.from_bytes(data[whole:], "little") * 0xCC9E2D51 & _MASK
    h ^= ((k << 15) | (k >> 17)) * 0x1B873593 & _MASK
    h ^= length
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _MASK
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _MASK
    return (h ^ (h >> 16)) & 0x7FFFFFFF


@lru_cache(maxsize=16_384)  # The same keys come again, and hashing in Python is slow.
def key_hash(key: bytes, first: int = 0) -> int:
    """Returns a hash from `first` to 65,535, never 0. The ring of points begins at 1, ranges begin at 0, as in
    Pulsar."""
    return (murmur3_32(key) % (RANGE_SIZE - first) + first) or 1


def hash_of_entry(entry: LogEntry, first: int = 0) -> int:
    return key_hash(ordering_key_of(entry.data), first)


_ACTIVE_POINTS: Final = 100  # Points of one consumer on the ring of Failover.
_NAMES_REMEMBERED_MAX: Final = 1_000  # Their points take about 4 MB.

Range = tuple[int, int]
"""First and last hash, both included."""


# --- Shared -----------------------------------------------------------------------------------------------------------


class RoundRobin:
    """Consumers of a lower priority get an entry only while no consumer of a higher one can take it."""

    def __init__(self) -> None:
        self._levels: list[tuple[int, dict[Consumer, None]]] = []
        """Priority and its consumers in the order of their last service, the longest ago first."""
        self._ring: deque[Consumer] = deque()
        self._level = 0

    def add(self, consumer: Consumer) -> None:
        for priority, level in self._levels:
            if priority == consumer.priority:
                level[consumer] = None
                return
        self._levels.append((consumer.priority, {consumer: None}))
        self._levels.sort(key=lambda entry: entry[0])

    def remove(self, consumer: Consumer) -> None:
        for _, level in self._levels:
            level.pop(consumer, None)
        self._levels = [entry for entry in self._levels if entry[1]]
        self.begin()

    def begin(self) -> None:
        """Begins a new turn: a consumer that could not take an entry before may be able to now."""
        self._ring.clear()
        self._level = 0

    @property
    def has_choice(self) -> bool:
        """Whether other consumers of the same priority wait for their turn."""
        return len(self._ring) > 1

    def next(self) -> Consumer | None:
        """Returns None if no consumer can take an entry."""
        while True:
            while self._ring:
                consumer = self._ring.popleft()
                if consumer.is_available:
                    self._ring.append(consumer)
                    level = self._levels[self._level - 1][1]
                    del level[consumer]
                    level[consumer] = None
                    return consumer
            if self._level >= len(self._levels):
                return None
            self._ring.extend(consumer for consumer in self._levels[self._level][1] if consumer.is_available)
            self._level += 1


# --- Failover ---------------------------------------------------------------------------------------------------------


def choose_active(consumers: Sequence[Consumer], topic: str, partition: int, *, by_ring: bool) -> Consumer:
    """Returns the active consumer of Failover. `partition` is −1 for a topic without partitions; with `by_ring` a
    partition is placed by the ring, too."""
    assert consumers
    highest = min(consumer.priority for consumer in consumers)
    candidates = sorted(
        (consumer for consumer in consumers if consumer.priority == highest), key=lambda consumer: consumer.name
    )
    if partition >= 0 and not by_ring:
        return candidates[partition % len(candidates)]
    return candidates[_index_on_ring(candidates, topic)]


def _index_on_ring(candidates: Sequence[Consumer], topic: str) -> int:
    ring: dict[int, int] = {}
    for index, consumer in enumerate(candidates):
        ring.update(dict.fromkeys(_points_of(consumer.name), index))
    points = sorted(ring)
    at = bisect_left(points, murmur3_32(topic.encode()))
    return ring[points[at % len(points)]]


@lru_cache(maxsize=_NAMES_REMEMBERED_MAX)
def _points_of(name: str) -> tuple[int, ...]:
    """Remembered, because every change among the consumers needs the points of all, and hashing is most of the work."""
    return tuple(murmur3_32(f"{name}{point}".encode()) for point in range(_ACTIVE_POINTS))


# --- keys -------------------------------------------------------------------------------------------------------------


class KeyAssignment(ABC):
    first_hash: int = 0
    """Hashes of keys are between this and 65,535."""

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if it cannot; nothing has changed then."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def owner_of(self, key_hash: int) -> Consumer | None: ...

    @abstractmethod
    def ranges(self) -> list[tuple[Range, Consumer]]:
        """In ascending order."""

    def ranges_of(self, consumer: Consumer) -> tuple[Range, ...]:
        return tuple(span for span, owner in self.ranges() if owner is consumer)


class RingAssignment(KeyAssignment):
    first_hash = 1

    def __init__(self, points_per_consumer: int) -> None:
        self._points_per_consumer = points_per_consumer
        self._points: list[int] = []
        self._owners: dict[int, list[Consumer]] = {}  # The first one has the point; others take it when it leaves.
        self._name_index: dict[Consumer, int] = {}  # Keeps consumers of one name apart: the lowest free number.

    def add(self, consumer: Consumer) -> None:
        taken = {index for other, index in self._name_index.items() if other.name == consumer.name}
        self._name_index[consumer] = next(index for index in range(len(taken) + 1) if index not in taken)
        for point in self._points_of(consumer):
            owners = self._owners.setdefault(point, [])
            if not owners:
                insort(self._points, point)
            owners.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._name_index:
            return
        for point in self._points_of(consumer):
            owners = self._owners.get(point, [])
            if consumer in owners:
                owners.remove(consumer)
            if not owners and point in self._owners:
                del self._owners[point]
                del self._points[bisect_left(self._points, point)]
        del self._name_index[consumer]

    def _points_of(self, consumer: Consumer) -> list[int]:
        index = self._name_index[consumer]
        return [
            key_hash(f"{consumer.name}\0{index}\0{point}".encode(), self.first_hash)
            for point in range(self._points_per_consumer)
        ]

    def owner_of(self, key_hash: int) -> Consumer | None:
        if not self._points:
            return None
        at = bisect_left(self._points, key_hash)
        return self._owners[self._points[at % len(self._points)]][0]

    def ranges(self) -> list[tuple[Range, Consumer]]:
        found: list[tuple[Range, Consumer]] = []
        start = self.first_hash
        for point in self._points:
            _append_range(found, (start, point), self._owners[point][0])
            start = point + 1
        if self._points and start < RANGE_SIZE:
            _append_range(found, (start, RANGE_SIZE - 1), self._owners[self._points[0]][0])
        return found


class SplitAssignment(KeyAssignment):
    def __init__(self) -> None:
        self._ends: list[int] = []  # Ascending; a range begins after the end of the one before.
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        if not self._ends:
            self._ends, self._owners = [RANGE_SIZE], [consumer]
            return
        starts = [0, *self._ends[:-1]]
        sizes = [end - start for start, end in zip(starts, self._ends, strict=True)]
        at = sizes.index(max(sizes))
        if sizes[at] <= 1:
            raise ConsumerAssignError(f"no key hash is left: {counted(len(self._ends), 'consumer')} have them all")
        self._ends.insert(at, self._ends[at] - (sizes[at] >> 1))
        self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._owners:
            return
        at = self._owners.index(consumer)
        del self._owners[at]
        if at == len(self._owners) and at > 0:  # No range follows the last one: the one before it takes over.
            del self._ends[at - 1]
        else:
            del self._ends[at]

    def owner_of(self, key_hash: int) -> Consumer | None:
        return self._owners[bisect_left(self._ends, key_hash)] if self._ends else None

    def ranges(self) -> list[tuple[Range, Consumer]]:
        starts = [0, *(end + 1 for end in self._ends[:-1])]
        ends = [min(end, RANGE_SIZE - 1) for end in self._ends]
        return list(zip(zip(starts, ends, strict=True), self._owners, strict=True)) if self._ends else []


class StickyAssignment(KeyAssignment):
    def __init__(self) -> None:
        self._ranges: list[Range] = []
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        wanted = sorted(consumer.key_shared.ranges)
        _check_ranges(consumer, wanted)
        for first, last in wanted:
            for (other_first, other_last), other in zip(self._ranges, self._owners, strict=True):
                if first <= other_last and other_first <= last:
                    raise ConsumerAssignError(
                        f"the range {first}–{last} of consumer {consumer.shown} overlaps {other_first}–{other_last} "
                        f"of consumer {other.name!r}: ranges must not overlap"
                    )
        for span in wanted:
            at = bisect_left(self._ranges, span)
            self._ranges.insert(at, span)
            self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        kept = [at for at, owner in enumerate(self._owners) if owner is not consumer]
        self._ranges = [self._ranges[at] for at in kept]
        self._owners = [self._owners[at] for at in kept]

    def owner_of(self, key_hash: int) -> Consumer | None:
        at = bisect_right(self._ranges, (key_hash, RANGE_SIZE)) - 1
        return self._owners[at] if at >= 0 and key_hash <= self._ranges[at][1] else None

    def ranges(self) -> list[tuple[Range, Consumer]]:
        return list(zip(self._ranges, self._owners, strict=True))


def make_assignment(mode: KeySharedMode, config: DispatchConfig) -> KeyAssignment:
    if mode is KeySharedMode.STICKY:
        return StickyAssignment()
    if config.key_shared_consistent_hashing:
        return RingAssignment(config.key_shared_points)
    return SplitAssignment()


def _append_range(found: list[tuple[Range, Consumer]], span: Range, consumer: Consumer) -> None:
    if found and found[-1][1] is consumer:
        found[-1] = ((found[-1][0][0], span[1]), consumer)
    else:
        found.append((span, consumer))


def _check_ranges(consumer: Consumer, wanted: list[Range]) -> None:
    if not wanted:
        raise ConsumerAssignError(f"consumer {consumer.shown} asks for sticky key ranges and names none")
    reached = -1
    for first, last in wanted:
        if not 0 <= first <= last < RANGE_SIZE:
            raise ConsumerAssignError(
                f"{first}–{last} of consumer {consumer.shown} is not a key range: 0 ≤ first ≤ last ≤ {RANGE_SIZE - 1}"
            )
        if first <= reached:
            raise ConsumerAssignError(f"two ranges of consumer {consumer.shown} overlap at {first}")
        reached = last
