"""Whose turn it is on a Shared subscription: by priority, and within one priority who has waited longest.

A lower number is a higher priority. Lower priorities get something only while no consumer of a higher one can take any.
"""

from __future__ import annotations

from collections import deque

from magnetar.broker.consumer import Consumer


class RoundRobin:
    def __init__(self) -> None:
        self._levels: list[tuple[int, dict[Consumer, None]]] = []  # Within a level: who was served longest ago first.
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
        """A new turn: whoever could not take any may be able to now."""
        self._ring.clear()
        self._level = 0

    @property
    def has_choice(self) -> bool:
        """Whether others of the same priority wait for their turn."""
        return len(self._ring) > 1

    def next(self) -> Consumer | None:
        """None: nobody can take any."""
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
