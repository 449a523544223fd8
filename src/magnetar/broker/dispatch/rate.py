"""Dispatch rates: how much may be delivered now, in messages and bytes.

Rule:      a token bucket each, with room for one period. A turn delivers while there are tokens, and takes what it
           delivered, so the bucket may go below zero by one turn's last entry; the next turn waits until it is above.
Time:      given by the caller, in seconds of the loop's clock.
"""

from __future__ import annotations

from typing import Final

_UNLIMITED: Final = 2**62


class DispatchRate:
    """Of a broker, a topic or a subscription; a rate of zero or below is no limit."""

    __slots__ = ("_at", "_bytes", "_messages", "bytes_per_s", "messages_per_s", "name", "period_s")

    def __init__(self, name: str, messages_per_s: float, bytes_per_s: float, now: float, period_s: float = 1.0) -> None:
        self.name = name
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s
        self.period_s = period_s
        self._messages = messages_per_s * period_s
        self._bytes = bytes_per_s * period_s
        self._at = now

    @property
    def is_limited(self) -> bool:
        return self.messages_per_s > 0 or self.bytes_per_s > 0

    def change(self, messages_per_s: float, bytes_per_s: float, now: float, period_s: float = 1.0) -> None:
        """New rates; what was taken too much is not forgotten. One that was no limit begins with a full bucket."""
        self._earn(now)
        had_messages, had_bytes = self.messages_per_s > 0, self.bytes_per_s > 0
        self.messages_per_s, self.bytes_per_s, self.period_s = messages_per_s, bytes_per_s, period_s
        full_messages, full_bytes = messages_per_s * period_s, bytes_per_s * period_s
        self._messages = min(self._messages, full_messages) if had_messages else full_messages
        self._bytes = min(self._bytes, full_bytes) if had_bytes else full_bytes

    def available(self, now: float) -> tuple[int, int]:
        """Messages and bytes that may be delivered now. Either one at 0 means none."""
        self._earn(now)
        messages = max(0, int(self._messages)) if self.messages_per_s > 0 else _UNLIMITED
        size = max(0, int(self._bytes)) if self.bytes_per_s > 0 else _UNLIMITED
        return messages, size

    def take(self, messages: int, size: int) -> None:
        self._messages -= messages
        self._bytes -= size

    def wait_s(self, now: float) -> float:
        """How long until something may be delivered."""
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
