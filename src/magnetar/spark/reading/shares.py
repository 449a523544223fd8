"""How one batch of a stream is limited: so many messages, so many bytes, divided by what waits in each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """None: without limit."""

    messages: int | None = None
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        return self.messages is None and self.size_bytes is None


@dataclass(frozen=True, slots=True)
class Share:
    """Of one partition. None: without limit."""

    messages: int | None
    size_bytes: int | None


def shares(waiting: Mapping[str, int], limit: Limit) -> dict[str, Share]:
    """By how many messages wait in each. A partition that is not named gets nothing this time."""
    messages: dict[str, int | None] = dict.fromkeys(waiting)
    if limit.messages is not None and sum(waiting.values()) > limit.messages:
        messages = {**_divided(waiting, limit.messages)}
    total = max(sum(waiting[part] for part in messages), 1)
    sizes = limit.size_bytes
    return {
        part: Share(count, None if sizes is None else max(sizes * waiting[part] // total, 1))
        for part, count in messages.items()
    }


def _divided(waiting: Mapping[str, int], budget: int) -> dict[str, int]:
    """A budget that is smaller than what waits: in proportion, at least 1 for those that get any, and for as many as it
    suffices for. Those that are most behind come first."""
    ordered = sorted(((count, part) for part, count in waiting.items() if count > 0), reverse=True)[:budget]
    left, waiting_left = budget, sum(count for count, _ in ordered)
    given: dict[str, int] = {}
    for place, (count, part) in enumerate(ordered):
        others = len(ordered) - place - 1
        given[part] = min(max(left * count // waiting_left, 1), left - others, count)
        left -= given[part]
        waiting_left -= count
    return given
