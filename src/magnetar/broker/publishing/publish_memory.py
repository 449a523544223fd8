"""Publish memory: bytes of all entries of all connections that are not durable yet, and a limit for them.

At the limit, connections that bring more are held; when half of it is free again, all are let go.
"""

from __future__ import annotations

from typing import Protocol

REASON = "memory"


class Holdable(Protocol):
    def hold(self, reason: str) -> None: ...
    def let_go(self, reason: str) -> None: ...


class PublishMemory:
    __slots__ = ("_bytes", "_bytes_max", "_held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[Holdable, None] = {}

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def take(self, size: int, session: Holdable) -> None:
        self._bytes += size
        if self._bytes >= self._bytes_max:
            self._held[session] = None
            session.hold(REASON)

    def give_back(self, size: int) -> None:
        self._bytes -= size
        if self._held and self._bytes <= self._bytes_max // 2:
            held, self._held = self._held, {}
            for session in held:
                session.let_go(REASON)

    def forget(self, session: Holdable) -> None:
        self._held.pop(session, None)
