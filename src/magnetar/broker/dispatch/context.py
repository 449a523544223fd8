"""What all dispatchers of one subscription share: its neighbours, its limits, its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from magnetar.broker.dispatch.parts import DispatchLimits, EntrySource, SubscriptionCursor
from magnetar.broker.dispatch.rate import DispatchRate
from magnetar.config.dispatch import DispatchConfig
from magnetar.runtime.entropy import Entropy


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
