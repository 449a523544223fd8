"""Which ledgers of a topic may go: pure decisions, as Pulsar makes them.

Rule:      whole ledgers, from the oldest on; never the one that is written, nor one that somebody has yet to read.
Retention: a ledger that everybody has read is kept while it is younger than `retention_ms` and what remains without it
           is smaller than `retention_bytes`; −1 is for ever, 0 is not at all. Either being exceeded lets it go: with
           the default of both 0, ledgers go as soon as they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.topic.chain import LedgerSpan
from magnetar.topic.position import Position

FOR_EVER: Final = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept although everybody has read it."""

    time_ms: int = 0
    size_bytes: int = 0


def ledgers_to_drop(
    spans: Sequence[LedgerSpan], consumed: Position, retention: Retention, now_ms: int
) -> list[LedgerSpan]:
    """Of closed spans and, last, the one that is written. `consumed` is the slowest durable cursor's mark-delete."""
    remaining = sum(span.size_bytes for span in spans)
    dropped: list[LedgerSpan] = []
    for span in spans[:-1]:
        if not _is_consumed(span, consumed):
            break
        remaining -= span.size_bytes
        expired = retention.time_ms >= 0 and now_ms - span.closed_ms > retention.time_ms
        too_much = retention.size_bytes >= 0 and remaining >= retention.size_bytes
        if not (expired or too_much):
            break
        dropped.append(span)
    return dropped


def _is_consumed(span: LedgerSpan, consumed: Position) -> bool:
    return consumed >= (span.ledger_id, span.entries - 1)
