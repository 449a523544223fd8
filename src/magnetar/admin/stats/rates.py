"""Rates of producers and consumers per second over the last minute, and times as Pulsar's JSON and headers write them.

Every minute all counters are read; the difference to the previous minute is the rate, until the next one. A client that
has not been seen for a whole window is shown with the average since it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from magnetar.broker.publishing.producers import Producer
from magnetar.broker.service import BrokerService
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.topic import SubscriptionLike
from magnetar.runtime.runtime import Entropy
from magnetar.runtime.uncancelled import end_task


def iso(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def wall_ms_of(loop_s: float | None, entropy: Entropy) -> int:
    """Returns the wall time of a moment on the loop's clock; 0 for None."""
    if loop_s is None:
        return 0
    return entropy.wall_ms() - round((asyncio.get_running_loop().time() - loop_s) * 1000)


WINDOW_S = 60.0

Counts = tuple[int, ...]


def counts_of_producer(producer: Producer) -> Counts:
    """Returns messages, bytes, chunks."""
    return producer.messages_in, producer.bytes_in, producer.chunked_in


def counts_of_consumer(consumer: Consumer) -> Counts:
    """Returns messages, bytes, redelivered, acknowledged."""
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
    """The rates of the window that ended then; None at the first look."""


class RateBook:
    """Is begun by `start` on the loop and ended by `aclose`."""

    def __init__(self, service: BrokerService, window_s: float = WINDOW_S) -> None:
        self._service = service
        self._window_s = window_s
        self._windows: dict[object, _Window] = {}
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="admin-rates")

    async def aclose(self) -> None:
        await end_task(self._task)

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
        slices = self._service.slices
        for topic in self._service.topics.loaded():
            for producer in topic.producers:
                windows[producer] = self._next(producer, counts_of_producer(producer))
                await slices.turn()
            for consumer in list(_consumers_of(topic.subscriptions.values())):
                windows[consumer] = self._next(consumer, counts_of_consumer(consumer))
                await slices.turn()
            await slices.turn()
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
