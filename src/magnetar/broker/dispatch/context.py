"""What all dispatchers of one subscription share: its neighbours, its limits, its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.dispatch.parts import DispatchLimits, EntrySource, SubscriptionCursor
from magnetar.broker.dispatch.rate import DispatchRate
from magnetar.config.dispatch import DispatchConfig
from magnetar.runtime.entropy import Entropy
from magnetar.topic.position import Position

UNLIMITED: Final = 2**62


@dataclass(slots=True)
class DispatchContext:
    subscription: str
    topic: str
    partition: int
    cursor: SubscriptionCursor
    source: EntrySource
    compacted: EntrySource | None
    config: DispatchConfig
    entropy: Entropy
    limits: DispatchLimits
    rates: Sequence[DispatchRate]
    markers_skipped: int = field(default=0)
    """Entries that are not for clients, or cannot be parsed; acknowledged unseen."""
    lost_skipped: int = field(default=0)
    """Entries that were lost, and acknowledged so that the others can go on."""

    @property
    def unacked_per_consumer_max(self) -> int:
        """0: no limit. Consumers of a cursor that nothing keeps have none."""
        return self.limits.unacked_messages_per_consumer_max if self.cursor.is_durable else 0

    def entries_allowed_from(self, position: Position) -> int:
        """How many of the entries from here on may be delivered, so that a crash undoes no acknowledgement. If too much
        is acknowledged out of order: only those that may close a gap."""
        cursor = self.cursor
        if not self.limits.pause_on_ack_state or not cursor.is_durable or cursor.is_storable:
            return UNLIMITED
        first = cursor.next_unacknowledged(position)
        return self.source.chain.entries_between(
            Position(first.ledger_id, first.entry_id - 1), cursor.last_acknowledged
        )
