"""Which ledgers of a topic may be trimmed: pure decisions, as Pulsar makes them.

Whole ledgers are dropped, from the oldest on; never the one that is written, nor one that a durable cursor still needs.
A ledger that all cursors have passed is retained while it is younger than `retention_ms` and what remains without it is
smaller than `retention_bytes`; −1 is forever, 0 is not at all. If either is exceeded, it is dropped: with the default
of both 0, ledgers are dropped as soon as they are read.
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
    """What is kept although all cursors have passed it."""

    time_ms: int = 0
    size_bytes: int = 0


def ledgers_to_drop(
    spans: Sequence[LedgerSpan], consumed: Position, retention: Retention, now_ms: int
) -> list[LedgerSpan]:
    """Takes closed spans and, last, the one that is written. `consumed` is the slowest durable cursor's mark-delete."""
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
