"""Publisher: takes the messages of a topic's producers, and answers them. The base of both kinds of topics.

topic_publisher.py appends to the topic's log; the one in broker/topics/non_persistent.py passes messages on directly.

Limits:    A producer that brings messages when there is no room is held, and called back when there is. What arrived is
           always taken: a producer that published more than the policies allow is held afterwards. There is a token
           bucket for messages and one for bytes, each with room for one second. A bucket may go below zero; the
           connection is then held until it is above again. So one large batch passes, and the rate holds over time. A
           consumer may subscribe a limited number of times in a period, and is refused beyond that.
Failure:   Once the topic ends, nothing more is taken. Producers that wait for room are called back and get the reason.
Read next: producers.py
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.publishing.producers import Offer, Producer, Publish, TakenRun, Waiter
from magnetar.errors import MagnetarError, TopicFencedError
from magnetar.names import TopicName
from magnetar.wire.bookkeeper.frames import Buffer

_ROOM_S: Final = 1.0
_CONSUMERS_MAX: Final = 10_000  # The limit of consumers that are remembered for one topic.


class TokenBucket:
    """Fills with `rate` tokens a second, up to one second's worth."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        assert rate > 0
        self.rate = rate
        self._tokens = rate * _ROOM_S
        self._at = now

    def take(self, tokens: float, now: float) -> float:
        """Takes them, and returns how many seconds it takes until the bucket is not empty again."""
        earned = max(0.0, now - self._at) * self.rate
        self._at = now
        self._tokens = min(self._tokens + earned, self.rate * _ROOM_S) - tokens
        return max(0.0, -self._tokens / self.rate)


class PublishLimit:
    """Serves one topic. A rate of zero or below is no limit."""

    __slots__ = ("_buckets", "bytes_per_s", "messages_per_s")

    def __init__(self, messages_per_s: int, bytes_per_s: int, now: float) -> None:
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s
        self._buckets = tuple(TokenBucket(rate, now) if rate > 0 else None for rate in (messages_per_s, bytes_per_s))

    def take(self, messages: int, size: int, now: float) -> float:
        """Counts a run; returns for how many seconds its producer is held."""
        delays = [
            bucket.take(amount, now)
            for bucket, amount in zip(self._buckets, (messages, size), strict=True)
            if bucket is not None
        ]
        return max(delays, default=0.0)


class SubscribeLimit:
    """Serves one topic: counts how often each consumer comes in a period."""

    __slots__ = ("_counts", "_per_consumer", "_period_s")

    def __init__(self) -> None:
        self._per_consumer = 0
        self._period_s = 0.0
        self._counts: dict[tuple[str, str, int], tuple[float, int]] = {}
        """For each consumer, when its period began, and how often it came since."""

    def change(self, per_consumer: int, period_s: float) -> None:
        """Changes the limit; zero is no limit."""
        self._per_consumer, self._period_s = per_consumer, period_s

    def admits(self, consumer: tuple[str, str, int], now: float) -> bool:
        if self._per_consumer <= 0:
            return True
        began, count = self._counts.pop(consumer, (now, 0))
        if now - began >= self._period_s:
            began, count = now, 0
        self._counts[consumer] = (began, count + 1)
        while len(self._counts) > _CONSUMERS_MAX:
            del self._counts[next(iter(self._counts))]  # The one that was not seen for longest.
        return count < self._per_consumer


_NO_ROOM = "room"
_RATE = "rate"


