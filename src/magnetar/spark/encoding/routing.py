"""Routes rows: a destination, which is a topic or one of its partitions, for every row of a batch.

Order:     the topic is the option, otherwise the row's column; it is resolved once per topic of a task (`Resolve`). The
           partition is the row's column, if it has one; otherwise it is chosen by the key, as in Pulsar's clients;
           otherwise in turn, from the Spark partition's own number on, changing when about one entry's worth of rows
           went to a partition. A topic that is itself a partition of another one is the only choice.
Invariant: the same rows in the same order get the same destinations, however they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from magnetar.client.topics import partition_name, partition_of
from magnetar.errors import SinkDataError
from magnetar.spark.encoding.arrays import Ints, is_null
from magnetar.spark.encoding.messages import Messages, java_hashes


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    """In full."""
    partitions: int = 0
    """0: not partitioned."""
    schema_version: bytes = b""

    @property
    def destinations(self) -> list[str]:
        return [partition_name(self.topic, number) for number in range(self.partitions)] or [self.topic]


class _Choice(NamedTuple):
    """The destinations for the rows of one topic."""

    first: int
    """The index of its first destination in the router's list."""
    size: int
    own: int
    """The topic's own number, if it is a partition of another one; otherwise -1."""


Resolve = Callable[[str], Target]
"""Resolves a topic's name as the user wrote it. Raises if it cannot be written to."""


class Router:
    def __init__(self, resolve: Resolve, topic: str, start: int, turn_bytes: int) -> None:
        """`topic`: "" if each row has one. `start`: the Spark partition's number."""
        self._resolve = resolve
        self._topic = topic
        self._start = start
        self._turn_bytes = turn_bytes
        self._keyless_bytes = 0
        self._choices: dict[str, _Choice] = {}
        """By the topic as it is written."""
        self._numbers: list[int] = []
        """The destinations of every choice, one choice after the other."""
        self.destinations: list[str] = []
        self.targets: list[Target] = []
        """The topic of every destination."""

    def route(self, messages: Messages, topics: pa.Array | None, partitions: pa.Array | None) -> Ints:
        """Returns an index into `destinations` for every row."""
        choices, codes = self._topics(len(messages), None if self._topic else topics)
        firsts, counts, own = (column[codes] for column in np.array(choices, np.int64).reshape(-1, 3).T)
        if counts.max(initial=1) > 1 or partitions is not None:
            chosen = self._choose(messages, counts)
            if partitions is not None:
                chosen = _as_given(chosen, partitions, counts, own)
            firsts = firsts + chosen
        return np.array(self._numbers, np.int64)[firsts]

    def _topics(self, rows: int, topics: pa.Array | None) -> tuple[list[_Choice], Ints]:
        """Returns the choices in this batch, and which of them each row has."""
        if topics is None:
            if not self._topic:
                raise SinkDataError("no topic: give option topic, or a column topic")
            return [self._choice(self._topic)], np.zeros(rows, np.int64)
        if topics.null_count:
            raise SinkDataError("a row without a topic: fill the column topic, or give option topic")
        encoded = topics.dictionary_encode()
        return [self._choice(name) for name in encoded.dictionary.to_pylist()], encoded.indices.to_numpy()

    def _choice(self, name: str) -> _Choice:
        found = self._choices.get(name)
        if found is None:
            target = self._resolve(name)
            numbers = [self._number(destination, target) for destination in target.destinations]
            own = -1 if target.partitions else partition_of(target.topic)
            found = self._choices[name] = _Choice(len(self._numbers), len(numbers), own)
            self._numbers += numbers
        return found

    def _number(self, destination: str, target: Target) -> int:
        """Returns one number for one topic or partition, even if it is written in two ways: otherwise its order would
        be lost."""
        if destination in self.destinations:
            return self.destinations.index(destination)
        self.destinations.append(destination)
        self.targets.append(target)
        return len(self.destinations) - 1

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


def _as_given(chosen: Ints, partitions: pa.Array, counts: Ints, own: Ints) -> Ints:
    """Takes nulls and −1, which the source gives for a topic without partitions, as no choice; so is the number of the
    partition that the row names as its topic, as the source gives it."""
    given = partitions.cast(pa.int64()).fill_null(-1).to_numpy()
    given = np.where(given == own, -1, given)
    wrong = given >= counts
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SinkDataError(
            f"partition {given[at]} of a topic that has {counts[at]}: drop the column partition, so that keys decide"
        )
    return np.where(given < 0, chosen, given)
