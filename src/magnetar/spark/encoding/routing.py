"""Where rows go: a destination, which is a topic or one of its partitions, for every row of a batch.

Topic:     the option, else the row's column. Asked for once per topic of a task (`Resolve`).
Partition: the row's column, if it says one; else by the key, as Pulsar's clients do; else round and round, from the
           Spark partition's own number on, changing when about one entry's worth of rows went to a partition.
Repeated:  the same rows in the same order get the same destinations, however they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from magnetar.client.topics import partition_name
from magnetar.errors import SinkDataError
from magnetar.spark.encoding.arrays import Ints, is_null
from magnetar.spark.encoding.keys import java_hashes
from magnetar.spark.encoding.messages import Messages


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that is written to."""

    topic: str
    """In full."""
    partitions: int = 0
    """0: not partitioned."""
    schema_version: bytes = b""

    @property
    def destinations(self) -> list[str]:
        return [partition_name(self.topic, number) for number in range(self.partitions)] or [self.topic]


Resolve = Callable[[str], Target]
"""Of a topic's name as the user wrote it. Raises where it cannot be written to."""


class Router:
    def __init__(self, resolve: Resolve, topic: str, start: int, turn_bytes: int) -> None:
        """`topic`: "" if each row says it. `start`: the Spark partition's number."""
        self._resolve = resolve
        self._topic = topic
        self._start = start
        self._turn_bytes = turn_bytes
        self._keyless_bytes = 0
        self._first_of: dict[str, int] = {}
        """Topic as written → the number of its first destination."""
        self._targets: list[Target] = []
        """Of every destination."""
        self.destinations: list[str] = []

    def target_of(self, destination: int) -> Target:
        return self._targets[destination]

    def route(self, messages: Messages, topics: pa.Array | None, partitions: pa.Array | None) -> Ints:
        """A number into `destinations` for every row."""
        firsts, counts = self._topics(len(messages), None if self._topic else topics)
        if counts.max(initial=1) == 1 and partitions is None:
            return firsts
        chosen = self._choose(messages, counts)
        if partitions is not None:
            chosen = _as_given(chosen, partitions, counts)
        return firsts + chosen

    def _topics(self, rows: int, topics: pa.Array | None) -> tuple[Ints, Ints]:
        """Number of the first destination, and how many there are, for every row."""
        if topics is None:
            if not self._topic:
                raise SinkDataError("no topic: give option topic, or a column topic")
            first = self._first(self._topic)
            count = max(1, self._targets[first].partitions)
            return np.full(rows, first, np.int64), np.full(rows, count, np.int64)
        if topics.null_count:
            raise SinkDataError("a row without a topic: fill the column topic, or give option topic")
        encoded = topics.dictionary_encode()
        firsts = np.array([self._first(name) for name in encoded.dictionary.to_pylist()], np.int64)
        counts = np.array([max(1, self._targets[first].partitions) for first in firsts], np.int64)
        codes = encoded.indices.to_numpy()
        return firsts[codes], counts[codes]

    def _first(self, name: str) -> int:
        found = self._first_of.get(name)
        if found is None:
            target = self._resolve(name)
            found = self._first_of[name] = self._known(target)
        return found

    def _known(self, target: Target) -> int:
        """Two ways to write one topic are one destination, or their order would be lost."""
        names = target.destinations
        if names[0] in self.destinations:
            return self.destinations.index(names[0])
        first = len(self.destinations)
        self.destinations += names
        self._targets += [target] * len(names)
        return first

    def _choose(self, messages: Messages, counts: Ints) -> Ints:
        if messages.keys is None:
            return self._in_turn(messages.sizes) % counts
        keyless = is_null(messages.keys.text)
        chosen = java_hashes(messages.keys.text)
        if keyless.any():
            chosen[keyless] = self._in_turn(messages.sizes[keyless])
        return chosen % counts

    def _in_turn(self, sizes: Ints) -> Ints:
        before = np.cumsum(sizes) - sizes + self._keyless_bytes
        self._keyless_bytes += int(sizes.sum())
        return self._start + before // self._turn_bytes


def _as_given(chosen: Ints, partitions: pa.Array, counts: Ints) -> Ints:
    """Nulls and −1, which the source gives for a topic without partitions, mean that nothing is given."""
    given = partitions.cast(pa.int64()).fill_null(-1).to_numpy()
    wrong = given >= counts
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SinkDataError(
            f"partition {given[at]} of a topic that has {counts[at]}: drop the column partition, and keys decide"
        )
    return np.where(given < 0, chosen, given)
