"""Limits of rates: `PublishLimit` holds a producer that published too much, `SubscribeLimit` refuses a consumer.

Publishing has a token bucket for messages and one for bytes, each with room for one second. What arrived is always
taken, so a bucket may go below zero; the connection is then held until it is above again. So one large batch passes,
and the rate holds over time. A consumer may subscribe a limited number of times in a period, and is refused beyond
that. Callers give the time, in seconds of the loop's clock.
"""

from __future__ import annotations

from typing import Final

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

    @property
    def is_limited(self) -> bool:
        return any(bucket is not None for bucket in self._buckets)

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
