"""Decisions: why a broker was chosen for a bundle. The broker that chose remembers it, for `magnetar explain --topic`.

Limits:    The latest decision on each bundle is kept, of a number of bundles, in memory only. A broker that becomes the
           leader knows none of its predecessor's.
Read next: load_manager.py, admin/topics/ownership.py
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from magnetar.broker.resources.bundles import NamespaceBundle

_KEPT: Final = 10_000


class Why(enum.StrEnum):
    LOAD = "load"
    """No broker had less load."""
    RULES = "rules"
    """Isolation policies or anti-affinity groups left fewer brokers to choose from."""
    TAKEN_OVER = "taken-over"
    """The broker that had reported the bundle had left."""
    MOVED = "moved"
    """A round of the leader moved it."""
    DEDICATED = "dedicated"
    """The namespace is that of one broker."""


@dataclass(frozen=True, slots=True)
class Decision:
    broker: str
    made_ms: int
    why: Why
    text: str


class Decisions:
    def __init__(self) -> None:
        self._kept: dict[NamespaceBundle, Decision] = {}

    def note(self, bundle: NamespaceBundle, decision: Decision) -> None:
        self._kept.pop(bundle, None)
        self._kept[bundle] = decision
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def forget(self, bundle: NamespaceBundle) -> None:
        self._kept.pop(bundle, None)

    def on(self, bundle: NamespaceBundle) -> Decision | None:
        return self._kept.get(bundle)
