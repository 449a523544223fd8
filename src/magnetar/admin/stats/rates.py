"""Rates: what producers and consumers did in the last minute, in a second.

Window:    every minute all counters are looked at; the difference to the minute before is the rate, until the next one.
           Who has not seen a whole window is shown the average since it came.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from magnetar.broker.consumer import Consumer
from magnetar.broker.producer import Producer
from magnetar.broker.service import BrokerService
from magnetar.broker.topic import SubscriptionLike

WINDOW_S = 60.0
_TOPICS_PER_TURN = 200  # Between them others get a turn of the loop.

Counts = tuple[int, ...]


def counts_of_producer(producer: Producer) -> Counts:
    """Messages, bytes, chunks."""
    return producer.messages_in, producer.bytes_in, producer.chunked_in


def counts_of_consumer(consumer: Consumer) -> Counts:
    """Messages, bytes, redelivered, acknowledged."""
    return (
        consumer.delivered_messages,
        consumer.delivered_bytes,
        consumer.redelivered_messages,
        consumer.acked_messages,
    )


@dataclass(frozen=True, slots=True)
class _Window:
    counts: Counts
    at_s: float
    rates: tuple[float, ...] | None
    """Of the window that ended then; None at the first look."""


class RateBook:
    """Made by `start`ing it on the loop; ended by `aclose`."""

    def __init__(self, service: BrokerService, window_s: float = WINDOW_S) -> None:
        self._service = service
        self._window_s = window_s
        self._windows: dict[object, _Window] = {}
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="admin-rates")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def of_producer(self, producer: Producer) -> tuple[float, ...]:
        return self._rates(producer, counts_of_producer(producer), producer.connected_ms)

    def of_consumer(self, consumer: Consumer) -> tuple[float, ...]:
        return self._rates(consumer, counts_of_consumer(consumer), consumer.about.connected_ms)

    def _rates(self, owner: object, counts: Counts, since_ms: int) -> tuple[float, ...]:
        window = self._windows.get(owner)
        if window is not None and window.rates is not None:
            return window.rates
        seconds = max(1.0, (self._service.entropy.wall_ms() - since_ms) / 1000)
        return tuple(count / seconds for count in counts)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._window_s)

    async def look(self) -> None:
        """Ends a window, and begins the next."""
        windows: dict[object, _Window] = {}
        for number, topic in enumerate(self._service.topics.loaded()):
            for producer in topic.producers:
                windows[producer] = self._next(producer, counts_of_producer(producer))
            for consumer in _consumers_of(topic.subscriptions.values()):
                windows[consumer] = self._next(consumer, counts_of_consumer(consumer))
            if number % _TOPICS_PER_TURN == _TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._windows = windows  # Without those that have left.

    def _next(self, owner: object, counts: Counts) -> _Window:
        now, before = self._loop.time(), self._windows.get(owner)
        if before is None or now <= before.at_s:
            return _Window(counts, now, None)
        seconds = now - before.at_s
        rates = tuple((new - old) / seconds for new, old in zip(counts, before.counts, strict=True))
        return _Window(counts, now, rates)


def _consumers_of(subscriptions: Iterable[SubscriptionLike]) -> Iterator[Consumer]:
    for subscription in subscriptions:
        yield from subscription.consumers
