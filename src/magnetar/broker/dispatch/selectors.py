"""Which consumer of a Key_Shared subscription a key's hash belongs to: three ways, all as Pulsar's, so that a topic
that moves between magnetar and Pulsar keeps its assignment.

Ring:      each consumer has some points, made from its name; a hash belongs to the next point. One more consumer takes
           a little from each of the others.
Split:     a new consumer takes the upper half of the largest range.
Sticky:    consumers say which ranges they take; hashes that nobody takes wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.hashing import RANGE_SIZE, key_hash
from magnetar.errors import ConsumerAssignError

Range = tuple[int, int]
"""First and last hash, both included."""


class Selector(ABC):
    first_hash: int = 0
    """Hashes of keys are counted from here to 65,535."""

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """ConsumerAssignError: nothing was changed."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def select(self, key_hash: int) -> Consumer | None: ...

    @abstractmethod
    def ranges(self) -> list[tuple[Range, Consumer]]:
        """In ascending order."""

    def ranges_of(self, consumer: Consumer) -> tuple[Range, ...]:
        return tuple(span for span, owner in self.ranges() if owner is consumer)


class RingSelector(Selector):
    first_hash = 1

    def __init__(self, points_per_consumer: int) -> None:
        self._points_per_consumer = points_per_consumer
        self._points: list[int] = []
        self._owners: dict[int, list[Consumer]] = {}  # The first one has the point; others take it when it leaves.
        self._name_index: dict[Consumer, int] = {}  # Tells consumers of one name apart: the lowest that is free.

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

    def select(self, key_hash: int) -> Consumer | None:
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


class SplitSelector(Selector):
    def __init__(self) -> None:
        self._ends: list[int] = []  # Ascending; a range reaches from behind the one before up to its end.
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        if not self._ends:
            self._ends, self._owners = [RANGE_SIZE], [consumer]
            return
        starts = [0, *self._ends[:-1]]
        sizes = [end - start for start, end in zip(starts, self._ends, strict=True)]
        at = sizes.index(max(sizes))
        if sizes[at] <= 1:
            raise ConsumerAssignError(
                f"{len(self._ends)} consumers have all key hashes between them: there is none left"
            )
        self._ends.insert(at, self._ends[at] - (sizes[at] >> 1))
        self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self._owners:
            return
        at = self._owners.index(consumer)
        del self._owners[at]
        if at == len(self._owners) and at > 0:  # The last range has no next one: the one before it takes over.
            del self._ends[at - 1]
        else:
            del self._ends[at]

    def select(self, key_hash: int) -> Consumer | None:
        return self._owners[bisect_left(self._ends, key_hash)] if self._ends else None

    def ranges(self) -> list[tuple[Range, Consumer]]:
        starts = [0, *(end + 1 for end in self._ends[:-1])]
        ends = [min(end, RANGE_SIZE - 1) for end in self._ends]
        return list(zip(zip(starts, ends, strict=True), self._owners, strict=True)) if self._ends else []


class StickySelector(Selector):
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
                        f"the range {first}–{last} of consumer {consumer.name!r} overlaps {other_first}–{other_last} "
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

    def select(self, key_hash: int) -> Consumer | None:
        at = bisect_right(self._ranges, (key_hash, RANGE_SIZE)) - 1
        return self._owners[at] if at >= 0 and key_hash <= self._ranges[at][1] else None

    def ranges(self) -> list[tuple[Range, Consumer]]:
        return list(zip(self._ranges, self._owners, strict=True))


def _append_range(found: list[tuple[Range, Consumer]], span: Range, consumer: Consumer) -> None:
    if found and found[-1][1] is consumer:
        found[-1] = ((found[-1][0][0], span[1]), consumer)
    else:
        found.append((span, consumer))


def _check_ranges(consumer: Consumer, wanted: list[Range]) -> None:
    if not wanted:
        raise ConsumerAssignError(f"consumer {consumer.name!r} asks for sticky key ranges and names none")
    reached = -1
    for first, last in wanted:
        if not 0 <= first <= last < RANGE_SIZE:
            raise ConsumerAssignError(
                f"{first}–{last} of consumer {consumer.name!r} is not a key range: 0 ≤ first ≤ last ≤ {RANGE_SIZE - 1}"
            )
        if first <= reached:
            raise ConsumerAssignError(f"two ranges of consumer {consumer.name!r} overlap at {first}")
        reached = last