class Publisher(ABC):
    """Serves one topic. Used on the loop only."""

    def __init__(self, topic: TopicName, policies: EffectivePolicies) -> None:
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.last_published_s: float | None = None
        """When the last message arrived that was taken, in the loop's time."""
        self.refusal: TopicFencedError | None = None
        """Why nothing more is taken."""
        self._topic = topic
        self._policies = policies
        self._loop = asyncio.get_running_loop()
        self._waiting_for_room: dict[Waiter, None] = {}
        self._limit: PublishLimit | None = None
        self._held_by_rate: dict[Waiter, None] = {}
        self._apply_rate()

    def apply(self, policies: EffectivePolicies) -> None:
        """Applies policies from now on."""
        self._policies = policies
        self._apply_rate()

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether `publish` may be called. If not, the producer's connection calls `wait_for_room`."""

    @abstractmethod
    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None:
        """Takes one entry, whose body is only lent. It is answered through the producer, once. If it raises, nothing
        was taken.

        `counts`: deduplication records its sequence id, which is so for all entries but markers and chunks before the
        last.
        """

    def publish_run(
        self, producer: Producer, offers: Sequence[Offer], first: int, end: int, view: memoryview, now: float
    ) -> TakenRun:
        """Takes messages of one producer, `offers[first:end]`, whose bodies are in `view`, as far as there is room."""
        result = TakenRun(first)
        while result.end < end and self.has_room:
            _, sequence_id, highest_sequence_id, messages, offset, length = offers[result.end]
            result.end += 1
            try:
                self.publish(
                    (producer, sequence_id, highest_sequence_id, messages, length, now), view[offset : offset + length]
                )
            except MagnetarError as error:
                result.refused.append((max(sequence_id, highest_sequence_id), error))
            else:
                result.entries += 1
                result.size += length
        return result

    @abstractmethod
    def last_sequence_id(self, producer: str) -> int:
        """Returns the highest that a producer of this name has published, or −1 if nothing is remembered of it."""

    @abstractmethod
    def on_connected(self, producer: str) -> None: ...

    @abstractmethod
    def on_disconnected(self, producer: str) -> None: ...

    @abstractmethod
    def forget_producers(self, idle_s: float, is_connected: Callable[[str], bool]) -> None:
        """Forgets what is remembered of producers that have not been connected for this many seconds."""

    def refuse(self, why: object) -> None:
        """Takes nothing more. Producers that wait for room are called back and get the reason."""
        if self.refusal is None:
            self.refusal = TopicFencedError(f"topic {self._topic} is not served here any more: {why}")
        self.on_room()

    def require_open(self) -> None:
        if self.refusal is not None:
            raise TopicFencedError(str(self.refusal))

    def wait_for_room(self, waiter: Waiter) -> None:
        if waiter not in self._waiting_for_room:
            self._waiting_for_room[waiter] = None
            waiter.hold(f"{_NO_ROOM} {self._topic}")

    def on_room(self) -> None:
        waiting, self._waiting_for_room = self._waiting_for_room, {}
        for waiter in waiting:
            waiter.let_go(f"{_NO_ROOM} {self._topic}")

    def _apply_rate(self) -> None:
        rate = self._policies.publish_rate
        if rate is None:
            self._limit = None
        elif self._limit is None or (self._limit.messages_per_s, self._limit.bytes_per_s) != (
            rate.messages,
            rate.bytes,
        ):
            self._limit = PublishLimit(rate.messages, rate.bytes, self._loop.time())

    def _limit_rate(self, limit: PublishLimit, publish: Publish) -> None:
        producer, _, _, messages, size, now = publish
        delay_s = limit.take(messages, size, now)
        waiter = producer.sink
        if delay_s > 0 and waiter not in self._held_by_rate:
            self._held_by_rate[waiter] = None
            waiter.hold(f"{_RATE} {self._topic}")
            self._loop.call_later(delay_s, self._let_go_by_rate, waiter)

    def _let_go_by_rate(self, waiter: Waiter) -> None:
        """Ends the hold, unless more was published since, or the limit has changed."""
        delay_s = 0.0 if self._limit is None else self._limit.take(0, 0, self._loop.time())
        if delay_s > 0:
            self._loop.call_later(delay_s, self._let_go_by_rate, waiter)
        else:
            del self._held_by_rate[waiter]
            waiter.let_go(f"{_RATE} {self._topic}")
