"""RateBucket: how many messages and bytes may be delivered now, under a dispatch rate.

It is a token bucket for each of the two, with room for one period. A turn delivers while there are tokens and then
takes what it delivered, so the bucket may fall below zero by the last entry of a turn; the next turn waits until it is
above zero. The caller passes the time, in seconds of the loop's clock.
"""

from __future__ import annotations

from magnetar.broker.policies.values import DispatchRate
from magnetar.broker.subscriptions.consumer import UNLIMITED


class RateBucket:
    """The bucket of a topic or a subscription. It limits nothing until a rate is set."""

    __slots__ = ("_at", "_bytes", "_messages", "bytes_per_s", "messages_per_s", "name", "period_s")

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.messages_per_s = 0.0
        """0: no limit."""
        self.bytes_per_s = 0.0
        """0: no limit."""
        self.period_s = 1
        self._messages = 0.0
        self._bytes = 0.0
        self._at = now

    @property
    def is_limited(self) -> bool:
        return self.messages_per_s > 0 or self.bytes_per_s > 0

    def set_rate(self, rate: DispatchRate | None, now: float) -> None:
        """A debt is not forgotten. What had no limit before begins with a full bucket."""
        self._earn(now)
        had_messages, had_bytes = self.messages_per_s > 0, self.bytes_per_s > 0
        full_messages, full_bytes = (0, 0) if rate is None else (max(0, rate.messages), max(0, rate.bytes))
        self.period_s = 1 if rate is None else max(1, rate.period_s)
        self.messages_per_s, self.bytes_per_s = full_messages / self.period_s, full_bytes / self.period_s
        self._messages = min(self._messages, full_messages) if had_messages else full_messages
        self._bytes = min(self._bytes, full_bytes) if had_bytes else full_bytes

    def available(self, now: float) -> tuple[int, int]:
        """Returns how many messages and bytes may be delivered now. If either is 0, nothing may."""
        self._earn(now)
        messages = max(0, int(self._messages)) if self.messages_per_s > 0 else UNLIMITED
        size = max(0, int(self._bytes)) if self.bytes_per_s > 0 else UNLIMITED
        return messages, size

    def take(self, messages: int, size: int) -> None:
        self._messages -= messages
        self._bytes -= size

    def wait_s(self, now: float) -> float:
        """Returns the seconds until something may be delivered."""
        self._earn(now)
        waits = [0.0]
        if self.messages_per_s > 0:
            waits.append((1 - self._messages) / self.messages_per_s)
        if self.bytes_per_s > 0:
            waits.append((1 - self._bytes) / self.bytes_per_s)
        return max(waits)

    def _earn(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._at = now
        if self.messages_per_s > 0:
            self._messages = min(self._messages + passed * self.messages_per_s, self.messages_per_s * self.period_s)
        if self.bytes_per_s > 0:
            self._bytes = min(self._bytes + passed * self.bytes_per_s, self.bytes_per_s * self.period_s)
